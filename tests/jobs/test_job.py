"""Job files: what is said of mistakes, and a job on files from start to end through the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from fkjoin import aggregates as agg
from fkjoin.errors import FkJoinError
from fkjoin.jobs import runner
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_operators import wanted_of
from fkjoin.jobs.job_sections import FormatSection
from fkjoin.jobs.runner import job_session
from fkjoin.kafka import Bytes, Debezium, Json, Registry, String
from fkjoin.kafka.options import masked, producer_options, sink_options, source_options, with_fetching
from tests.support.job_files import GOOD, PLAIN, job, write_rows
from tests.support.queries import write_lines
from tests.support.sessions import small


def test_mistakes_in_several_sections_are_named_together(tmp_path: Path) -> None:
    text = GOOD.replace("bootstrap_servers", "boostrap_servers").replace('"available-now"', "2")
    text = text.replace('left = "orders"', "", 1)
    with pytest.raises(JobError) as refused:
        read_job(job(tmp_path, text))
    first, *more = str(refused.value).removeprefix(f"{tmp_path}/job.toml: ").splitlines()
    assert first == "kafka.boostrap_servers: there is no such setting; did you mean 'bootstrap_servers'?"
    assert sorted(line.split(":")[0] for line in more) == ["and joins.joined.left", "and trigger"]


def test_formats_of_a_job_file() -> None:
    def built(format: str, **given: Any) -> Any:
        columns = {} if format in ("string", "bytes") else {"schema": "a int"}
        return FormatSection.model_validate({"format": format, **columns, **given}).build("value")

    units, registry = {"a": "micros"}, {"registry": "http://r"}
    settings = {"registry_settings": {"max.retries": 1}}
    given = (("max.retries", 1),)
    assert [built("string"), built("bytes", name="n")] == [String("value"), Bytes("n")]
    assert built("json", text="whole", units=units) == Json("a int", text="whole", units=units)
    lacking = built("debezium", units=units, unavailable="keep", placeholder="?", source="lsn bigint")
    assert lacking == Debezium("a int", units=units, placeholder="?", unavailable="keep", source="lsn bigint")
    assert built("avro", **registry, **settings) == Registry("avro", "a int", "http://r", given)
    assert built("protobuf", **registry) == Registry("protobuf", "a int", "http://r")
    by_registry = Registry("json", "a int", "http://r", units=units, retry_s=5)
    assert built("json", **registry, units=units, retry_s=5) == by_registry
    inner = Registry("avro", url="http://r", settings=given)
    assert built("debezium", **registry, **settings) == Debezium("a int", inner=inner)


def test_options_are_checked_and_secrets_are_not_shown() -> None:
    """Spark reads its own options in any spelling; brokers may be gone for two minutes, or for as long as one says."""
    given = {"kafka.sasl.jaas.config": "password=p", "kafka.SSL.Keystore.Key": "q", "maxOffsetsPerTrigger": 5}
    assert masked(source_options({**given, "startingoffsets": "latest"})) == {
        "startingOffsets": "latest",
        "kafka.isolation.level": "read_committed",
        "kafka.sasl.jaas.config": "***",
        "kafka.ssl.keystore.key": "***",
        "maxOffsetsPerTrigger": "5",
    }
    with pytest.raises(Exception, match="did you mean 'maxOffsetsPerTrigger'"):
        source_options({"maxOffsetPerTrigger": 1})
    with pytest.raises(Exception, match="not a setting of the producer"):
        sink_options({"linger.ms": 1})
    limits = "kafka.max.block.ms", "kafka.delivery.timeout.ms", "kafka.default.api.timeout.ms"
    for given, ms in (({}, 120_000), (dict.fromkeys(limits, 600_000), 600_000)):
        chosen = {**with_fetching(source_options(given)), **sink_options(given)}
        assert [int(chosen[name]) for name in limits] == [ms] * 3
    uncommitted = {"kafka.Isolation.Level": "read_uncommitted"}
    assert with_fetching(source_options(uncommitted))["kafka.isolation.level"] == "read_uncommitted"
    assert producer_options({"kafka.acks": "all", **source_options({})}) == {"kafka.acks": "all"}, "no producer knows it"


def test_an_aggregates_column_is_read_from_its_text() -> None:
    assert wanted_of("n", "count()") == wanted_of("n", " COUNT( * ) ") == agg.count()
    assert wanted_of("n", "sum(left.a + (b))") == agg.sum("left.a + (b)")
    assert wanted_of("n", "max_by(struct(a, b), left.c, 3)") == agg.max_by("struct(a, b)", "left.c", 3)
    assert wanted_of("n", "min_by(a, b)") == agg.min_by("a", "b")
    assert wanted_of("n", "string_agg(concat(a, ', ('), ', ')") == agg.string_agg("concat(a, ', (')", ", ")
    assert wanted_of("n", "count_distinct(lower(a))") == agg.count_distinct("lower(a)")
    ordered = agg.collect_list("a", order_by=["lower(b)", "c"], descending=True)
    for one in (ordered, agg.string_agg("a", " - ", order_by="b"), agg.collect_set("coalesce(a, 'x')")):
        assert wanted_of("n", str(one)) == one, "describe() shows what a job file may have"
    wrong = ("max_by(a)", "max_by(a, b, c)", "max_by(a, b, 0)", "min_by(a, b, 1, 2)", "string_agg(a, b)")
    for text in ("median(x)", "sum()", "count", "sum(x) + 1", "sum(a) within group (order by b)", *wrong):
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
[flat_maps]
words = {of = "everybody", rows = "split(name, ' ')", key = ["customer", "col"]}
by_name = {of = "words", key = "col as word"}
[joins.named]
left = "everybody"
right = "names"
how = "outer"
joiner = ["left.name", "right.names"]
materialize = true
[children]
families = {left = "orders", right = "everybody", extractor = "customer", column = "orders"}
[events.clicks]
path = "{folder}/customers"
schema = "customer string"
select = ["customer as buyer", "1 as one"]
[enrichments]
seen = {table = "names", events = "clicks", on = "buyer"}
again = {table = "everybody", events = "seen", on = ["buyer"], how = "left"}
[sinks]
again = {table = "again", path = "{folder}/again"}
named = {table = "named", path = "{folder}/named"}
families = {table = "families", path = "{folder}/families"}
words = {table = "by_name", path = "{folder}/words"}
both = {table = "both", path = "{folder}/both"}
"""


