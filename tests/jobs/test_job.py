"""Job files: what is said of mistakes, and a job on files from start to end through the command line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from jsonschema import Draft202012Validator
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from fkjoin import aggregates as agg
from fkjoin.checkpoint.begun import DOCUMENT
from fkjoin.errors import FkJoinError
from fkjoin.jobs import runner
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_operators import wanted_of
from fkjoin.jobs.job_sections import FormatSection
from fkjoin.jobs.runner import job_session
from fkjoin.kafka import Bytes, Debezium, Json, Registry, String
from fkjoin.kafka.options import masked, producer_options, sink_options, source_options, with_fetching
from fkjoin.sinks import RETRY_S
from tests.support.commands import fkjoin
from tests.support.queries import write_lines
from tests.support.sessions import small

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib
from tests.support.job_files import GOOD, job


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("trigger =", "triger ="), r"triger: there is no such setting; did you mean 'trigger'\?"),
        (('version = "lsn"\ndeleted', 'versoin = "lsn"\ndeleted'), r"tables.orders.versoin: .*did you mean 'version'\?"),
        (('key = "id"', 'key = {format = "json", schem = "a int"}'), r"tables.orders.key.schem: .*did you mean 'schema'\?"),
        (('name = "orders"', ""), "name: must be given"),
        (("[sinks.out]", '[views.v]\nof = "joined"\n[sinks.out]'), "views.v: give filter, columns, or both"),
        (
            ("[sinks.out]", '[aggregates.a]\nof = "joined"\ncolumns.n = "count()"\n[sinks.out]'),
            "aggregates.a: give group_by, window,",
        ),
        (('joiner = ["left', 'emit = "weekly"\njoiner = ["left'), "joins.joined.emit: .*'weekly' is not one of"),
        (
            ('path = "{folder}/out"', 'path = "out"\ntopic = "out"'),
            "sinks.out: give either topic, path, postgres, iceberg or kind",
        ),
        (('path = "{folder}/out"', 'postgres = "postgresql://db/shop"'), "sinks.out: postgres, .* and into, .* go together"),
        (('path = "{folder}/orders"', ""), "tables.orders: give either topic or path"),
        (('version = "lsn"\ndeleted', "deleted"), "tables.orders: files need version"),
        (('name = "orders"', 'name = "${FKJOIN_NOT_SET}"'), "name: the environment has no variable FKJOIN_NOT_SET"),
        (("[sinks.out]", "[sinks.out"), "cannot be read as TOML"),
        (
            ('version = "lsn"\n', 'version = "lsn"\nroots = 1\n'),
            "tables.orders: roots: it is a setting of a topic, and this table is read from files; leave it out",
        ),
        (
            ('version = "lsn"\n', 'version = "lsn"\non_new_topic = "fail"\n'),
            "tables.orders: on_new_topic: it is a setting of a topic",
        ),
        (
            ('path = "{folder}/orders"', 'topic = "o"\nvalue = "string"\nschema = "a int"'),
            "tables.orders: schema: it is a setting of a Delta table or files, and this table is read from a topic",
        ),
        (
            ('path = "{folder}/out"', 'path = "out"\non_error = "skip"'),
            "sinks.out: on_error: it is a setting of a table of PostgreSQL, and this sink writes to Parquet files",
        ),
        (
            ('path = "{folder}/out"', 'path = "out"\nformat = "text"\nretry_s = 5'),
            "sinks.out: retry_s: .*PostgreSQL, Parquet files, an Iceberg table or a Delta table",
        ),
        (
            ('path = "{folder}/out"', 'path = "out"\nevolve = true'),
            "sinks.out: evolve: it is a setting of an Iceberg table or a Delta table, and this sink writes to Parquet files",
        ),
        (
            ('path = "{folder}/out"', 'path = "out"\nformat = "delta"\nretry_s = -1'),
            "sinks.out.retry_s: it must be greater than or equal to 0",
        ),
        (('path = "{folder}/orders"', 'topic = "o"\nroots = 0'), "tables.orders.roots: it must be .* equal to 1"),
        (('joiner = ["left', 'spread = 0\njoiner = ["left'), "joins.joined.spread: it must be .* equal to 1"),
        (
            ('path = "{folder}/out"', 'path = "out"\nformat = "delta"\noptimize_every = 0'),
            "sinks.out.optimize_every: it must be .* equal to 1",
        ),
        (
            ('path = "{folder}/out"', 'path = "out"\nformat = "delta"\nvacuum_every = 0'),
            "sinks.out.vacuum_every: it must be .* equal to 1",
        ),
        (
            ('path = "{folder}/out"', 'postgres = "host=db"\ninto = "it"\non_error = "stop"'),
            "sinks.out.on_error: it must be 'fail', 'dead-letter' or 'skip'",
        ),
    ],
)
def test_a_mistake_in_a_job_file_says_where_and_what_may_stand_there(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    assert change[0] in GOOD
    with pytest.raises(JobError, match=says):
        read_job(job(tmp_path, GOOD.replace(*change, 1)))


def test_mistakes_in_several_sections_are_named_together(tmp_path: Path) -> None:
    text = (
        GOOD.replace("bootstrap_servers", "boostrap_servers").replace('"available-now"', "2").replace('left = "orders"', "", 1)
    )
    with pytest.raises(JobError) as refused:
        read_job(job(tmp_path, text))
    first, *more = str(refused.value).removeprefix(f"{tmp_path}/job.toml: ").splitlines()
    assert first == "kafka.boostrap_servers: there is no such setting; did you mean 'bootstrap_servers'?"
    assert sorted(line.split(":")[0] for line in more) == ["and joins.joined.left", "and trigger"]


OF_FILES, OF_OUT = 'path = "{folder}/orders"', 'path = "{folder}/out"'


@pytest.mark.parametrize(
    ("place", "given", "says"),
    [
        (OF_FILES, "headers = true", "headers: it is a setting of a topic, and this table is read from files"),
        (OF_FILES, "positions = true", "positions: it is a setting of a topic, and this table is read from files"),
        (OF_FILES, 'value = "string"', "value: it is a setting of a topic, and this table is read from files"),
        (OF_OUT, "positions = true", "positions: it is a setting of a topic, and this sink writes to Parquet files"),
        (OF_OUT, 'headers = "h"', "headers: it is a setting of a topic, and this sink writes to Parquet files"),
        (OF_OUT, 'key = "string"', "key: it is a setting of a topic, and this sink writes to Parquet files"),
        (OF_OUT, 'into = "t"', "into: it is a setting of a table of PostgreSQL, and this sink writes to Parquet files"),
        (OF_OUT, 'format = "text"\nretry_s = 5', "retry_s: .*, and this sink writes to files of Spark's own sink"),
        (OF_OUT, 'format = "delta"\npositions = true', "positions: .*, and this sink writes to a Delta table"),
        (OF_OUT, 'format = "text"\npositions = true', "positions: .*, and this sink writes to files of Spark's own sink"),
    ],
)
def test_a_setting_of_another_kind_is_refused(tmp_path: Path, place: str, given: str, says: str) -> None:
    text = GOOD.replace(place, f"{place}\n{given}", 1)
    with pytest.raises(JobError, match=rf"(tables.orders|sinks.out): {says}; leave it out"):
        read_job(job(tmp_path, text))
    read_job(job(tmp_path, GOOD))  # as the message says


@pytest.mark.parametrize(
    ("place", "given"),
    [
        (OF_FILES, f"{OF_FILES}\nheaders = false"),
        (OF_OUT, f"{OF_OUT}\npositions = false\noptions = {{}}"),
        (OF_OUT, f'{OF_OUT}\non_error = "fail"\nretry_s = {RETRY_S}'),
        (OF_OUT, f'{OF_OUT}\nformat = "delta"\npositions = false'),
        (OF_OUT, 'topic = "out"\nformat = "parquet"'),
        (OF_FILES, 'topic = "o"\nvalue = {format = "string", units = {}, unavailable = "problem", registry_settings = {}}'),
    ],
)
def test_a_setting_of_another_kind_that_is_as_by_default_is_left_alone(tmp_path: Path, place: str, given: str) -> None:
    """Templates write them all."""
    assert place in GOOD
    text = GOOD.replace(place, given, 1)
    if "value = " in given:
        text = text.replace('key = "id"', 'key = "string"').replace('extractor = "customer"', 'extractor = "value"')
    read_job(job(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('format = "json"', "this format needs a schema"),
        ('format = "protobuf", registry = "http://r"', "this format needs a schema"),
        ('format = "jsn"', "format: it must be 'string', "),
        ('format = "avro", schema = "a int"', 'format "avro" needs registry'),
        ('format = "protobuf", schema = "a int"', 'format "protobuf" needs registry'),
        ('format = "string", schema = "a int"', 'schema: .* this is format "string"; leave it out'),
        ('format = "debezium", schema = "a int", text = "t"', 'text: .* "json" without a registry, .* format "debezium"'),
        ('format = "json", schema = "a int", source = "b int"', 'source: it is a setting of format "debezium", and'),
        ('format = "json", schema = "a int", unavailable = "keep"', 'unavailable: .* of format "debezium", and'),
        ('format = "json", schema = "a int", subject = "s"', "subject: it is a setting of a format with a registry"),
        ('format = "json", registry = "http://r", schema = "a int", text = "t"', 'text: .* "json" without a registry'),
        ('format = "string", units = {a = "micros"}', 'units: .* this is format "string"; leave it out'),
    ],
)
def test_a_setting_of_another_format_is_refused(tmp_path: Path, given: str, says: str) -> None:
    text = GOOD.replace(OF_FILES, f'topic = "o"\nvalue = {{{given}}}')
    with pytest.raises(JobError, match=f"tables.orders.value[:.] ?{says}"):
        read_job(job(tmp_path, text))


def test_the_schema_tells_editors_what_a_kind_has(tmp_path: Path) -> None:
    """A validator agrees with ``read_job`` on what it is of each kind."""
    validator = Draft202012Validator(json.loads(fkjoin("schema").stdout))
    topic = 'topic = "o"\nvalue = {format = "json", schema = "customer string, a int"}'
    for change, good in (
        ((OF_FILES, OF_FILES), True),
        ((OF_FILES, topic), True),
        ((OF_FILES, topic.replace("json", "avro")), False),
        ((OF_FILES, topic.replace("json", "protobuf")), False),
        ((OF_FILES, topic.replace('json"', 'protobuf", registry = "http://r"')), True),
        ((OF_FILES, f"{topic}\nlog = 'l'"), False),
        ((OF_FILES, f'{topic}\npath = "p"'), False),
        ((OF_FILES, f"{OF_FILES}\nroots = 1"), False),
        ((OF_FILES, f"{OF_FILES}\nheaders = false"), True),
        ((OF_FILES, topic.replace('int"', 'int", unavailable = "problem"')), True),
        ((OF_FILES, topic.replace('int"', 'int", unavailable = "keep"')), False),
        ((OF_OUT, f'{OF_OUT}\npositions = false\noptions = {{}}\non_error = "fail"'), True),
        ((OF_FILES, f'{OF_FILES}\nformat = "fkjoin"'), False),
        (('version = "lsn"', ""), False),
        ((OF_OUT, f"{OF_OUT}\npositions = true"), False),
        ((OF_OUT, f'{OF_OUT}\nformat = "delta"\noptions = {{a = 1}}'), True),
        ((OF_OUT, f'{OF_OUT}\nformat = "delta"\noptimize_every = 1'), True),
        ((OF_OUT, f'{OF_OUT}\nformat = "delta"\noptimize_every = 0'), False),
        ((OF_OUT, 'iceberg = "shop.out"\ncatalog = "lake"\nevolve = true\noptions = {uri = "u"}'), True),
        ((OF_OUT, 'iceberg = "shop.out"\ninto = "out"'), False),
        ((OF_OUT, 'topic = "o"\npositions = true'), True),
        ((OF_OUT, 'postgres = "d"'), False),
    ):
        text = GOOD.replace(*change, 1)
        path = job(tmp_path, text.replace('key = "id"', 'key = "string"') if topic[:11] in text else text)
        assert validator.is_valid(tomllib.loads(path.read_text())) == good, change
        with contextlib.nullcontext() if good else pytest.raises(JobError):
            read_job(path)


def test_variables_of_the_environment_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKJOIN_NAME", "night")
    assert read_job(job(tmp_path, GOOD.replace('"orders"', '"${FKJOIN_NAME}-job"', 1))).name == "night-job"


def test_formats_of_a_job_file(tmp_path: Path) -> None:
    text = GOOD.replace('path = "{folder}/orders"', 'topic = "o"\nvalue = {format = "debezium", schema = "customer int"}', 1)
    text = text.replace('key = "id"', 'key = "string"')
    spec = read_job(job(tmp_path, text)).tables["orders"]
    assert isinstance(spec.value, FormatSection)
    assert spec.value.build("value") == Debezium("customer int")

    def built(format: str, **given: Any) -> Any:
        columns = {} if format in ("string", "bytes") else {"schema": "a int"}
        return FormatSection.model_validate({"format": format, **columns, **given}).build("value")

    made = [built("string"), built("bytes", name="n"), built("json")]
    assert made == [String("value"), Bytes("n"), Json("a int")]
    assert built("json", text="whole") == Json("a int", text="whole")
    units = {"a": "micros"}
    assert built("json", units=units) == Json("a int", units=units)
    lacking = built("debezium", units=units, unavailable="keep", placeholder="?")
    assert lacking == Debezium("a int", units=units, placeholder="?", unavailable="keep")
    assert built("debezium", source="lsn bigint") == Debezium("a int", source="lsn bigint")
    found = built("avro", registry="http://r", registry_settings={"max.retries": 1})
    assert found == Registry("avro", "a int", "http://r", (("max.retries", 1),))
    assert built("protobuf", registry="http://r") == Registry("protobuf", "a int", "http://r")
    assert built("json", registry="http://r", units=units, retry_s=5) == Registry(
        "json", "a int", "http://r", units=units, retry_s=5
    )
    inner = Registry("avro", url="http://r", settings=(("max.retries", 1),))
    assert built("debezium", registry="http://r", registry_settings={"max.retries": 1}) == Debezium("a int", inner=inner)


def test_options_are_checked_and_secrets_are_not_shown() -> None:
    given = {"kafka.sasl.jaas.config": "password=p", "kafka.SSL.Keystore.Key": "q", "maxOffsetsPerTrigger": 5}
    assert masked(source_options(given)) == {
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "kafka.sasl.jaas.config": "***",
        "kafka.ssl.keystore.key": "***",
        "maxOffsetsPerTrigger": "5",
    }
    for wrong, says in (
        ({"maxOffsetPerTrigger": 1}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"subscribe": "x"}, "subscribe is set by fkjoin"),
    ):
        with pytest.raises(Exception, match=says):
            source_options(wrong)
    with pytest.raises(Exception, match="not a setting of the producer"):
        sink_options({"linger.ms": 1})


def test_brokers_may_be_gone_for_more_than_a_minute_or_for_as_long_as_one_says() -> None:
    """The last of these is also how long a task waits for where a partition is."""
    limits = "kafka.max.block.ms", "kafka.delivery.timeout.ms", "kafka.default.api.timeout.ms"
    chosen = {**sink_options({}), **with_fetching(source_options({}))}
    assert [int(chosen[name]) for name in limits] == [120_000] * 3
    longer = dict.fromkeys(limits, 600_000)
    chosen = {**with_fetching(source_options(longer)), **sink_options(longer)}
    assert [int(chosen[name]) for name in limits] == [600_000] * 3


def test_an_option_in_another_spelling_takes_the_place_of_the_default() -> None:
    """Spark reads its own options in any spelling."""
    options = source_options({"startingoffsets": "latest"})
    assert {name: value for name, value in options.items() if name.lower() == "startingoffsets"} == {
        "startingOffsets": "latest"
    }


def test_records_of_aborted_transactions_are_read_only_by_those_that_ask_for_them() -> None:
    isolation, uncommitted = "kafka.isolation.level", {"kafka.Isolation.Level": "read_uncommitted"}
    assert with_fetching(source_options({}))[isolation] == "read_committed"
    assert with_fetching(source_options(uncommitted))[isolation] == "read_uncommitted"
    assert producer_options({"kafka.acks": "all", **source_options({})}) == {"kafka.acks": "all"}, "no producer knows it"


def test_an_aggregates_column_is_read_from_its_text() -> None:
    assert wanted_of("n", "count()") == wanted_of("n", " COUNT( * ) ") == agg.count()
    assert wanted_of("n", "sum(left.a + (b))") == agg.sum("left.a + (b)")
    assert wanted_of("n", "max_by(struct(a, b), left.c, 3)") == agg.max_by("struct(a, b)", "left.c", 3)
    assert wanted_of("n", "min_by(a, b)") == agg.min_by("a", "b")
    assert wanted_of("n", "string_agg(concat(a, ', ('), ', ')") == agg.string_agg("concat(a, ', (')", ", ")
    assert wanted_of("n", "count_distinct(lower(a))") == agg.count_distinct("lower(a)")
    for one in (
        agg.collect_list("a", order_by=["lower(b)", "c"], descending=True),
        agg.string_agg("a", " - ", order_by="b"),
        agg.collect_set("coalesce(a, 'x')"),
        agg.max_by("a", "b", 2),
    ):
        assert wanted_of("n", str(one)) == one, "describe() shows what a job file may have"
    wrong = (
        "max_by(a)",
        "max_by(a, b, c)",
        "max_by(a, b, 0)",
        "string_agg(a, b)",
        "sum(a) within group (order by b)",
        "min_by(a, b, 1, 2)",
    )
    for text in ("median(x)", "sum()", "count", "sum(x) + 1", *wrong):
        with pytest.raises(JobError, match=r"columns.n: .* is none of count\(\), count\(COLUMN\), sum\(COLUMN\)"):
            wanted_of("n", text)


TOGETHER = """
[merges.everybody]
of = ["customers", "others"]
[tables.others]
path = "{folder}/customers"
schema = "customer string, name string, lsn bigint"
format = "json"
key = "customer"
version = "lsn"
[aggregates.amounts]
of = "orders"
group_by = "customer"
columns = { most = "max(amount)" }
[aggregates.names]
of = "everybody"
group_by = "customer"
columns = { names = "count()" }
having = "names > 1"
[cogroups.both]
of = ["amounts", "names"]
[flat_maps.words]
of = "everybody"
rows = "split(name, ' ')"
key = ["customer", "col"]
[flat_maps.by_name]
of = "words"
key = "col as word"
[joins.named]
left = "everybody"
right = "names"
how = "outer"
joiner = ["left.name", "right.names"]
materialize = true
[children.families]
left = "orders"
right = "everybody"
extractor = "customer"
column = "orders"
[events.clicks]
path = "{folder}/customers"
schema = "customer string"
select = ["customer as buyer", "1 as one"]
[enrichments.seen]
table = "names"
events = "clicks"
on = "buyer"
[enrichments.again]
table = "everybody"
events = "seen"
on = ["buyer"]
how = "left"
[sinks.again]
table = "again"
path = "{folder}/again"
[sinks.named]
table = "named"
path = "{folder}/named"
[sinks.families]
table = "families"
path = "{folder}/families"
[sinks.words]
table = "by_name"
path = "{folder}/words"
[sinks.both]
table = "both"
path = "{folder}/both"
"""


@pytest.mark.parametrize("kafka", [True, False])
def test_a_job_file_asks_for_the_connector_and_the_schema_shows_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: bool
) -> None:
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(runner, "session", lambda *given, **more: asked.append((given, more)))
    job_session(read_job(job(tmp_path, GOOD.replace("[spark]\n", "[spark]\nkafka = true\n") if kafka else GOOD)))
    (((name, master, settings), more),) = asked
    assert (name, master, more) == ("orders", "local[2]", {"kafka": kafka})
    assert settings["spark.ui.enabled"] is False
    assert {"kafka", "spark.master"}.isdisjoint(settings)
    assert json_schema()["$defs"]["SparkSection"]["properties"]["kafka"]["type"] == "boolean"


def built(spark: SparkSession, tmp_path: Path, text: str) -> Job:
    """The job as ``fkjoin describe`` and ``fkjoin run`` have it; its settings of Spark are those of the tests."""
    small(spark, tmp_path)
    return Job(read_job(job(tmp_path, text)), spark)


def test_a_job_puts_tables_together(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "orders", "1", [{"id": 1, "customer": "c", "amount": 1, "lsn": 1, "op": "u"}])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    shown = built(spark, tmp_path, GOOD + TOGETHER).describe()
    assert "merge everybody  (on-change)\n  first        customers\n  then         others\n" in shown
    assert "cogroup both  (on-change)\n  of           amounts\n  of           names\n" in shown
    assert "flat_map words  (on-change)\n  of           everybody\n  rows         split(name, ' ')\n" in shown
    assert "rekey by_name  (on-change)\n  of           words\n  key          col as word\n" in shown
    assert "join named  (outer)\n  left         everybody\n  right        names\n" in shown
    assert "  by key       customer = names(customer)\n  joiner       left.name, right.names\n" in shown
    assert "store named-pair, materialized as named" in shown
    assert "  having       names > 1\n" in shown
    assert (
        "enrich seen  (inner)\n  events       clicks\n  table        names\n  on           buyer = names(customer)\n" in shown
    )
    assert "enrich again  (left)\n  events       seen\n  table        everybody\n" in shown
    assert "source clicks  (events)\n" in shown
    assert "children families  (on-change)\n" in shown
    for change, says in (
        (
            ('how = "outer"\n', 'deployment = "staged"\n'),
            r"joins\.named: deployment: it is a setting of a join by foreign key, and this is a",
        ),
        (
            ('how = "outer"\n', 'how = "outer"\nextractor = "customer"\n'),
            r"joins\.named\.how: .outer. is of joins",
        ),
        (('key = "col as word"\n', ""), r"flat_maps\.by_name\.key: must be given"),
        (('events = "seen"', 'events = "sen"'), r"enrichments\.again\.events: there are no events 'sen'; did you mean 'seen'"),
        (('table = "everybody"', 'table = "seen"'), r"enrichments\.again\.table: there is no table or join 'seen'"),
        (('schema = "customer string"\nselect', "select"), r"events\.clicks: files of events need a schema"),
        (('"1 as one"', '"on as one"'), r"^events\.clicks\.select: "),
        (("[events.clicks]", "[events.names]"), r"events\.names: a table has this name already; choose another"),
        (('"names"]', '"name"]'), r"cogroups\.both\.of\.1: there is no table or join 'name'; did you mean 'names'"),
        (('of = ["amounts", "names"]', 'of = ["amounts"]'), r"cogroups\.both\.of: 2 or more are needed"),
    ):
        with pytest.raises(JobError, match=says):
            built(spark, tmp_path, GOOD + TOGETHER.replace(*change))


def test_a_sinks_topic_is_asked_for_with_the_sinks_own_options(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("fkjoin.jobs.job.require_topic", lambda topic, _, options: asked.update({topic: options}))
    write_lines(tmp_path / "orders", "1", [{"id": 1, "customer": "c", "amount": 1, "lsn": 1, "op": "u"}])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    login = 'topic = "out"\noptions = {"kafka.client.id" = "sink"}'
    shared = 'options = {"kafka.client.id" = "all", "kafka.client.rack" = "r"}\n'
    built(spark, tmp_path, GOOD.replace(OF_OUT, login) + shared + '[dead_letters]\ntopic = "dead"\n')
    told = {topic: (options["kafka.client.id"], options["kafka.client.rack"]) for topic, options in asked.items()}
    assert told == {"out": ("sink", "r"), "dead": ("all", "r")}


def test_what_a_job_is_made_of_must_be_there(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "orders", "1", [{"id": 1, "customer": "c", "amount": 1, "lsn": 1, "op": "u"}])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    for text, says in (
        (
            SUMMED_UP.replace('of = "joined"', 'of = "totals"'),
            "these read each other in a circle: aggregates.totals, views.large",
        ),
        ('[sinks.more]\ntable = "totls"\npath = "out"\n', r"sinks\.more\.table: there is no table or join 'totls'"),
    ):
        with pytest.raises(JobError, match=says):
            built(spark, tmp_path, GOOD + text)
    whole = built(spark, tmp_path, GOOD + SUMMED_UP)
    assert whole.describe().count("sinks-share-a-query fired") == 3
    shown = whole.describe("mermaid")
    assert shown.startswith('flowchart LR\n  n0[/"source orders, Sub-topology: 0"/]\n')
    assert shown.count('"sink ') == 4


SUMMED_UP = """
[views.large]
of = "joined"
filter = "amount >= 2"
columns = ["name", "amount * 2 as twice"]
[aggregates.totals]
of = "large"
group_by = "name"
columns = { n = "count()", twice = "sum(twice)" }
[sinks.totals]
table = "totals"
path = "{folder}/totals"
[sinks.delta]
table = "totals"
path = "{folder}/delta"
format = "delta"
[sinks.lake]
table = "totals"
iceberg = "shop.totals"
options = {uri = "sqlite:///{folder}/catalog.db", warehouse = "file://{folder}/lake"}
"""


def test_a_job_runs_is_checked_and_its_checkpoint_is_bound_to_it(
    tmp_path: Path, fkjoin_here: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    orders = [{"id": number, "customer": "c", "amount": number, "lsn": number, "op": "u"} for number in range(5)]
    write_lines(tmp_path / "orders", "1", [*orders, {"id": 0, "customer": "c", "amount": 0, "lsn": 9, "op": "d"}])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    fkjoin_here("run", job(tmp_path, GOOD + SUMMED_UP))
    assert capfd.readouterr().err == ""
    lines = [json.loads(line) for line in (tmp_path / "job.log").read_text().splitlines()]
    done = {line["query"]: line for line in lines}
    sinks = ("sink-out", "sinks-totals")
    assert {name: (line["batch"], line["inputs"]) for name, line in done.items()} == dict.fromkeys(sinks, (0, 7))
    assert [(one["name"], one["n"]) for one in DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()] == [("Ada", 3)]
    lake = load_catalog("default", uri=f"sqlite:///{tmp_path}/catalog.db").load_table("shop.totals").scan().to_arrow()
    assert [(one["name"], one["n"]) for one in lake.to_pylist()] == [("Ada", 3)]
    assert done["sink-out"]["counters"]["joined"]["out"] == 4
    assert done["sinks-totals"]["counters"]["totals"]["out"] == 1
    about = done["sink-out"]
    assert about["totals"] == about["counters"], "of one batch"
    assert about["rates"]["joined"]["out"] == round(4 / about["seconds"], 1)
    assert list((tmp_path / "out").glob("batch=00000000-*/*.parquet"))
    (totals,) = (tmp_path / "totals").glob("batch=00000000-*/*.parquet")
    (row,) = pq.read_table(totals).to_pylist()
    assert (row["name"], row["n"], row["twice"], row["_operation"]) == ("Ada", 3, 18, "insert")

    says = r'was made with aggregate totals: columns = \["n = count\(\)", "twice = sum\(twice\)"\], the job now has'
    with pytest.raises(JobError, match=says):
        fkjoin_here("run", job(tmp_path, (GOOD + SUMMED_UP).replace("sum(twice)", "max(twice)")), "--check")
    says = r'was made with join joined: extractor = "customer", the job now has "upper\(customer\)"'
    with pytest.raises(JobError, match=says):
        fkjoin_here("run", job(tmp_path, GOOD.replace('extractor = "customer"', 'extractor = "upper(customer)"')), "--check")
    assert "fine" in fkjoin_here("run", job(tmp_path, GOOD + SUMMED_UP), "--check"), "as it was"
    with pytest.raises(FkJoinError, match="made by another job"):
        fkjoin_here("run", job(tmp_path, GOOD.replace("joined", "renamed")), "--check")
    anew = GOOD.replace('extractor = "customer"', 'extractor = "upper(customer)"')
    for place in ("checkpoint", "out"):
        anew = anew.replace(f"{{folder}}/{place}", f"{{folder}}/anew-{place}")
    assert "fine" in fkjoin_here("run", job(tmp_path, anew), "--check")

    shown = fkjoin_here("describe", job(tmp_path, GOOD + SUMMED_UP), "--as-written", "--format", "json")
    assert [step["name"] for step in json.loads(shown) if step["kind"] == "sink"] == ["out", "totals", "delta", "lake"]
    assert shown.count("did not fire: spark.fkjoin.optimize is false") == 6, "of aggregate, joiner and sinks"

    wrong = job(tmp_path, GOOD.replace('right = "customers"', 'right = "custmers"'))
    with pytest.raises(JobError, match=r"joins.joined.right: there is no table or join 'custmers'; did you mean 'customers'\?"):
        fkjoin_here("run", wrong, "--check")


PAID = """
[joins.paid]
left = "joined"
right = "customers"
extractor = "payer"
joiner = ["left.amount", "left.name", "right.name as payer"]
"""


def test_a_checkpoint_goes_on_with_the_rules_that_it_was_begun_with(tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    """A release with more rules does not refuse what an older one has begun."""
    text = GOOD.replace('["left.amount", "right.name"]', '["left.amount", "left.payer", "right.name"]')
    text = text.replace("[sinks.out]", f"{PAID}[sinks.out]").replace('table = "joined"', 'table = "paid"')
    later = "joins-share-stages, workers-evaluate-steps"
    without = text.replace("[tables.orders]", f'"spark.fkjoin.optimizer.excludedRules" = "{later}"\n[tables.orders]')
    order = {"id": 1, "customer": "c", "payer": "d", "amount": 7, "lsn": 1, "op": "u"}
    write_lines(tmp_path / "orders", "1", [order])
    write_lines(tmp_path / "customers", "1", [{"customer": one, "name": name, "lsn": 1} for one, name in ("xA", "yB")])
    fkjoin_here("run", job(tmp_path, without))

    document = tmp_path / "checkpoint" / DOCUMENT
    rules = json.loads(document.read_text())["job"]["rules"]
    assert "join-reads-answers" in rules
    assert not set(later.split(", ")) & set(rules)
    assert "sinks-share-a-query" not in rules, "it moves no state, so that later sinks may share a query"
    write_lines(tmp_path / "customers", "2", [{"customer": one, "name": "X", "lsn": 2} for one in "cd"])
    said = fkjoin_here("run", job(tmp_path, text))
    assert f"{tmp_path}/checkpoint was begun without {later}: so it goes on" in said
    (made,) = (tmp_path / "out").glob("batch=00000001-*/*.parquet")
    (row,) = pq.read_table(made).to_pylist()
    assert (row["id"], row["amount"], row["name"], row["payer"]) == (1, 7, "X", "X")
    assert json.loads(document.read_text())["job"]["rules"] == rules

    off = text.replace("[tables.orders]", '"spark.fkjoin.optimize" = false\n[tables.orders]')
    write_lines(tmp_path / "customers", "3", [{"customer": "c", "name": "Y", "lsn": 3}])
    says = r"was made by another job: its operators .*excludedRules\); start this version of the job with a new checkpoint"
    with pytest.raises(FkJoinError, match=says):
        fkjoin_here("run", job(tmp_path, off))
