"""Users' own sinks in queries: they get their batches beside other sinks, through restarts and restores."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.sinks import BatchId, Parquet, TableSink
from tests.support.queries import write_lines
from tests.support.sessions import small
from tests.support.sinks import finished

NOW = {"availableNow": True}


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


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """Set a time zone other than that of Arrow's schemas."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.usefixtures("berlin")
def test_a_sink_gets_rows_of_the_schema_that_it_was_prepared_for_and_what_is_none_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    small(spark, tmp_path)
    columns = "id string, at timestamp, day date, local timestamp_ntz, price decimal(9, 2), raw binary, tags array<int>, "
    columns += "about struct<a: bigint, b: map<string, double>>, n tinyint, f float, gone boolean, v bigint"
    row = {
        "id": "a",
        "at": "2026-01-02T03:04:05.123Z",
        "day": "2026-01-02",
        "local": "2026-01-02T03:04:05",
        "price": 1.5,
        "v": 1,
    }
    sink = Kept()
    write_lines(
        tmp_path / "in", "1", [row | {"raw": "AA==", "tags": [1], "about": {"a": 1, "b": {"x": 1.0}}, "n": 7, "f": 0.5}]
    )
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
    for rows in (upserts, later[0]):
        assert rows.schema.equals(sink.schema, check_metadata=False)
    for rows in (deletes, later[1]):
        assert rows.schema.equals(pa.schema([sink.schema.field("id")]), check_metadata=False)
    at = upserts["at"].to_pylist()[0]
    assert at.astimezone(timezone.utc) == datetime(2026, 1, 2, 3, 4, 5, 123_000, timezone.utc)
    assert (upserts["id"].to_pylist(), deletes["id"].to_pylist()) == (["a"], [])
    assert (later[0]["id"].to_pylist(), later[1]["id"].to_pylist()) == (["b"], ["a"])
    assert (first.number, second.number, first.query == second.query) == (0, 1, True)
    assert None not in (first.began_ms, second.began_ms)
