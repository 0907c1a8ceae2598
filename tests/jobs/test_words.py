"""Messages about job files: they name the file's settings, in the file's words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fkjoin.errors import TopologyError
from fkjoin.jobs.job_kinds import JobError, Section, located
from fkjoin.jobs.job_sections import JobSection
from tools.messages import raised

SPEC: dict[str, Any] = {
    "name": "shop",
    "checkpoint": "ck",
    "tables": {"orders": {"path": "o", "key": "id", "version": "n"}},
    "views": {"v": {"of": "orders", "filter": "a > 1"}},
    "merges": {"m": {"of": ["orders", "v"]}},
    "cogroups": {"c": {"of": ["a", "w"]}},
    "aggregates": {
        "a": {"of": "orders", "group_by": "customer", "columns": {"n": "count()"}},
        "w": {"of": "orders", "window": {"time": "at", "size": "1 hour"}, "columns": {"n": "count()"}},
    },
    "sinks": {"s": {"table": "orders", "path": "out"}},
}
MESSAGES = {
    ("tables", "orders", "Spark's Kafka connector is missing"): "tables.orders: Spark's Kafka connector is missing",
    ("tables", "orders", "key: orders has no column 'x'"): "tables.orders.key: orders has no column 'x'",
    ("tables", "orders", "from_files: schema 'x' does not parse"): "tables.orders: schema 'x' does not parse",
    ("sinks", "s", "orders: a source's changes"): "sinks.s: orders: a source's changes",
    ("views", "v", "condition: a is int"): "views.v.filter: a is int",
    ("merges", "m", "others[0]: v is none"): "merges.m.of.1: v is none",
    ("cogroups", "c", "tables[1]: w is none"): "cogroups.c.of.1: w is none",
    ("aggregates", "a", "key: x"): "aggregates.a.group_by: x",
    ("aggregates", "w", "key: x"): "aggregates.w.window: x",
    ("aggregates", "w", "size: x"): "aggregates.w.window.size: x",
    ("aggregates", "a", "sum: x is a text"): "aggregates.a.columns: x is a text",
    ("aggregates", "a", "columns.n: 'x' is none"): "aggregates.a.columns.n: 'x' is none",
}


@pytest.mark.parametrize(("kind", "name", "message"), MESSAGES)
def test_a_message_begins_with_the_setting_that_is_meant_and_says_its_place_once(kind: str, name: str, message: str) -> None:
    spec = JobSection.model_validate(SPEC)
    section: Section = getattr(spec, kind)[name]
    with pytest.raises(JobError) as refused, located("sinks.s", spec.sinks["s"]), located(f"{kind}.{name}", section):
        raise TopologyError(message)
    assert str(refused.value) == MESSAGES[kind, name, message]


_OF_PYTHON = re.compile(
    r"\b(?:Json|Debezium|Registry|fkjoin\.\w+|Table\.\w+)\(|map_values|\.materialize\(|\b[a-z_]+=(?=[\s,.;)]|$)"
)
_NOT_IN_JOB_FILES = re.compile(
    r"returns=|^Debezium: |^Registry: fkjoin|Spark Connect|Python callable|read_state|on=…|spark\.read|as_of|"
    r"group_by\(value|enforceSchema|withColumnRenamed|session was stopped"
)
"""Messages about calls that no setting of a job file leads to, or about what a user does outside of it."""


def test_no_message_that_a_job_file_can_lead_to_speaks_of_pythons_arguments() -> None:
    rooms = tuple(f"fkjoin/{room}/" for room in ("analysis", "files", "kafka", "folds"))
    left = []
    for message in raised():
        if not message.place.startswith(rooms) or _NOT_IN_JOB_FILES.search(message.text):
            continue
        with pytest.raises(JobError) as refused, located("tables.t"):
            raise TopologyError(message.text)
        if _OF_PYTHON.search(str(refused.value)):
            left.append((message.place, str(refused.value)))
    assert left == []
