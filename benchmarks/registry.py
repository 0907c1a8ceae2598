"""Rates of Avro and Protobuf behind a schema registry's header, in one process: by column, and record by record.

    python -m benchmarks.registry [--records 20000] [--rounds 3]

In turn, a flat record of ten fields and a change event of Debezium with such rows: to columns as workers read them, and by
confluent-kafka's deserializer to a dictionary for each record, without columns.  Of Protobuf a flat record with the same
fields, and a nested one that has such a record, a list of three and a map of two: to columns, and the parsing alone.  Prints a
JSON line per round: records a second of the process's own time, which other work on the machine does not change much.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import io
import json
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fkjoin.codec.json_read import PLAIN
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.protobuf_schemas import messages as reader_of
from fkjoin.spark.registry_records import ReadAvroEvents, ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry

FIELDS: list[tuple[str, Any, pa.DataType]] = [
    ("order_id", "string", pa.string()),
    ("customer_id", ["null", "string"], pa.string()),
    ("amount", "double", pa.float64()),
    ("quantity", "int", pa.int32()),
    ("number", "long", pa.int64()),
    ("paid", "boolean", pa.bool_()),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, pa.decimal128(12, 2)),
    ("created", {"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
    ("day", {"type": "int", "logicalType": "date"}, pa.date32()),
    ("note", ["null", "string"], pa.string()),
]
ROW = pa.schema([(name, kind) for name, _, kind in FIELDS])
FLAT = {"type": "record", "name": "Value", "fields": [{"name": name, "type": kind} for name, kind, _ in FIELDS]}
_TEXTS = "version", "connector", "name", "snapshot", "db", "schema", "table"
_OPTIONAL = "sequence", "txId", "lsn", "xmin"
_SOURCE = [
    *({"name": name, "type": "string"} for name in _TEXTS),
    {"name": "ts_ms", "type": "long"},
    *({"name": name, "type": ["null", "string" if name == "sequence" else "long"]} for name in _OPTIONAL),
]
EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", FLAT]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": _SOURCE}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
        {"name": "transaction", "type": ["null", "string"]},
    ],
}
_PROTOBUF = 3
"""The id of the schema of Protobuf."""
_MOMENT = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)


_PROTOBUF_TYPES = {
    "order_id": Field.TYPE_STRING,
    "customer_id": Field.TYPE_STRING,
    "amount": Field.TYPE_DOUBLE,
    "quantity": Field.TYPE_INT32,
    "number": Field.TYPE_INT64,
    "paid": Field.TYPE_BOOL,
    "price": ".confluent.type.Decimal",
    "created": ".google.protobuf.Timestamp",
    "day": ".google.type.Date",
    "note": Field.TYPE_STRING,
}
NESTED = pa.schema(
    [("order", pa.struct(list(ROW))), ("lines", pa.list_(pa.struct(list(ROW)[:6]))), ("tags", pa.map_(pa.string(), pa.int64()))]
)


def protobuf_file() -> FileDescriptorProto:
    """Make the file of two messages, flat and nested; ``customer_id`` and ``note`` are optional."""
    file = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    file.dependency.extend(["confluent/type/decimal.proto", "google/protobuf/timestamp.proto", "google/type/date.proto"])
    flat, nested = file.message_type.add(name="Value"), file.message_type.add(name="Nested")
    for number, (name, of) in enumerate(_PROTOBUF_TYPES.items(), 1):
        made = flat.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
        if isinstance(of, str):
            made.type, made.type_name = Field.TYPE_MESSAGE, of
        else:
            made.type = of
        if name in ("customer_id", "note"):
            made.proto3_optional, made.oneof_index = True, len(flat.oneof_decl)
            flat.oneof_decl.add(name=f"_{name}")
    entry = nested.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    for number, (name, of) in enumerate((("key", Field.TYPE_STRING), ("value", Field.TYPE_INT64)), 1):
        entry.field.add(name=name, number=number, type=of, label=Field.LABEL_OPTIONAL)
    for number, (name, of, many) in enumerate(
        (("order", "Value", False), ("lines", "Value", True), ("tags", "Nested.TagsEntry", True)), 1
    ):
        label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
        nested.field.add(name=name, number=number, type=Field.TYPE_MESSAGE, type_name=f".shop.{of}", label=label)
    return file


class Schemas(BaseHTTPRequestHandler):
    """Three schemas, by their ids: two of Avro, and one of Protobuf."""

    def do_GET(self) -> None:
        number = int(self.path.split("?")[0].rsplit("/", 1)[-1])
        if number == _PROTOBUF:
            descriptor = base64.b64encode(protobuf_file().SerializeToString()).decode()
            body = json.dumps({"schema": descriptor, "schemaType": "PROTOBUF"}).encode()
        else:
            body = json.dumps({"schema": json.dumps((FLAT, EVENT)[number - 1])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def row(place: int) -> dict[str, Any]:
    return {
        "order_id": f"o{place}",
        "customer_id": f"c{place % 500}" if place % 7 else None,
        "amount": place * 1.5,
        "quantity": place % 9,
        "number": place << 20,
        "paid": place % 2 == 0,
        "price": Decimal(place) / 100,
        "created": _MOMENT + datetime.timedelta(seconds=place),
        "day": _MOMENT.date() + datetime.timedelta(days=place % 300),
        "note": "some words about the order" if place % 3 else None,
    }


def event(place: int) -> dict[str, Any]:
    source = {**dict.fromkeys(_TEXTS, "postgresql"), **dict.fromkeys(_OPTIONAL[1:], place), "sequence": '["1","2"]', "ts_ms": 1}
    after = row(place)
    return {
        "before": after if place % 3 else None,
        "after": after,
        "source": source,
        "op": "u",
        "ts_ms": 5,
        "transaction": None,
    }


def records(number: int, schema: Any, values: list[dict[str, Any]]) -> list[bytes]:
    import fastavro

    parsed, made = fastavro.parse_schema(schema), []
    for value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        made.append(b"\0" + number.to_bytes(4, "big") + stream.getvalue())
    return made


def messages(registry: SchemaRegistry, count: int) -> dict[str, tuple[list[bytes], Callable[[bytes], Any], pa.Schema]]:
    """The records of each message, its parser, and its columns."""
    flat, nested = (reader_of(registry, _PROTOBUF, (place,), pa.struct([])).parse for place in (0, 1))
    rows, whole = list[Any](), list[Any]()
    for place in range(count + 2):
        given = row(place)
        made = flat(b"")
        for name in ("order_id", "customer_id", "amount", "quantity", "number", "paid", "note"):
            if given[name] is not None:
                setattr(made, name, given[name])
        made.price.value, made.price.scale = place.to_bytes(4, "big"), 2
        made.created.FromDatetime(given["created"])
        made.day.year, made.day.month, made.day.day = given["day"].timetuple()[:3]
        rows.append(made)
    for place in range(count):
        made = nested(b"")
        made.order.CopyFrom(rows[place])
        made.lines.extend(rows[place : place + 3])
        made.tags.update({"red": place, "new": 1})
        whole.append(made)
    head = b"\0" + _PROTOBUF.to_bytes(4, "big")
    return {
        "protobuf_flat": ([head + b"\0" + made.SerializeToString() for made in rows[:count]], flat, ROW),
        "protobuf_nested": ([head + b"\2\2" + made.SerializeToString() for made in whole], nested, NESTED),
    }


def rate(count: int, work: Callable[[], object]) -> int:
    begin = time.process_time()
    work()
    return round(count / (time.process_time() - begin))


def main() -> None:
    parser = argparse.ArgumentParser(description="see the module")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Schemas)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    registry = SchemaRegistry(f"http://127.0.0.1:{server.server_port}")
    alone = AvroDeserializer(registry.client(), conf={"subject.name.strategy": lambda *_: None})
    by_column = RegistryRecords("avro", registry, PLAIN)
    flat = records(1, FLAT, [row(place) for place in range(given.records)])
    events = records(2, EVENT, [event(place) for place in range(given.records)])
    as_messages = messages(registry, given.records)
    of_messages = RegistryRecords("protobuf", registry, PLAIN)
    for turn in range(given.rounds + 1):
        told: dict[str, Any] = {"round": turn}
        for name, some, read in (
            ("flat", flat, ReadRegistry(ROW, by_column)),
            ("event", events, ReadAvroEvents(EventRows(ROW), by_column)),
        ):
            array = pa.array(some, pa.binary())
            assert read(array).problem.null_count == len(some)
            told[f"{name}_by_column"] = rate(len(some), lambda read=read, array=array: read(array))  # type: ignore[misc]
            told[f"{name}_alone"] = rate(len(some), lambda some=some: [alone(one, None) for one in some])  # type: ignore[misc]
        for name, (some, parse, columns) in as_messages.items():
            array, read_all = pa.array(some, pa.binary()), ReadRegistry(columns, of_messages)
            assert read_all(array).problem.null_count == len(some)
            start = 6 if name == "protobuf_flat" else 7
            told[f"{name}_by_column"] = rate(len(some), lambda read_all=read_all, array=array: read_all(array))  # type: ignore[misc]
            told[f"{name}_parsed"] = rate(
                len(some),
                lambda some=some, parse=parse, start=start: [parse(one[start:]) for one in some],  # type: ignore[misc]
            )
        if turn:  # the first one warms up
            print(json.dumps(told), flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
