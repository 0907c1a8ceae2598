"""Mistakes in job files and formats, each with the way out that its message names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.jobs.job_kinds import JobError, Section, located
from fkjoin.jobs.job_sections import JobSection
from fkjoin.kafka import Json, String
from fkjoin.kafka.formats import as_format
from fkjoin.kafka.options import source_options
from fkjoin.sinks import RETRY_S
from tests.support.job_files import GOOD, job
from tests.support.queries import write_lines
from tools.messages import raised

FILES, OUT, VERSION = 'path = "{folder}/orders"', 'path = "{folder}/out"', 'version = "lsn"\n'
SINK, JOINER, KEY = "[sinks.out]", 'joiner = ["left', 'key = "id"'
IN_DELTA = 'version = "lsn"\ndeleted = "op = \'d\'"\n'
IN_FKJOIN = f"{KEY}\n{IN_DELTA}"
TOPIC = f"{FILES}\n{KEY}"
AVRO = 'format = "avro", schema = "id int", registry = "http://r"'
COUNT = '[aggregates.a]\nof = "joined"\ncolumns.n = "count()"\n'
WINDOW = 'emit = "on-close"\nwindow = { time = "at", size = "1 hour", grace = "1 minute" }\n'
VIEW = '[views.v]\nof = "joined"\n'

Mistake = tuple[str, str, str] | tuple[str, str, str, str]
"""A text of a job file, what is wrong in its place, what the message begins with, and what is right there if it was not."""

SEEN: list[Mistake] = [
    ("trigger =", "triger =", r"triger: there is no such setting; did you mean 'trigger'\?$"),
    ('name = "orders"', "", "name: must be given"),
    (f"{VERSION}deleted", 'versoin = "lsn"\ndeleted', r"tables.orders.versoin: .*did you mean 'version'\?"),
    (KEY, 'key = {format = "json", schem = "a int"}', r"tables.orders.key.schem: .*did you mean 'schema'\?"),
    (FILES, "", "tables.orders: give either topic or path"),
    (OUT, 'path = "out"\ntopic = "out"', "sinks.out: give either topic, path, postgres, iceberg or kind"),
    (OUT, 'path = "out"\nkind = "b"', "sinks.out: give either topic, path, postgres, iceberg or kind"),
    (OUT, 'postgres = "d"', "sinks.out: postgres, .* and into, .* go together", 'postgres = "d"\ninto = "shop.orders"'),
    (f"{VERSION}deleted", "deleted", "tables.orders: files need version"),
    (IN_FKJOIN, f'format = "fkjoin"\n{VERSION}', 'tables.orders: version: .* files of format "fkjoin"', 'format = "fkjoin"\n'),
    (IN_DELTA, f'format = "delta"\n{VERSION}', "tables.orders: version: .* from a Delta table", 'format = "delta"\n'),
    (IN_FKJOIN, 'format = "delta"\n', "tables.orders: key must be given: the columns", f'{KEY}\nformat = "delta"\n'),
    (FILES, f"{FILES}\nheaders = true", "tables.orders: headers: it is a setting of a topic, and this .*; leave it out"),
    (OUT, f"{OUT}\nevolve = true", "sinks.out: evolve: it is a setting of an Iceberg table or a Delta table"),
    (OUT, f'{OUT}\nformat = "text"\nretry_s = 5', "sinks.out: retry_s: .* files of Spark's own sink; leave it out"),
    (OUT, f'{OUT}\nformat = "delta"\nretry_s = -1', "sinks.out.retry_s: it must be greater than or equal to 0"),
    (OUT, 'postgres = "d"\ninto = "it"\non_error = "stop"', "sinks.out.on_error: it must be 'fail', 'dead-letter' or 'skip'"),
    (TOPIC, 'topic = "o"\nvalue = "string"\nkey = {kind = "a", name = "b"}', "tables.orders.key: name: .* of another package"),
]
"""Mistakes of which the file's schema tells editors, too."""

