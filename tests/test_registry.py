"""Avro and JSON behind a schema registry's header; the registry is a small one on localhost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import TopologyError
from fkjoin.kafka import Registry

pytestmark = pytest.mark.spark

AVRO = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "string", "default": "x"}]}
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