def test_a_job_file_asks_for_the_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "session", lambda *arguments, **more: (*arguments, more))
    with_kafka = GOOD.replace("[spark]\n", "[spark]\nkafka = true\n")
    for text, kafka in ((GOOD, False), (with_kafka, True)):
        session: Any = job_session(read_job(job(tmp_path, text)))
        name, master, settings, more = session
        assert (name, master, more) == ("orders", "local[2]", {"kafka": kafka})
        assert settings["spark.ui.enabled"] is False
        assert {"kafka", "spark.master"}.isdisjoint(settings)


WRONG_TOGETHER = [
    (('how = "outer"', 'deployment = "staged"'), r"joins\.named: deployment: it is a setting of"),
    ((', key = "col as word"', ""), r"flat_maps\.by_name\.key: must be given"),
    (('events = "seen"', 'events = "sen"'), r"enrichments\.again\.events: there are no events 'sen'; did you mean 'seen'"),
    (('table = "everybody"', 'table = "seen"'), r"enrichments\.again\.table: there is no table or join 'seen'"),
    (('schema = "customer string"\nselect', "select"), r"events\.clicks: files of events need a schema"),
    (("[events.clicks]", "[events.names]"), r"events\.names: a table has this name already; choose another"),
    (('"names"]', '"name"]'), r"cogroups\.both\.of\.1: there is no table or join 'name'; did you mean 'names'"),
    (('of = ["amounts", "names"]', 'of = ["amounts"]'), r"cogroups\.both\.of: 2 or more are needed"),
    (('of = "joined"', 'of = "totals"'), "tables and operators read each other in a circle: aggregates.totals, views.large"),
]
"""Mistakes that are found without Spark."""


def test_mistakes_between_tables_are_found_without_spark(tmp_path: Path) -> None:
    for change, says in WRONG_TOGETHER:
        with pytest.raises(JobError, match=says):
            read_job(job(tmp_path, GOOD + (TOGETHER + SUMMED_UP).replace(*change)))


