"""Mistakes in job files, in formats and in values, each with the way out that its message names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin.codec.units import Unit
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.kafka import Json, String
from fkjoin.kafka.formats import as_format
from fkjoin.kafka.options import source_options
from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, served
from fkjoin.metrics.server import ClientAccess
from tests.support.job_files import GOOD, job
from tests.support.json_values import KINDS, read
from tests.support.queries import write_lines

JOB_FILES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "views.v: give filter, columns, or both": (
        ("[sinks.out]", '[views.v]\nof = "joined"\n[sinks.out]'),
        ("[sinks.out]", '[views.v]\nof = "joined"\nfilter = "amount > 1"\n[sinks.out]'),
    ),
    "aggregates.a: give group_by, window, or both": (
        ("[sinks.out]", '[aggregates.a]\nof = "joined"\ncolumns.n = "count()"\n[sinks.out]'),
        (
            "[sinks.out]",
            '[aggregates.a]\nof = "joined"\ncolumns.n = "count()"\nemit = "on-close"\n'
            'window = { time = "at", size = "1 hour", grace = "1 minute" }\n[sinks.out]',
        ),
    ),
    "sinks.out: give either topic, path, postgres, iceberg or kind": (
        ('path = "{folder}/out"', 'path = "out"\ntopic = "out"'),
        ('path = "{folder}/out"', 'path = "out"'),
    ),
    "sinks.out: postgres, the address of a database, and into": (
        ('path = "{folder}/out"', 'postgres = "postgresql://db/shop"'),
        ('path = "{folder}/out"', 'postgres = "postgresql://db/shop"\ninto = "shop.orders"'),
    ),
    "views.orders: a table has this name already; choose another": (
        ("[sinks.out]", '[views.orders]\nof = "joined"\nfilter = "amount > 1"\n[sinks.out]'),
        ("[sinks.out]", '[views.large]\nof = "joined"\nfilter = "amount > 1"\n[sinks.out]'),
    ),
    "tables.orders: give either topic or path": (
        ('path = "{folder}/orders"', 'path = "o"\ntopic = "o"'),
        ('path = "{folder}/orders"', 'path = "o"'),
    ),
    "tables.orders.value: 'jsn' is no format": (
        ('path = "{folder}/orders"\nkey = "id"', 'topic = "o"\nkey = "bytes"\nvalue = "jsn"'),
        (
            'path = "{folder}/orders"\nkey = "id"',
            'topic = "o"\nkey = "bytes"\nvalue = {format = "json", schema = "customer int"}',
        ),
    ),
    "spark: 'kafk' is no setting of Spark": (
        ("[spark]\n", "[spark]\nkafk = true\n"),
        ("[spark]\n", "[spark]\nkafka = true\n"),
    ),
    "tables.orders: roots: it is a setting of a topic": (
        ('version = "lsn"\n', 'version = "lsn"\nroots = 1\n'),
        ('version = "lsn"\n', 'version = "lsn"\n'),
    ),
    "tables.orders: version: it is a setting of a topic or files, and this table is read from": (
        ('key = "id"\nversion = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "fkjoin"\nversion = "lsn"\n'),
        ('key = "id"\nversion = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "fkjoin"\n'),
    ),
    "tables.orders: version: it is a setting of a topic or files, and this table is read from a Delta table": (
        ('version = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "delta"\nversion = "lsn"\n'),
        ('version = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "delta"\n'),
    ),
    "tables.orders: key must be given: the columns of which": (
        ('key = "id"\nversion = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "delta"\n'),
        ('version = "lsn"\ndeleted = "op = \'d\'"\n', 'format = "delta"\n'),
    ),
}


@pytest.mark.parametrize("beginning", JOB_FILES)
def test_a_job_file_is_read_when_it_says_what_the_message_says(tmp_path: Path, beginning: str) -> None:
    wrong, right = JOB_FILES[beginning]
    with pytest.raises(FkJoinError) as found:
        read_job(job(tmp_path, GOOD.replace(*wrong, 1)))
    assert str(found.value).removeprefix(f"{tmp_path / 'job.toml'}: ").startswith(beginning)
    read_job(job(tmp_path, GOOD.replace(*right, 1)))


def test_files_have_a_key_of_columns_that_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("orders", "customers"):
        write_lines(tmp_path / name, "1", [{"id": 1, "customer": "c", "amount": 2, "name": "n", "op": "u", "lsn": 1}])
    wrong = job(tmp_path, GOOD.replace('key = "id"', 'key = {format = "string", name = "id"}'))
    with pytest.raises(JobError, match="key: files have columns; name those that are the key"):
        Job(read_job(wrong), spark)
    assert Job(read_job(job(tmp_path, GOOD)), spark).tables["orders"].key == ("id",)


WINDOWS = """
[aggregates.windows]
of = "orders"
window = { time = "timestamp_seconds(amount)", size = "1 minute", idle = "5 seconds" }
emit = "on-close"
columns.n = "count()"
[sinks.out]
table = "windows"
"""


def test_a_job_with_windows_needs_a_trigger_that_is_shorter_than_their_idle_time(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("orders", "customers"):
        write_lines(tmp_path / name, "1", [{"id": 1, "customer": "c", "amount": 2, "name": "n", "op": "u", "lsn": 1}])
    text = GOOD.replace('\n[sinks.out]\ntable = "joined"\n', WINDOWS)
    text = text.replace('version = "lsn"\n', 'version = "lsn"\ntimestamp = "timestamp_seconds(lsn)"\n')
    with pytest.raises(TopologyError, match="^trigger: 10 seconds is longer than the idle time of windows, 5 seconds"):
        Job(read_job(job(tmp_path, text.replace("available-now", "10 seconds"))), spark)
    for fine in ("2 seconds", "available-now"):
        Job(read_job(job(tmp_path, text.replace("available-now", fine))), spark)


VALUES: dict[str, tuple[tuple[str, Unit | None, str], tuple[str, Unit]]] = {
    "1690366967048491 is a number without a unit": (("at", None, "1690366967048491"), ("at", Unit("micros"))),
    "'1234' may be base64 or a number": (("price", Unit("unsure"), '"1234"'), ("price", Unit("text"))),
    "a text may be base64 or hex": (("data", Unit("unsure"), '"abcd"'), ("data", Unit("base64"))),
}


@pytest.mark.parametrize("beginning", VALUES)
def test_a_value_is_read_with_the_unit_that_the_message_names(beginning: str) -> None:
    (kind, unit, value), (again, better) = VALUES[beginning]
    found, told = read(KINDS[kind], unit, value)
    assert found is None
    assert beginning in str(told)
    found, told = read(KINDS[again], better, value)
    assert (found is None, told) == (False, None)


WIDER: dict[str, tuple[str, Unit | None, str, str, str]] = {
    "days": ("day", Unit("millis"), "1690366967048", "a timestamp", "at"),
    "clocks": ("time", Unit("micros"), "86400000000", "a bigint or interval", "span"),
    "times of day": ("at", Unit("micros", "time"), "5", "a bigint", "number"),
    "months": ("span", None, '"P1Y2M3D"', "a string", "text"),
}


@pytest.mark.parametrize("what", WIDER)
def test_a_value_is_read_into_the_type_that_the_message_names(what: str) -> None:
    kind, unit, value, named, wider = WIDER[what]
    found, told = read(KINDS[kind], unit, value)
    assert found is None
    assert f"take {named} column" in str(told)
    found, told = read(KINDS[wider], unit, value)
    assert (found is None, told) == (False, None)


FORMATS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "value: 'jsn' is not a format: give": (
        lambda: as_format("value", "jsn", "value"),
        lambda: (as_format("value", "string", "value"), as_format("value", Json("id bigint"), "value")),
    ),
    "value: a format is needed, this is a int": (
        lambda: as_format("value", 3, "value"),  # type: ignore[arg-type]
        lambda: as_format("value", String("value"), "value"),
    ),
}


@pytest.mark.parametrize("beginning", FORMATS)
def test_a_format_is_taken_when_it_is_what_the_message_says(beginning: str) -> None:
    wrong, right = FORMATS[beginning]
    with pytest.raises(FkJoinError) as found:
        wrong()
    assert str(found.value).startswith(beginning)
    right()


def test_a_page_is_served_at_another_port() -> None:
    with served(ShownJob("shop", []), Metrics(), 0, ClientAccess(), "--ui") as address:
        port = int(address.rsplit(":", 1)[1].rstrip("/"))
        with pytest.raises(FkJoinError, match="--ui: .* cannot be used .*; choose another port"):
            served(ShownJob("shop", []), Metrics(), port, ClientAccess(), "--ui").__enter__()
        with served(ShownJob("shop", []), Metrics(), 0, ClientAccess(), "--ui") as other:
            assert other != address


def test_an_option_that_is_set_by_the_engine_is_left_to_its_argument() -> None:
    with pytest.raises(FkJoinError, match="options: subscribe is set by fkjoin; give it as the argument"):
        source_options({"subscribe": "orders"})
    assert source_options({"maxOffsetsPerTrigger": 5})["maxOffsetsPerTrigger"] == "5"