OF_VALUES = {
    'format = "json"': "value: this format needs a schema",
    'format = "jsn", schema = "a int"': "value.format: it must be 'string', ",
    'format = "avro", schema = "a int"': 'value: format "avro" needs registry',
    'format = "string", schema = "a int"': 'value: schema: .* this is format "string"; leave it out',
    'format = "json", schema = "a int", source = "b int"': 'value: source: .* of format "debezium", and',
    'format = "json", registry = "http://r", schema = "a int", text = "t"': 'value: text: .* "json" without a registry',
    f"{AVRO}, settings = {{timeout = 3}}": "value: settings: it is a setting of .* another package, .*; give registry_settings",
}
SEEN += [(FILES, f'topic = "o"\nvalue = {{{value}}}', f"tables.orders.{says}") for value, says in OF_VALUES.items()]

UNSEEN: list[Mistake] = [
    (SINK, "[sinks.out", "cannot be read as TOML"),
    ('name = "orders"', 'name = "${FKJOIN_NOT_SET}"', "name: the environment has no variable FKJOIN_NOT_SET"),
    (SINK, f"{VIEW}{SINK}", "views.v: give filter, columns, or both", f'{VIEW}filter = "amount > 1"\n{SINK}'),
    (SINK, f"{COUNT}{SINK}", "aggregates.a: give group_by, window, or both", f"{COUNT}{WINDOW}{SINK}"),
    (JOINER, f'emit = "weekly"\n{JOINER}', "joins.joined.emit: .*'weekly' is not one of"),
    ("[spark]\n", "[spark]\nkafk = true\n", "spark: 'kafk' is not a Spark setting", "[spark]\nkafka = true\n"),
    (
        TOPIC,
        'topic = "o"\nkey = "bytes"\nvalue = "jsn"',
        "tables.orders.value: 'jsn' is not a format",
        'topic = "o"\nkey = "bytes"\nvalue = {format = "json", schema = "customer int"}',
    ),
    ('right = "customers"', 'right = "custmers"', r"joins.joined.right: there is no table .*; did you mean 'customers'\?"),
    ('table = "joined"', 'table = "joind"', r"sinks.out.table: there is no table or join 'joind'; did you mean 'joined'\?"),
    (
        "[kafka]",
        '[sinks.copy]\ntable = "orders"\npath = "{folder}/out/"\n[kafka]',
        "sinks.copy.path: this is the folder of sinks.out, too; give each a folder of its own",
        '[sinks.copy]\ntable = "orders"\npath = "{folder}/copy/"\n[kafka]',
    ),
    (OUT, FILES, "sinks.out.path: this is the folder of tables.orders, too; give each"),
    ("[kafka]", '[dead_letters]\npath = "{folder}/out"\n[kafka]', "sinks.out.path: this is the folder of dead_letters, too"),
    (f"{OUT}\n", 'path = "{folder}/joined"\n[dead_letters]\npath = "{folder}"\n', "sinks.out.path: .* of dead_letters, too"),
    ('[kafka]\nbootstrap_servers = "localhost:1"\n', '[dead_letters]\ntopic = "dead"\n', "dead_letters: topics need a section"),
]

FINE = [
    (FILES, f"{FILES}\nheaders = false"),
    (OUT, f"{OUT}\npositions = false\noptions = {{}}"),
    (OUT, f'{OUT}\non_error = "fail"\nretry_s = {RETRY_S}'),
    (OUT, f'{OUT}\nformat = "delta"\npositions = false\noptimize_every = 1\noptions = {{a = 1}}'),
    (OUT, 'topic = "out"\nformat = "parquet"\npositions = true'),
    (OUT, 'iceberg = "shop.out"\ncatalog = "lake"\nevolve = true\noptions = {uri = "u"}'),
    (TOPIC, f'topic = "o"\nkey = "string"\nvalue = {{{AVRO.replace("id", "customer")}}}'),
    (TOPIC, 'topic = "o"\nkey = "string"\nvalue = {format = "json", schema = "customer int", unavailable = "problem"}'),
]
"""Settings of another kind may be as by default: templates write them all."""


