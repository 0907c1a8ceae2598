"""Avro and JSON behind a schema registry's header; the registry is a small one on localhost."""

from __future__ import annotations

import datetime
import io
import json
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from fkjoin import TopologyError
from fkjoin.kafka import Registry
from fkjoin.kafka.registry import typed

pytestmark = pytest.mark.spark

AVRO = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "string", "default": "x"}]}
MOMENT = datetime.datetime(2023, 7, 26, 10, 22, 47, 48491, datetime.timezone.utc)
JSON = {"title": "row", "type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}}}


class Handler(BaseHTTPRequestHandler):
    schemas: list[dict[str, Any]]

    def do_GET(self) -> None:
        number = int(self.path.split("?")[0].rsplit("/", 1)[-1])
        if number <= len(self.schemas):
            self._answer(self.schemas[number - 1])
        else:
            self._answer({"error_code": 40403, "message": "Schema not found"}, 404 if number < 100 else 500)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        schema = {"schema": body["schema"], "schemaType": body.get("schemaType", "AVRO")}
        if schema not in self.schemas:
            self.schemas.append(schema)
        self._answer({"id": self.schemas.index(schema) + 1, "version": 1, "subject": "s", **schema})

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, answer: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def registry() -> Iterator[str]:
    handler = type("Own", (Handler,), {"schemas": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("kind", "schemas"), [("avro", (AVRO, NEWER)), ("json", (JSON, {**JSON, "title": "newer"}))])
def test_rows_are_read_without_the_schema_id_and_bad_bytes_are_problems(
    spark: SparkSession, registry: str, kind: Any, schemas: tuple[Any, Any]
) -> None:
    """The same row under two schema ids is one row; what does not parse says why; null is a tombstone."""
    rows = spark.createDataFrame([(1, "Ada")], "id int, name string").select(F.struct("id", "name").alias("row"))
    records: list[Any] = []
    for schema in schemas:
        form = Registry(kind, "id int, name string", registry, write_schema=json.dumps(schema), subject="people-value")
        records += [found[0] for found in rows.select(form.encode(F.col("row"), rows.schema)).collect()]
    first, second = (bytes(record) for record in records)
    assert (first[:5], second[:5]) == (b"\0\0\0\0\1", b"\0\0\0\0\2")
    data = [(1, first), (2, second), (3, b"{}"), (4, b"\0\0\0\0\1\xff\xff\xff"), (5, b"\0\0\0\0\x09?"), (6, None)]
    reading = Registry(kind, "id int, name string", registry)
    decoded = reading.decode(F.col("data"))
    frame = spark.createDataFrame(data, "n int, data binary").select("n", *(c.alias(f"c{i}") for i, c in enumerate(decoded)))
    found = frame.orderBy("n").collect()
    assert [row.c0 and tuple(row.c0) for row in found[:2]] == [(1, "Ada"), (1, "Ada")]
    assert [row.c1 for row in found] == [False, False, False, False, False, True]
    assert [row.c2 is None for row in found] == [True, True, False, False, False, True]
    assert all(f"not {kind} of the registry's schema" in row.c2 for row in found[2:5])


RECORD = {"type": "record", "name": "inner", "fields": [{"name": "a", "type": "long"}]}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
KINDS: list[tuple[Any, Any, str, Any]] = [
    (RECORD, {"a": 1}, "string", '{"a":1}'),
    ({"type": "map", "values": "double"}, {"k": 1.5}, "string", '{"k":1.5}'),
    ({"type": "array", "items": ["null", "string"]}, ["é", None], "string", '["é",null]'),
    ("boolean", True, "string", "true"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("12.50"), "string", "12.50"),
    (MICROS, MOMENT, "string", "2023-07-26T10:22:47.048491+00:00"),
    (MICROS, MOMENT, "timestamp", MOMENT),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        MOMENT.replace(tzinfo=None),
        "timestamp",
        "take a timestamp_ntz",
    ),
    (MICROS, MOMENT, "timestamp_ntz", "is an instant; take a timestamp column"),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        MOMENT.replace(tzinfo=None),
        "timestamp_ntz",
        MOMENT.replace(tzinfo=None),
    ),
    ("long", 1690366967048491, "bigint", 1690366967048491),
    ("bytes", b"ab", "binary", b"ab"),
    ({"type": "map", "values": "bytes"}, {"k": b"ab"}, "map<string, binary>", {"k": b"ab"}),
    ("long", 1690366967048491, "timestamp", "it: 1690366967048491 has no unit here; take a bigint column"),
    ("bytes", b"ab", "string", "it: bytes are no text; take a binary column"),
    ({"type": "map", "values": "bytes"}, {"k": b"ab"}, "string", "it: bytes in a text column"),
    ({"type": "array", "items": RECORD}, [{"a": 1}], "array<struct<a: string>>", [{"a": "1"}]),
]


@pytest.mark.parametrize(("avro", "value", "kind", "wanted"), KINDS)
def test_a_text_is_json_and_an_instant_an_instant_or_there_is_a_problem(avro: Any, value: Any, kind: str, wanted: Any) -> None:
    """By Avro's own reader; a problem is told by its words."""
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": [{"name": "it", "type": avro}]})
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, {"it": value})
    written.seek(0)
    found = fastavro.schemaless_reader(written, schema, None)["it"]
    if isinstance(wanted, str) and " " in wanted:
        with pytest.raises(ValueError, match=re.escape(wanted)):
            typed(found, DataType.fromDDL(kind), "it")
        return
    made = typed(found, DataType.fromDDL(kind), "it")
    assert made == ([tuple(item.values()) for item in wanted] if isinstance(wanted, list) else wanted)


def test_text_over_a_record_is_json_in_the_column(spark: SparkSession, registry: str) -> None:
    avro = {"type": "record", "name": "row", "fields": [{"name": "it", "type": RECORD}, {"name": "data", "type": "bytes"}]}
    rows = spark.sql("select struct(struct(1L as a) as it, X'6162' as data) as row")
    form = Registry("avro", "it string", registry, write_schema=json.dumps(avro), subject="s-value")
    data = bytes(rows.select(form.encode(F.col("row"), rows.schema)).first()[0])
    frame = spark.createDataFrame([(data,)], "data binary")
    good, bad = (Registry("avro", kind, registry).decode(F.col("data")) for kind in ("it string", "it string, data string"))
    row, problem = frame.select(good.row, bad.problem).first()
    assert row.it == '{"a":1}'
    assert "data: bytes are no text; take a binary column" in problem


def test_a_registry_that_fails_makes_no_dead_letters(spark: SparkSession, registry: str) -> None:
    settings = (("max.retries", 0),)
    for url, data in ((registry, b"\0\0\0\0\xff?"), ("http://127.0.0.1:9", b"\0\0\0\0\1?")):
        decoded = Registry("avro", "id int", url, settings).decode(F.col("data"))
        with pytest.raises(Exception, match="500|onnect"):
            spark.createDataFrame([(data,)], "data binary").select(decoded.problem).collect()


def test_mistakes_are_told() -> None:
    with pytest.raises(TopologyError, match="kind 'xml' is not one of"):
        Registry("xml", "id int", "http://localhost")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="to write, give write_schema= and subject="):
        Registry("avro", "id int", "http://localhost").encode(F.lit(None), None)  # type: ignore[arg-type]
