"""One query with several sinks: each has what it has alone, through restarts and failures; and users' own sinks."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.checkpoint.begun import DOCUMENT, Begun
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sinks import sink_queries
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.sinks import BatchId, Delta, Parquet, TableSink
from tests.support.orders import History, tables
from tests.support.queries import write_lines
from tests.support.sessions import small
from tests.support.sinks import Memory, delta, finished, joined

NOW = {"availableNow": True}


def parquet(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(map(str, spark.read.parquet(str(folder)).drop("batch").collect()))


def persisted(spark: SparkSession) -> set[int]:
    """The numbers of the frames that Spark keeps for the session."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def test_a_batch_that_fails_in_one_sink_counts_once_in_each(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    by_others = persisted(spark)
    history, full, before = History(tmp_path), Memory("disk", {1}), Memory("before")

    def run() -> None:
        sinks = before, Parquet(tmp_path / "out"), Delta(tmp_path / "delta"), full
        orders = tables(spark, tmp_path)[0].materialize("orders")
        finished(orders.to(*sinks, checkpoint=tmp_path / "ck", trigger=NOW))

    history.write(60)
    run()
    history.write(60)
    with pytest.raises(StreamingQueryException, match="disk is full"):
        run()
    assert (sorted(before.taken), sorted(full.taken)) == ([0, 1], [0])
    written = parquet(spark, tmp_path / "out")
    had = before.taken.pop(1)
    assert persisted(spark) <= by_others

    full.broken.clear()
    run()
    assert before.taken[1] == full.taken[1] == had
    assert parquet(spark, tmp_path / "out") == written == sorted(change for batch in full.taken.values() for change in batch)
    items = {key: row["items"] for key, row in delta(tmp_path / "delta").items()}
    assert items == {key: order["items"] for key, order in history.orders.items()}
    assert full.kept
    (name,) = full.names  # the same after a restart, and no other sink's
    assert name.endswith(" disk")
    assert persisted(spark) <= by_others, "what was kept for a batch is let go"


def test_of_several_places_of_a_source_one_may_be_left_out_and_none_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    history = History(tmp_path)
    history.write(30)
    orders, checkpoint = tables(spark, tmp_path)[0], tmp_path / "ck"
    memory, out, later = Memory(), Parquet(tmp_path / "out"), Parquet(tmp_path / "later")
    finished(orders.to(memory, out, checkpoint=f"{checkpoint}/", trigger=NOW))
    assert parquet(spark, tmp_path / "out") == memory.taken[0]
    assert len(memory.taken[0]) == len((tmp_path / "orders" / "0.json").read_text().splitlines())
    says = r"sinks: parquet .*later is not one of the sinks .*ck was last started with \(memory, .*out\).*checkpoint of its own"
    with pytest.raises(TopologyError, match=says):
        orders.to(memory, out, later, checkpoint=checkpoint, trigger=NOW)
    history.write(30)
    finished(orders.to(out, checkpoint=checkpoint, trigger=NOW))
    assert Begun.of(spark, str(checkpoint)).sinks == [out.place]
    assert len(list((tmp_path / "out").glob("batch=*"))) == 2
    assert list(memory.taken) == [0]
    with pytest.raises(TopologyError, match=r"memory is not one of the sinks"):  # it has missed a batch
        orders.to(memory, out, checkpoint=checkpoint, trigger=NOW)
    for alone in (
        lambda: orders.to_parquet(tmp_path / "out", checkpoint=f"{checkpoint}/", trigger=NOW),
        lambda: orders.to_kafka("topic", "localhost:1", checkpoint=checkpoint, trigger=NOW),
    ):
        with pytest.raises(TopologyError, match=r"belongs to a query that writes to parquet .*out: continue with Table\.to"):
            alone()


