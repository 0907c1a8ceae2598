"""A small registry of schemas on localhost."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fkjoin.codec.json_read import Reading
from fkjoin.spark.registry_records import Kind, ReadRegistry, RegistryRecords
from fkjoin.spark.schema_registry import SchemaRegistry

Refusal = tuple[int, Any]
"""A status, and the body: JSON, or a text."""


@dataclass
class SmallRegistry:
    """Schemas by their ids, from 1 on, and by subjects."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list, repr=False)
    subjects: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    """Ids by subject and version."""
    descriptors: dict[int, str] = field(default_factory=dict, repr=False)
    """Descriptors of schemas of Protobuf, in base64, by their ids."""
    asked: Counter[str] = field(default_factory=Counter, repr=False)
    """The number of requests for each path."""
    refuses: Callable[[dict[str, str]], Refusal | None] = lambda _: None
    """The refusal that a request gets instead of an answer, by its headers."""

    def add(self, schema: Any, kind: str = "AVRO", references: tuple[tuple[str, str, int], ...] = ()) -> int:
        """Register a schema; ``references``: name, subject and version of each."""
        refers = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        more = {"references": refers} if refers else {}
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas.append({"schema": text, "schemaType": kind, **more})
        return len(self.schemas)

    def add_protobuf(self, file: FileDescriptorProto, references: tuple[tuple[str, str, int], ...] = ()) -> int:
        """Register a file of Protobuf, of which this registry knows the descriptor and no text."""
        number = self.add('syntax = "proto3";', "PROTOBUF", references)
        self.descriptors[number] = base64.b64encode(file.SerializeToString()).decode()
        return number

    def answer(self, path: str) -> Refusal:
        address = urlsplit(path)
        parts = address.path.strip("/").split("/")
        number = version = int(parts[-1])
        if parts[0] == "subjects":
            number = self.subjects.get((parts[1], number), 0)
        if 1 <= number <= len(self.schemas):
            given = self.schemas[number - 1]
            if parse_qs(address.query).get("format") == ["serialized"] and number in self.descriptors:
                given = {**given, "schema": self.descriptors[number]}
            return 200, given if parts[0] == "schemas" else {"id": number, "version": version, "subject": parts[1], **given}
        return 404, {"error_code": 40403, "message": "Schema not found"}


def basic(user: str) -> str:
    """The header of basic authentication."""
    return f"Basic {base64.b64encode(user.encode()).decode()}"


@contextlib.contextmanager
def small_registry(tls: ssl.SSLContext | None = None) -> Iterator[SmallRegistry]:
    registry = SmallRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked[self.path.split("?")[0]] += 1
            self._answer(*(registry.refuses(dict(self.headers)) or registry.answer(self.path)))

        def do_POST(self) -> None:
            registry.asked[self.path.split("?")[0]] += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            schema = {"schema": body["schema"], "schemaType": body.get("schemaType", "AVRO")}
            is_known = schema in registry.schemas
            if (refusal := registry.refuses(dict(self.headers))) is not None:
                self._answer(*refusal)
            elif not is_known and not self.path.split("?")[0].endswith("/versions"):
                self._answer(404, {"error_code": 40403, "message": "Schema not found"})
            else:
                registry.schemas += [] if is_known else [schema]
                self._answer(200, {"id": registry.schemas.index(schema) + 1, "version": 1, "subject": "s", **schema})

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, status: int, answer: Any) -> None:
            body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry for one test."""
    with small_registry() as made:
        yield made


@pytest.fixture(scope="module")
def lasting_registry() -> Iterator[SmallRegistry]:
    """A registry for all examples of the laws of a module."""
    with small_registry() as made:
        yield made


def registry_reader(kind: Kind, url: str, row: pa.StructType, **more: Any) -> ReadRegistry:
    return ReadRegistry(pa.schema(list(row)), RegistryRecords(kind, SchemaRegistry(url, **more), Reading()))


def registry_rows(read: ReadRegistry, *records: bytes) -> list[Any]:
    """A row, or a problem's text, for each."""
    problem_start = f"not {read.records.kind} of the registry's schema: "
    result = read(pa.array(records, pa.binary()))
    pairs = zip(result.rows.to_pylist(), result.problem.to_pylist(), strict=True)
    return [problem.removeprefix(problem_start) if problem else row for row, problem in pairs]


def require_rows(read: Any, good: list[Any], broken: list[bytes], order: list[int]) -> list[str]:
    """Require the rows of good records, and of broken ones what each is alone, in an order.

    Returns the problems of the broken ones.
    """
    records, problems = [*(record for record, _ in good), *broken], dict[int, str]()
    result = read(pa.array([records[at] for at in order], pa.binary()))
    assert result.rows.type == pa.struct(list(read.schema))
    assert result.deleted.tolist() == [records[at] is None for at in order]
    for place, at in enumerate(order):
        problem, row = result.problem[place].as_py(), result.rows.slice(place, 1)
        if at < len(good):
            assert (problem, row.to_pylist()) == (None, [good[at][1]])
            continue
        alone = read(pa.array([records[at]], pa.binary()))
        assert alone.problem[0].as_py() == problem
        assert alone.rows.to_string() == row.to_string()  # also years that Python does not know
        problems[at] = problem
    return [problem for _, problem in sorted(problems.items())]


def header(number: int) -> bytes:
    """The header of a record: its schema's id."""
    return b"\0" + number.to_bytes(4, "big")


def record_of(name: str, /, **fields: Any) -> dict[str, Any]:
    """The schema of a record in Avro, with the types of its fields."""
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": parts}


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Write a value in Avro, behind the header."""
    import io

    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return header(number) + stream.getvalue()
