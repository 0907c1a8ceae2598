"""Settings before a query runs: sessions, triggers, and how often tables ask Spark."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import fkjoin
from fkjoin import SessionError, Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.analysis.columns import resolve_column
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.sessions.settings import (
    _AT_START,
    _DEFAULTS,
    _REQUIRED,
    BUCKETS,
    CHECKPOINT_FORMAT,
    PROVIDER,
    SHORT_LIVED,
    bucket_count,
    prepare,
)
from fkjoin.sinks import Parquet
from fkjoin.spark.frame import ROW
from fkjoin.spark.schemas import struct_column
from fkjoin.spark.trigger import arguments_of, interval_ms
from tests.support.job_files import GOOD
from tests.support.orders import tables

Sides = tuple[Table, Table]


@pytest.fixture(scope="module")
def sides(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return tables(spark, tmp_path_factory.mktemp("sides"))


@pytest.fixture
def orders(sides: Sides) -> Table:
    return sides[0]


def test_a_session_with_the_wrong_state_store_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with pytest.raises(SessionError, match=r"providerClass is '.*HDFS.*', fkjoin needs '.*RocksDB.*Remove or change"):
        prepare(other)
    other.conf.set(PROVIDER, spark.conf.get(PROVIDER))
    other.conf.set(CHECKPOINT_FORMAT, "1")
    with pytest.raises(SessionError, match="checkpointFormatVersion is '1', fkjoin needs '2'"):
        prepare(other)
    other.conf.set(CHECKPOINT_FORMAT, "2")
    prepare(other)
    other.conf.set(BUCKETS, "many")
    with pytest.raises(SessionError, match=r"spark\.fkjoin\.buckets is 'many': it must be a whole number"):
        bucket_count(other)


@pytest.mark.spark
def test_short_lived_sessions_have_room_for_compiled_code() -> None:
    """A JVM without its optimizing compiler reserves a fifth of it, and ends when that is full."""

    def room(*options: str) -> str:
        shown = subprocess.run(
            ["java", *options, "-XX:+PrintFlagsFinal", "-version"], capture_output=True, text=True, check=True
        )
        (line,) = (line for line in shown.stdout.splitlines() if " ReservedCodeCacheSize " in line)
        return line.split()[3]

    assert room(*SHORT_LIVED.split()) == room()


def test_workers_have_settings_for_their_memory_unless_the_user_has_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"tunables": [os.environ["GLIBC_TUNABLES"]], "pool": [pa.default_memory_pool().backend_name]})

    def of_a_worker() -> tuple[str, ...]:
        (row,) = spark.range(1, numPartitions=1).mapInArrow(told, "tunables string, pool string").collect()
        return tuple(row)

    tunables, pool = of_a_worker()
    assert ("glibc.malloc.mmap_threshold=4194304" in tunables, pool) == (True, "system")
    monkeypatch.setitem(spark.sparkContext.environment, "GLIBC_TUNABLES", "glibc.malloc.arena_max=3")
    prepare(spark)
    assert of_a_worker() == ("glibc.malloc.arena_max=3", "system")


def test_a_plain_session_is_completed_and_what_it_has_stays(spark: SparkSession) -> None:
    """A session that is there takes all settings that complete it; Spark refuses those of ``_AT_START`` then."""
    other = spark.newSession()
    prepare(other)
    assert other.conf.get(CHECKPOINT_FORMAT) == "2"
    assert int(other.conf.get("spark.sql.shuffle.partitions") or 0) == 2
    for name, ours, theirs in (
        ("spark.sql.streaming.pollingDelay", "50ms", "1s"),
        ("spark.sql.execution.arrow.maxBytesPerBatch", "2m", "64m"),
    ):
        other.conf.unset(name)
        prepare(other)
        assert other.conf.get(name) == ours
        other.conf.set(name, theirs)
        prepare(other)
        assert other.conf.get(name) == theirs
    for name, value in {**_DEFAULTS, **{name: value for name, (value, _) in _REQUIRED.items()}}.items():
        other.conf.set(name, value)
    for name, value in _AT_START.items():
        with pytest.raises(AnalysisException, match="STATIC_CONFIG|CANNOT_MODIFY_CONFIG"):
            other.conf.set(name, value)


@pytest.mark.parametrize(
    ("master", "conf", "compressed"),
    [("local[2]", {}, "false"), ("local[2]", {"shuffle_compress": True}, "true"), ("spark://elsewhere:7077", {}, None)],
)
def test_what_workers_have_compressed_is_not_compressed_again_where_it_does_not_travel(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, master: str, conf: dict[str, Any], compressed: str | None
) -> None:
    builder = MagicMock()
    builder.config.return_value.getOrCreate.return_value = spark
    monkeypatch.setattr(SparkSession, "builder", builder)
    assert fkjoin.session("told", master=master, **conf) is spark
    told = builder.config.call_args.kwargs["map"]
    assert told["spark.master"] == master
    assert told.get("spark.shuffle.compress") == compressed


def test_a_field_of_a_column_is_suggested_with_its_column(spark: SparkSession) -> None:
    """An event's LSN is in its ``source`` block, whatever columns have like names."""
    frame = spark.createDataFrame([], "id string, lsm bigint, source struct<lsn: bigint>")
    with pytest.raises(TopologyError, match=r"version: orders has no column 'lsn'; did you mean 'source\.lsn'\? It has: id, "):
        resolve_column("version", "lsn", frame, frame.columns, "orders")