def test_what_cannot_be_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    table, out = joined(spark, tmp_path), Parquet(tmp_path / "out")
    checkpoint = tmp_path / "ck"
    for sinks, says in (
        ((), r"sinks: name one at least"),
        ((out, Parquet(tmp_path / "out")), r"sinks: parquet .*out is given twice"),
        ((out, str(tmp_path)), r"sinks: a str is not a sink; give sinks of fkjoin\.sinks"),
        ((out, Parquet("ftp://host/out")), r"path: exactly-once is not available on ftp:, since it needs atomic renames"),
    ):
        with pytest.raises(TopologyError, match=says):
            table.to(*sinks, checkpoint=checkpoint, trigger=NOW)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r'orders: a batch of a source.*write .materialize\("orders"\) first'):
        tables(spark, tmp_path)[0].to(out, Delta(tmp_path / "delta"), checkpoint=checkpoint, trigger=NOW)
    assert not checkpoint.exists()
    begun(checkpoint)
    with pytest.raises(TopologyError, match=r"checkpoint: .*ck belongs to a query with one sink: continue with to_kafka"):
        table.to(out, checkpoint=checkpoint, trigger=NOW)


def begun(checkpoint: Path, *places: str) -> None:
    """Make a checkpoint as a query leaves it; with ``places``, a query with several sinks."""
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id": "1"}')
    (checkpoint / DOCUMENT).write_bytes(Begun("UTC", [], ["text /in"], sinks=list(places) or None).data())