def test_a_job_puts_tables_together(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is built as ``fkjoin describe`` builds it, with the settings of Spark of the tests.

    Other operators, and sinks that share a query: the jobs of tests/golden/plans.
    """
    small(spark, tmp_path)
    write_rows(tmp_path)

    def built(text: str) -> Job:
        return Job(read_job(job(tmp_path, text)), spark)

    shown = built(PLAIN + TOGETHER).describe()
    for step in (
        "flat_map words  (on-change)\n  of           everybody\n  rows         split(name, ' ')\n",
        "rekey by_name  (on-change)\n  of           words\n  key          col as word\n",
        "join named  (outer)\n  left         everybody\n  right        names\n",
        "  by key       customer = names(customer)\n  joiner       left.name, right.names\n",
        "store named-pair, materialized as named",
        "  having       names > 1\n",
        "enrich again  (left)\n  events       seen\n  table        everybody\n",
        "children families  (on-change)\n",
    ):
        assert step in shown
    for change, says in (
        (('how = "outer"\n', 'how = "outer"\nextractor = "customer"\n'), r"joins\.named\.how: .outer. is only for joins"),
        (('"1 as one"', '"on as one"'), r"^events\.clicks\.select: "),
    ):
        with pytest.raises(JobError, match=says):
            built(PLAIN + TOGETHER.replace(*change))
    asked: dict[str, Any] = {}
    monkeypatch.setattr("fkjoin.jobs.job.require_topic", lambda topic, _, options: asked.update({topic: options}))
    login = 'topic = "out"\noptions = {"kafka.client.id" = "sink"}'
    shared = 'options = {"kafka.client.id" = "all", "kafka.client.rack" = "r"}\n'
    built(PLAIN.replace('path = "{folder}/out"', login) + shared + '[dead_letters]\ntopic = "dead"\n')
    told = {topic: (options["kafka.client.id"], options["kafka.client.rack"]) for topic, options in asked.items()}
    assert told == {"out": ("sink", "r"), "dead": ("all", "r")}, "each topic with its own options"


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


def test_a_job_runs_and_is_checked(tmp_path: Path, fkjoin_here: Callable[..., str], capfd: pytest.CaptureFixture[str]) -> None:
    orders = [{"id": number, "customer": "c", "amount": number, "lsn": number, "op": "u"} for number in range(5)]
    write_lines(tmp_path / "orders", "1", [*orders, {"id": 0, "customer": "c", "amount": 0, "lsn": 9, "op": "d"}])
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    text = (GOOD + SUMMED_UP).replace("[spark]\n", '[spark]\n"spark.fkjoin.buckets" = 1\n')
    printed = fkjoin_here("run", job(tmp_path, text)).splitlines()
    assert capfd.readouterr().err == ""
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in printed)
    news = [line[20:] for line in printed]
    assert news[:3] == [
        "starting Spark at local[2]",
        "looking at tables orders, customers",
        f"looking at checkpoint {tmp_path}/checkpoint: a new one",
    ]
    assert {"sink-out: starts", "sink-out: 1 batch, 7 rows read"} <= set(news)
    assert news[-1].startswith("orders has read all that was there in ")
    lines = [json.loads(line) for line in (tmp_path / "job.log").read_text().splitlines()]
    done = {line["query"]: line for line in lines}
    figures = {name: (line["batch"], line["inputs"]) for name, line in done.items()}
    assert figures == {"sink-out": (0, 7), "sinks-totals": (0, 7)}
    assert [(one["name"], one["n"]) for one in DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()] == [("Ada", 3)]
    lake = load_catalog("default", uri=f"sqlite:///{tmp_path}/catalog.db").load_table("shop.totals").scan().to_arrow()
    assert [(one["name"], one["n"]) for one in lake.to_pylist()] == [("Ada", 3)]
    assert done["sink-out"]["counters"]["joined"]["out"] == 4
    assert list((tmp_path / "out").glob("batch=00000000-*/*.parquet"))
    (totals,) = (tmp_path / "totals").glob("batch=00000000-*/*.parquet")
    (row,) = pq.read_table(totals).to_pylist()
    assert (row["name"], row["n"], row["twice"], row["_operation"]) == ("Ada", 3, 18, "insert")

    says = r'columns was \["twice = sum\(twice\): int64"\] and is now \["twice = max\(twice\): int64"\]'
    with pytest.raises(FkJoinError, match=says):
        fkjoin_here("run", job(tmp_path, text.replace("sum(twice)", "max(twice)")), "--check")
    anew = GOOD.replace('extractor = "customer"', 'extractor = "upper(customer)"')
    for place in ("checkpoint", "out"):
        anew = anew.replace(f"{{folder}}/{place}", f"{{folder}}/anew-{place}")
    assert "fine" in fkjoin_here("run", job(tmp_path, anew), "--check")

    shown = fkjoin_here("describe", job(tmp_path, GOOD + SUMMED_UP), "--as-written", "--format", "json")
    assert [step["name"] for step in json.loads(shown) if step["kind"] == "sink"] == ["out", "totals", "delta", "lake"]
    assert shown.count("did not fire: spark.fkjoin.optimize is false") == 6, "of aggregate, joiner and sinks"
