"""Formats behind a schema registry's header in Spark; what readers make of records is tested in tests/spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import TopologyError
from fkjoin.kafka import Debezium, Registry
from fkjoin.kafka.formats import decode_key, reader
from tests.support.schema_registry import SmallRegistry, framed, small_registry

NAME = {"name": "name", "type": ["null", "string"], "default": None}
AVRO = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "int"}, NAME]}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "string", "default": "x"}]}
JSON = {"title": "row", "type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}}}
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [{"name": "lsn", "type": "long"}, {"name": "snapshot", "type": "string"}],
}
EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", AVRO]},
        {"name": "after", "type": ["null", "row"]},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as made:
        yield made


@pytest.mark.spark
def test_spark_writes_and_reads_rows_without_the_schema_id(spark: SparkSession, registry: SmallRegistry) -> None:
    """The same row under two schema ids is one row; what does not parse says why; null is a tombstone; workers say the same."""
    rows = spark.createDataFrame([(1, "Ada")], "id int, name string").select(F.struct("id", "name").alias("row"))
    for kind, schemas in (("avro", (AVRO, NEWER)), ("json", (JSON, {**JSON, "title": "newer"}))):
        begin = len(registry.schemas)
        forms = [Registry(kind, write_schema=json.dumps(one), subject="s", url=registry.url) for one in schemas]
        written = rows.select(
            *[form.encode(F.col("row"), rows.schema).alias(f"c{at}") for at, form in enumerate(forms)]
        ).first()
        first, second = (bytes(record) for record in written)
        assert (first[:5], second[:5]) == (b"\0\0\0\0" + bytes([begin + 1]), b"\0\0\0\0" + bytes([begin + 2]))
        data = [first, second, b"{}", first[:5] + b"\xff\xff\xff", b"\0\0\0\0\x7f?", None]
        told = shown(spark, reading := Registry(kind, "id int, name string", registry.url), data)
        assert [row for row, _, _ in told] == [{"id": 1, "name": "Ada"}] * 2 + [None] * 4
        assert [deleted for _, deleted, _ in told] == [False] * 5 + [True]
        assert [problem is None for *_, problem in told] == [True, True, False, False, False, True]
        assert all(f"not {kind} of the registry's schema" in problem for *_, problem in told[2:5])
        how = reader(reading)
        assert how is not None
        assert how(pa.array(data, pa.binary())).problem.to_pylist() == [problem for *_, problem in told]
    number = registry.add(EVENT)
    row = {"id": 1, "name": "Ada"}
    event = {"before": None, "after": row, "source": {"lsn": 17, "snapshot": "last"}, "op": "r", "ts_ms": 5}
    data = [framed(number, EVENT, event), framed(number, EVENT, {**event, "op": "d", "before": row, "after": None}), None]
    form = Debezium("id int, name string", source="lsn bigint, snapshot string", inner=Registry("avro", url=registry.url))
    assert shown(spark, form, data) == [(row, False, None), (None, True, None), (None, True, None)]
    frame = spark.createDataFrame([(data[0], framed(registry.add(AVRO), AVRO, row))], "data binary, key binary")
    about, key = frame.select(form.about(F.col("data")), decode_key(form, F.col("key")).row).first()
    assert (about.asDict(recursive=True), key.asDict()) == ({"op": "r", "ts_ms": 5, "source": event["source"]}, row)
    registry.refuses = lambda _: (500, "down")
    with pytest.raises(Exception, match=rf"FkJoinError: schema registry {registry.url}: .*500.*tried 1 times"):
        shown(spark, Registry("avro", "id int", registry.url, retry_s=0), [b"\0\0\0\0\x70?"])


def shown(spark: SparkSession, form: Any, data: list[bytes | None]) -> list[Any]:
    """The row, whether it deletes and the problem of each record, by Spark's expressions."""
    frame = spark.createDataFrame(list(enumerate(data)), "n int, data binary").coalesce(1)
    found = frame.select("n", *form.decode(F.col("data"))).orderBy("n").collect()
    return [(row and row.asDict(), deleted, problem) for _, row, deleted, problem in found]


def test_mistakes_of_writers_are_told() -> None:
    with pytest.raises(TopologyError, match="to write, give write_schema= and subject="):
        Registry("avro", "id int", "http://localhost").encode(F.lit, None)  # type: ignore[arg-type]