def test_a_job_file_is_read_when_it_says_what_the_message_says(tmp_path: Path) -> None:
    for place, wrong, says, *right in (*SEEN, *UNSEEN):
        assert place in GOOD
        with pytest.raises(FkJoinError, match=rf"^{tmp_path}/job.toml: {says}"):
            read_job(job(tmp_path, GOOD.replace(place, wrong, 1)))
        for better in right:
            read_job(job(tmp_path, GOOD.replace(place, better, 1)))


def test_editors_know_which_settings_a_kind_has(tmp_path: Path) -> None:
    valid = Draft202012Validator(json_schema()).is_valid
    refused = [wrong for place, wrong, *_ in SEEN if valid(tomllib.loads(GOOD.replace(place, wrong, 1)))]
    assert refused == [], "which a validator takes"
    for place, fine in FINE:
        path = job(tmp_path, GOOD.replace(place, fine, 1))
        assert valid(tomllib.loads(path.read_text())), fine
        read_job(path)


def test_files_have_a_key_of_columns_that_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """And windows need a trigger that is shorter than their idle time."""
    for name in ("orders", "customers"):
        write_lines(tmp_path / name, "1", [{"id": 1, "customer": "c", "amount": 2, "name": "n", "op": "u", "lsn": 1}])

    def built(text: str) -> Job:
        return Job(read_job(job(tmp_path, text)), spark)

    with pytest.raises(JobError, match="key: files have columns; give the names of those that are the key"):
        built(GOOD.replace(KEY, 'key = {format = "string", name = "id"}'))
    assert built(GOOD).tables["orders"].key == ("id",)
    text = GOOD.replace('\n[sinks.out]\ntable = "joined"\n', WINDOWS)
    text = text.replace(VERSION, f'{VERSION}timestamp = "timestamp_seconds(lsn)"\n')
    with pytest.raises(TopologyError, match="^trigger: 10 seconds is longer than 5 seconds, the idle time of windows"):
        built(text.replace("available-now", "10 seconds"))
    built(text.replace("available-now", "2 seconds"))


WINDOWS = """
[aggregates.windows]
of = "orders"
window = { time = "timestamp_seconds(amount)", size = "1 minute", idle = "5 seconds" }
emit = "on-close"
columns.n = "count()"
[sinks.out]
table = "windows"
"""


def test_a_format_is_taken_when_it_is_what_the_message_says() -> None:
    for wrong, says in (("jsn", "'jsn' is not a format: give"), (3, "a format is needed, this is a int")):
        with pytest.raises(FkJoinError, match=f"^value: {says}"):
            as_format("value", wrong, "value")  # type: ignore[arg-type]
    for right in ("string", Json("id bigint"), String("value")):
        as_format("value", right, "value")


def test_an_option_that_is_set_by_the_engine_is_left_to_its_argument() -> None:
    with pytest.raises(FkJoinError, match="options: subscribe is set by fkjoin; give the argument"):
        source_options({"subscribe": "orders"})


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
    ("sinks", "s", "orders: a batch of a source"): "sinks.s: orders: a batch of a source",
    ("views", "v", "condition: a is int"): "views.v.filter: a is int",
    ("merges", "m", "others[0]: v is none"): "merges.m.of.1: v is none",
    ("cogroups", "c", "tables[1]: w is none"): "cogroups.c.of.1: w is none",
    ("aggregates", "a", "key: x"): "aggregates.a.group_by: x",
    ("aggregates", "w", "key: x"): "aggregates.w.window: x",
    ("aggregates", "w", "size: x"): "aggregates.w.window.size: x",
    ("aggregates", "a", "sum: x is a text"): "aggregates.a.columns: x is a text",
    ("aggregates", "a", "columns.n: 'x' is none"): "aggregates.a.columns.n: 'x' is none",
}


def test_a_message_begins_with_the_setting_that_is_meant_and_says_its_place_once() -> None:
    spec = JobSection.model_validate(SPEC)
    for (kind, name, message), says in MESSAGES.items():
        section: Section = getattr(spec, kind)[name]
        with pytest.raises(JobError) as refused, located("sinks.s", spec.sinks["s"]), located(f"{kind}.{name}", section):
            raise TopologyError(message)
        assert str(refused.value) == says


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
