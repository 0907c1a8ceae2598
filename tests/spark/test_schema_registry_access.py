"""A registry that does not answer, refuses, asks for credentials, and has schemas that refer to others."""

from __future__ import annotations

import json
import logging
import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pyspark.sql import Row
from pyspark.sql import types as T

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka import Registry
from fkjoin.kafka.registry import _encoder
from fkjoin.spark.schema_registry import SchemaRegistry
from tests.support.protobuf import file_of, message
from tests.support.schema_registry import (
    Refusal,
    SmallRegistry,
    basic,
    framed,
    header,
    record_of,
    registry_reader,
    registry_rows,
    small_registry,
)

ORDER = record_of("shop.Order", id="int")
JSON = {"title": "row", "type": "object", "properties": {"id": {"type": "integer"}}}
WRITING = {"avro": json.dumps(ORDER), "json": json.dumps(JSON)}
ROW = pa.struct({"id": pa.int32()})
BODIES = {"avro": b"\2", "json": b'{"id": 1}', "protobuf": b"\0\x08\1"}


def read(url: str, *records: bytes, kind: Any = "avro", **more: Any) -> list[Any]:
    """A row, or a problem's text, for each."""
    return registry_rows(registry_reader(kind, url, ROW, **more), *records)


def first(count: int, refusal: Refusal) -> Callable[[dict[str, str]], Refusal | None]:
    """Refuse the first ``count`` requests."""
    left = [refusal] * count
    return lambda _: left.pop() if left else None


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_an_outage_is_waited_through_and_a_schema_is_asked_for_once(
    registry: SmallRegistry, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    if kind == "protobuf":
        registry.add_protobuf(file_of(message("Order", id=FieldDescriptorProto.TYPE_INT32)))
    else:
        registry.add(WRITING[kind], kind.upper())
    record = header(1) + BODIES[kind]
    registry.refuses = first(2, (503, "<html>down</html>"))
    with caplog.at_level(logging.WARNING, "fkjoin"):
        assert read(registry.url, *[record] * 3, kind=kind) == [{"id": 1}] * 3
    assert registry.asked == {"/schemas/ids/1": 4 if kind == "protobuf" else 3}
    (warning,) = caplog.messages
    words = "503.*; tried again in .*, then ever more rarely"
    assert re.match(f"schema registry {registry.url}: .* {words}", warning)
    registry.refuses = lambda _: (503, "")
    assert read(registry.url, record, kind=kind) == [{"id": 1}], "it is known"


ANSWERS: list[tuple[Refusal, str]] = [
    ((503, "down"), r"503.*tried (once|\d+ times in \d+ s), retry_s = 0.2\). Start the query again when the outage is over"),
    ((401, {"error_code": 401, "message": "Unauthorized"}), "refuses: .*Unauthorized .* 401.* basic.auth.user.info"),
    ((404, "<html>no such page</html>"), "refuses: .*404.* Check the address"),
    ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "refuses: .*HTTP 404 Not Found"),
    ((200, "<html>log in</html>"), "refuses: JSONDecodeError"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS, ids=[f"{status}-{str(body)[:9]}" for (status, body), _ in ANSWERS])
def test_an_outage_and_a_refusal_stop_the_batch_and_make_no_dead_letters(
    registry: SmallRegistry, answer: Refusal, words: str
) -> None:
    """The error has the address without its password, and a refusal is told at once."""
    registry.refuses = lambda _: answer
    for kind in ("avro", "json", "protobuf"):
        with pytest.raises(FkJoinError, match=f"^schema registry {registry.url}[:/ ].*{words}") as caught:
            read(registry.url.replace("//", "//user:secret@"), b"\0\0\0\0\1\0?", kind=kind, retry_s=0.2)
        assert "secret" not in str(caught.value)
    assert answer[0] == 503 or registry.asked.total() <= 3
    registry.add(ORDER)
    registry.refuses = lambda _: None
    assert read(registry.url, framed(1, ORDER, {"id": 7})) == [{"id": 7}], "the same record, when the registry is well"


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_a_number_that_no_registry_gives_is_not_asked_for(registry: SmallRegistry, kind: Any) -> None:
    """Registries answer as to an address that is not theirs, which would stop the query."""
    registry.refuses = lambda _: (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
    (problem,) = read(registry.url, b"\0\x89PNG....", kind=kind)
    assert problem == "no header of a registry: 2303741511 is not a schema's id"
    with pytest.raises(FkJoinError, match="refuses"):
        read(registry.url, b"\0\x7f\xff\xff\xff....", kind=kind)
    assert registry.asked == {f"/schemas/ids/{2**31 - 1}": 1}


BEARER = (
    ("bearer.auth.credentials.source", "STATIC_TOKEN"),
    ("bearer.auth.token", "t0k3n"),
    ("bearer.auth.logical.cluster", "lsrc"),
)


@pytest.mark.parametrize(
    ("settings", "header"),
    [((("basic.auth.user.info", "ada:secret"),), basic("ada:secret")), (BEARER, "Bearer t0k3n"), ((), basic("url:pass"))],
)
def test_the_registry_is_told_who_asks(registry: SmallRegistry, settings: Any, header: str) -> None:
    number = registry.add(ORDER)
    registry.refuses = lambda headers: None if headers.get("Authorization") == header else (401, {"message": "no"})
    url = registry.url if settings else registry.url.replace("//", "//url:pass@")
    assert read(url, framed(number, ORDER, {"id": 1}), settings=settings) == [{"id": 1}]
    with pytest.raises(FkJoinError, match="refuses"):
        read(registry.url, framed(number, ORDER, {"id": 1}), settings=(("basic.auth.user.info", "eve:x"),))


def test_a_registry_that_asks_for_a_certificate_gets_one(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    for name in ("server", "client"):
        about = f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
        files = f"-keyout {name}.key -out {name}.crt"
        words = f"{command} {about} {files}".split()
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    tls.load_verify_locations(tmp_path / "client.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    with small_registry(tls) as registry:
        trusted = ("ssl.ca.location", str(tmp_path / "server.crt"))
        client = ("certificate", "client.crt"), ("key", "client.key")
        own = tuple((f"ssl.{part}.location", str(tmp_path / file)) for part, file in client)
        record = framed(registry.add(ORDER), ORDER, {"id": 1})
        assert read(registry.url, record, settings=(trusted, *own)) == [{"id": 1}]
        for settings in ((trusted,), own):
            with pytest.raises(FkJoinError, match=f"schema registry {registry.url}: .*retry_s = 0"):
                read(registry.url, record, settings=settings, retry_s=0)
        lost = (("ssl.ca.location", str(tmp_path / "nowhere.crt")),)
        with pytest.raises(FkJoinError, match=f"schema registry {registry.url} refuses: FileNotFoundError"):
            read(registry.url, record, settings=lost)


def test_schemas_refer_to_others_which_refer_to_others(registry: SmallRegistry) -> None:
    """The whole may be a union of them; a schema that is not there is the record's problem."""
    money = record_of("shop.Money", cents="long")
    line = record_of("shop.Line", price="shop.Money")
    order = record_of("shop.Order", line="shop.Line", id="int")
    to_money, to_line = ("shop.Money", "money", 3), ("shop.Line", "line", 1)
    registry.subjects["money", 3] = registry.add(money)
    registry.subjects["line", 1] = registry.add(line, references=(to_money,))
    registry.subjects["order", 1] = whole = registry.add(order, references=(to_line,))
    both = (("shop.Order", "order", 1), to_line)
    union = registry.add(["shop.Order", "shop.Line"], references=both)
    lost = registry.add(line, references=(("shop.Money", "gone", 1),))
    inline = record_of("shop.Order", line=record_of("shop.Line", price=money), id="int")
    record = framed(whole, inline, {"line": {"price": {"cents": 5}}, "id": 3})
    records = record, header(union) + b"\0" + record[5:], header(lost) + b"?"
    *rows, problem = read(registry.url, *records)
    assert rows == [{"id": 3}, {"id": 3}]
    assert problem.startswith("Schema not found")
    assert registry.asked["/subjects/money/versions/3"] == 1


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_writing_waits_through_an_outage(registry: SmallRegistry, kind: Any) -> None:
    """It asks as reading does, which a refusal stops."""
    registry.refuses = first(2, (503, "<html>down</html>"))
    write = _encoder(kind, SchemaRegistry(registry.url), WRITING[kind], "orders")
    written = write(Row(id=7))
    assert read(registry.url, written, kind=kind) == [{"id": 7}]
    assert registry.asked["/subjects/orders/versions"] == 3


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_a_schema_is_not_registered_where_that_is_switched_off(registry: SmallRegistry, kind: Any) -> None:
    own = SchemaRegistry(registry.url, (("auto.register.schemas", False),))
    with pytest.raises(
        FkJoinError, match="does not have the schema to write under orders: Schema not found.* Register it there"
    ):
        _encoder(kind, own, WRITING[kind], "orders")(Row(id=7))
    assert registry.schemas == []
    registry.add(WRITING[kind], kind.upper())
    assert read(registry.url, _encoder(kind, own, WRITING[kind], "orders")(Row(id=7)), kind=kind) == [{"id": 7}]


NO_JSON = T.TimestampType(), T.TimestampNTZType(), T.DateType(), T.DecimalType(9, 2), T.BinaryType()
TEXTS = T.MapType(T.StringType(), T.BinaryType())
NESTED = T.ArrayType(T.DateType()), TEXTS, T.StructType().add("a", T.DateType())


@pytest.mark.parametrize("kind", [*NO_JSON, *NESTED], ids=str)
def test_a_column_that_json_has_no_type_for_is_refused_before_the_start(kind: T.DataType) -> None:
    written = Registry("json", url="http://localhost", write_schema="{}", subject="s")
    row = T.StructType().add("id", T.IntegerType()).add("at", kind)
    with pytest.raises(TopologyError, match=r"Registry: JSON has no [\w(),]+, and at(.a)? is one; write it as a text, with"):
        written.encode(cast(Any, None), row)


def test_mistakes_of_writers_are_told_before_the_start() -> None:
    kind, row = T.StructType().add("id", T.IntegerType()), cast(Any, None)
    for settings, schema in (
        ((("auto.register.schemas", "no"),), WRITING["avro"]),
        ((), '{"type": "recor'),
        ((), '{"type": "x"}'),
    ):
        written = Registry("avro", None, "http://localhost", settings, write_schema=schema, subject="s")
        with pytest.raises(TopologyError, match="Registry: settings or write_schema: "):
            written.encode(row, kind)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "xml"}, 'kind \'xml\' is not one of "avro", "json", "protobuf"$'),
    ({"url": ""}, 'url: an address such as "http://registry:8081" is needed'),
    ({"retry_s": -1}, "retry_s: -1 is not a number of seconds"),
    ({"settings": {"basic.auth.users.info": "a:b"}}, r"Registry: settings or write_schema: .*basic.auth.users.info"),
    ({"url": "https://localhost", "settings": {"ssl.ca.location": __file__}}, "settings or write_schema: SSLError"),
]


@pytest.mark.parametrize(("given", "words"), MISTAKES)
def test_mistakes_are_told_when_the_format_is_made(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        Registry(**{"kind": "avro", "schema": "id int", "url": "http://localhost", **given})


def test_a_format_tells_no_password_and_takes_certificates_of_workers() -> None:
    Registry("avro", "id int", "https://localhost", {"ssl.ca.location": "/of/the/workers.pem"})
    with pytest.raises(TopologyError, match="Registry: schema: the columns to take are needed"):
        Registry("avro", url="http://localhost").reader()
    assert "secret" not in repr(Registry("avro", "id int", "http://ada:secret@localhost"))