def test_a_jobs_sinks_are_where_they_were_begun(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    a, b, c = (Parquet(f"/{name}") for name in "abc")
    three = {"a": ("joined", a), "b": ("joined", b), "c": ("joined", c)}
    reasons: dict[str, str | None] = {}

    def queries(sinks: dict[str, Any], checkpoint: str, run: bool = True) -> dict[str, tuple[str, ...]]:
        found = sink_queries(spark, str(tmp_path / checkpoint), sinks, run=run)
        reasons.clear()
        reasons.update({name: rule.why_not for query in found for name, rule in query.rules.items()})
        return {query.name: tuple(query.sinks) for query in found}

    assert queries({**three, "t": ("totals", a)}, "new") == {"sinks-joined": ("a", "b", "c"), "sink-t": ("t",)}
    assert reasons == {"a": None, "b": None, "c": None}
    assert queries({"a": three["a"]}, "new") == {"sink-a": ("a",)}
    assert reasons == {}
    assert queries({"a": three["a"], "j": ("joined", None)}, "new") == {"sink-a": ("a",), "sink-j": ("j",)}
    assert reasons == {"a": "no other sink of joined can", "j": "its format is written by Spark's own sink"}

    assert queries({**three, "d": ("joined", a)}, "new") == {"sinks-joined": ("a", "b", "c"), "sink-d": ("d",)}
    assert reasons["d"] == "another sink is parquet /a, too"

    begun(tmp_path / "one" / "sink-a")
    assert queries(three, "one") == {"sinks-joined": ("b", "c"), "sink-a": ("a",)}
    assert reasons["a"] == "it was begun as a query of its own"

    begun(tmp_path / "two" / "sinks-joined", a.place, b.place)
    assert queries(three, "two") == {"sinks-joined": ("a", "b"), "sink-c": ("c",)}
    assert reasons["c"] == "sinks-joined was begun without it"
    begun(tmp_path / "two" / "sink-d")
    assert queries({"d": ("joined", a), **three}, "two") == {"sinks-joined": ("a", "b"), "sink-d": ("d",), "sink-c": ("c",)}
    assert queries({"b": three["b"]}, "two") == {"sinks-joined": ("b",)}, "it continues where it was"
    assert queries({"c": three["c"]}, "two") == {"sink-c": ("c",)}

    begun(tmp_path / "three" / "sinks-joined", a.place)
    (tmp_path / "three" / "sinks-joined" / "metadata").unlink()  # the query did not come to its start
    assert queries(three, "three") == {"sinks-joined": ("a", "b", "c")}

    spark.conf.set(EXCLUDED, "sinks-share-a-query")
    assert queries(three, "new") == {"sink-a": ("a",), "sink-b": ("b",), "sink-c": ("c",)}
    assert queries(three, "two", run=False) == {"sink-a": ("a",), "sink-b": ("b",), "sink-c": ("c",)}
    with pytest.raises(JobError, match=r"sinks: the sinks of joined are one query in .*two/sinks-joined, and .* names it"):
        queries(three, "two")
    spark.conf.unset(EXCLUDED)
    assert "sinks-joined" in queries(three, "two")


class Kept(TableSink):
    """A sink that keeps what it is given."""

    place = "kept"

    def __init__(self) -> None:
        self.schema, self.key = pa.schema([]), ("",)
        self.given: list[tuple[BatchId, pa.Table, pa.Table]] = []

    def prepare(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self.schema, self.key = schema, key

    def last_batch(self, query: str) -> BatchId | None:
        return next((batch for batch, *_ in reversed(self.given) if batch.query == query), None)

    def apply(self, batch: BatchId, upserts: pa.Table, deletes: pa.Table) -> None:
        self.given.append((batch, upserts, deletes))


@pytest.mark.usefixtures("berlin")
def test_a_sink_of_a_user_gets_rows_of_the_schema_that_it_was_prepared_for(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    columns = "id string, at timestamp, day date, local timestamp_ntz, price decimal(9, 2), raw binary, tags array<int>, "
    columns += "about struct<a: bigint, b: map<string, double>>, n tinyint, f float, gone boolean, v bigint"
    row = {"id": "a", "at": "2026-01-02T03:04:05.123Z", "day": "2026-01-02", "local": "2026-01-02T03:04:05", "v": 1}
    more = {"price": 1.5, "raw": "AA==", "tags": [1], "about": {"a": 1, "b": {"x": 1.0}}, "n": 7, "f": 0.5}
    sink = Kept()
    write_lines(tmp_path / "in", "1", [row | more])
    source = Table.from_files(spark, tmp_path / "in", key="id", version="v", deleted="gone", schema=columns, name="t")
    with pytest.raises(TopologyError, match=r't: a batch of a source.*write .materialize\("t"\) first'):
        source.to_sink(sink, checkpoint=tmp_path / "other")
    table = source.materialize("t")
    for none in (Parquet(tmp_path / "out"), object()):
        with pytest.raises(TopologyError, match=r"sink: a \w+ is not a TableSink: let it inherit from fkjoin.sinks.TableSink"):
            table.to_sink(none, checkpoint=tmp_path / "ck")  # type: ignore[arg-type]

    def run() -> None:
        finished(table.to_sink(sink, checkpoint=tmp_path / "ck", trigger=NOW))

    run()
    write_lines(tmp_path / "in", "2", [row | {"gone": True, "v": 2}, row | {"id": "b", "v": 3}])
    run()
    (first, upserts, deletes), (second, *later) = sink.given
    assert sink.key == ("id",)
    assert [field.name for field in sink.schema][:3] == ["id", "at", "day"]
    of_key = pa.schema([sink.schema.field("id")])
    for rows, schema in ((upserts, sink.schema), (later[0], sink.schema), (deletes, of_key), (later[1], of_key)):
        assert rows.schema.equals(schema, check_metadata=False)
    at = upserts["at"].to_pylist()[0]
    assert at.astimezone(timezone.utc) == datetime(2026, 1, 2, 3, 4, 5, 123_000, timezone.utc)
    assert (upserts["id"].to_pylist(), deletes["id"].to_pylist()) == (["a"], [])
    assert (later[0]["id"].to_pylist(), later[1]["id"].to_pylist()) == (["b"], ["a"])
    assert (first.number, second.number, first.query == second.query) == (0, 1, True)
    assert None not in (first.began_ms, second.began_ms)