AT = "element_at(array(%s), 4711)"
"""An expression that may throw; its number tells it from others."""


def test_each_expression_is_analyzed_once(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each analysis is a call of the JVM, or of a server; each expression has a number."""
    orders, customers = sides
    analyzed: list[str] = []
    of_frames = type(orders.changes)

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(frame: Any, *expressions: Any) -> Any:
            analyzed.extend(map(str, expressions))
            return method(frame, *expressions)

        return counted

    amount, joiner = AT % "amount", [f"{AT % 'left.amount'} as a", F.lit(4711).alias("b")]
    events = orders.changes.sparkSession.readStream.format("rate").load()
    groups = orders.group_by("customer_id")
    for name in ("select", "selectExpr", "withColumn", "withColumns", "filter", "where"):
        monkeypatch.setattr(of_frames, name, counting(getattr(of_frames, name)))
    calls: list[tuple[int, Callable[[], Any]]] = [
        (1, lambda: orders.filter(f"{amount} > 0")),
        (2, lambda: orders.map_values([f"{amount} as a", "4711 + amount as b", "customer_id"])),
        (2, lambda: orders.flat_map(f"array({amount})", key=f"{AT % 'col'} as k")),
        (3, lambda: fk_join(orders, customers, AT % "customer_id", joiner=joiner)),
        (1, lambda: orders.join(orders.filter("true"), joiner=f"{AT % 'left.amount'} as a")),
        (1, lambda: customers.enrich(events, AT % "''")),
        (1, lambda: orders.group_by(f"{AT % 'customer_id'} as k").count()),
        (2, lambda: groups.agg(having="a > 4711", a=agg.sum(amount), b=agg.count())),
        (2, lambda: groups.aggregate(0.0, "aggregate + 4711", "aggregate - 4711")),
    ]
    for expressions, call in calls:
        analyzed.clear()
        call()
        assert sum(text.count("4711") for text in analyzed) == expressions


def test_a_view_says_the_type_that_its_rows_have(orders: Table) -> None:
    """Spark is not asked again when a view is made: what may throw may be null, and all else is as it was analyzed."""
    numbers = "transform(array(1, 2), x -> cast(concat(x, '') as int)) as d"
    nested = ["named_struct('e', 1, 'f', op) as g", "map('a', amount) as h", "customer_id"]
    amount, plain = AT % "amount", ["cast('1' as int) as b", "1 as c"]
    mapped = orders.map_values([f"{amount} as a", *plain, numbers, *nested])
    views = [mapped, mapped.filter("a > 1"), mapped.map_values(["d", "b + c as i"])]
    for view in (orders.filter(f"{amount} > 0"), *views):
        rows = view._plan.on_spark(view._plan.rows)
        assert view._planned.row_type == struct_column(rows.schema, ROW)
    nullable = {field.name: field.nullable for field in mapped._planned.row_type}
    assert (nullable["b"], nullable["c"]) == (True, False)


def test_the_engines_own_columns_cannot_be_named(orders: Table) -> None:
    for name in ("__fkjoin_version.v0 > 0", "__fkjoin_deleted", "__fkjoin_row.amount > 0"):
        with pytest.raises(TopologyError, match="condition: "):
            orders.filter(name)


INTERVALS = ["10 seconds", "0 seconds", "1 minute", "INTERVAL 250 Milliseconds", "1 hour 30 minutes", " 1.5 seconds ", "+1 day"]
WRONG: list[Any] = ["", "now", "available_now", "availableNow", "10", "10 s", "ten seconds", "1 month", "-1 second", 10, True]


def test_a_trigger_is_an_interval_what_is_there_now_or_sparks_own_arguments() -> None:
    assert [arguments_of(text) for text in INTERVALS] == [{"processingTime": text} for text in INTERVALS]
    assert arguments_of("available-now") == {"availableNow": True}
    assert arguments_of(None) == arguments_of({}) == {}
    assert arguments_of({"once": True}) == {"once": True}


def test_the_time_between_batches_is_told_by_every_interval_and_by_nothing_else() -> None:
    """Windows compare it with their idle time."""
    milliseconds = [10_000, 0, 60_000, 250, 5_400_000, 1500, 86_400_000]
    assert [interval_ms(arguments_of(text)) for text in INTERVALS] == milliseconds
    assert interval_ms({"processingTime": "2 weeks 5 microseconds"}) == 1_209_600_000.005
    others = arguments_of("available-now"), {}, {"once": True}, {"continuous": "1 second"}, {"processingTime": "1 month"}
    assert [interval_ms(when) for when in others] == [None] * 5


def test_a_program_and_a_job_file_take_and_refuse_the_same_texts(tmp_path: Path) -> None:
    for wrong in WRONG:
        with pytest.raises(TopologyError, match=r'^trigger: .+ is neither "available-now" nor an interval such as "10 s'):
            arguments_of(wrong)

    def job_with(text: str) -> JobSection:
        (tmp_path / "job.toml").write_text(GOOD.replace('"available-now"', f'"{text}"'))
        return read_job(tmp_path / "job.toml")

    for text in (*INTERVALS, "available-now"):
        assert job_with(text).trigger == text
    for text in filter(lambda given: isinstance(given, str), WRONG):
        with pytest.raises(JobError, match=r'job.toml: trigger: .+ is neither "available-now" nor an interval'):
            job_with(text)


class NoTopics:
    """Topics that must not be made."""

    connection = Connection("topic", "localhost:1", {}, 1)

    def create(self) -> None:
        raise AssertionError("the trigger is looked at first")


def test_every_start_refuses_a_wrong_text_before_it_makes_anything(orders: Table, tmp_path: Path) -> None:
    out, checkpoint, trigger = tmp_path / "out", tmp_path / "ck", "10 sconds"
    stage = StageQuery("stage", orders._plan.spark, orders._plan.rows, NoTopics())
    starts: list[Callable[[], Any]] = [
        lambda: orders.to_parquet(out, checkpoint=checkpoint, trigger=trigger),
        lambda: orders.to(Parquet(out), checkpoint=checkpoint, trigger=trigger),
        lambda: stage.start(checkpoint, trigger=trigger),
    ]
    for start in starts:
        with pytest.raises(TopologyError, match="^trigger: '10 sconds' is neither"):
            start()
    assert list(tmp_path.iterdir()) == []


def test_spark_takes_the_intervals_that_are_taken_and_no_other(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream
    for text in INTERVALS:
        writer.trigger(**arguments_of(text))
    for text in ("now", "10", "10 s", "1 month", "-1 second"):
        with pytest.raises((PySparkException, Exception)):
            writer.trigger(processingTime=text)
