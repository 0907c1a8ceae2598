"""A topic's records read by the workers: what Spark's expressions read, with the same verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.codec.messages import CHANGE, column, unpack
from fkjoin.errors import FormatError, TopologyError
from fkjoin.kafka.formats import Bytes, Debezium, Format, Json, String, reader
from fkjoin.spark.change_events import ReadEvents, ReadKeys
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.packing import PackChanges, PackRead
from fkjoin.spark.topic_records import DeadRecords, ReadBytes, Reader, ReadObjects, TopicRecords

BINARY = pa.binary()
ROW = pa.schema([("fk", pa.string()), ("n", pa.int64())])


def read(how: Reader, *values: bytes | None) -> tuple[list[Any], list[bool], list[str | None]]:
    found = how(pa.array(values, pa.binary()))
    return found.rows.to_pylist(), found.deleted.tolist(), found.problem.to_pylist()


def test_text_must_be_utf_8_and_bytes_need_not() -> None:
    values = b"a", None, b"\xff", "é".encode()
    deleted = [False, True, False, False]
    texts = [{"it": "a"}, {"it": None}, {"it": None}, {"it": "é"}]
    problems = [None, None, "not UTF-8", None]
    assert read(ReadBytes("it", text=True), *values) == (texts, deleted, problems)
    whole = [{"it": value} for value in values]
    assert read(ReadBytes("it", text=False), *values) == (whole, deleted, [None] * 4)


def test_objects_are_told_from_what_is_none_and_can_keep_their_text() -> None:
    wrong = "not JSON that fits this"
    values = b'{"fk": "a", "more": [1]}', None, b"null", b'{"fk": "a", "n": "x"}', b"[{}]", b'\n {"n": 7}', b'{"fk":"\xff"}'
    rows, deleted, problems = read(ReadObjects(ROW, "this", text_column="whole"), *values)
    assert problems == [None, None, wrong, wrong, wrong, None, wrong]
    assert deleted == [False, True, False, False, False, False, False]
    assert rows[0] == {"fk": "a", "n": None, "whole": '{"fk": "a", "more": [1]}'}
    assert rows[5] == {"fk": None, "n": 7, "whole": '\n {"n": 7}'}
    assert read(ReadObjects(ROW, "this"), *values)[2][6] == wrong
    wrapped = read(ReadKeys(ROW, "this"), b'{"schema": 1, "payload": {"fk": "in"}}', b'{"fk": "out"}')
    assert [row["fk"] for row in wrapped[0]] == ["in", "out"]


def records(*items: tuple[bytes | None, bytes | None], kind: Any = BINARY) -> pa.RecordBatch:
    """Records of a partition from offset 70 on; ``kind``: the type of keys and values."""
    count, (keys, values) = len(items), zip(*items, strict=True)
    columns = {
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(70, 70 + count), pa.int64()),
        "timestamp": pa.array([5] * count, pa.timestamp("us", "UTC")),
        "key": pa.array(keys, kind),
        "value": pa.array(values, kind),
    }
    return pa.record_batch(columns)


def topic(fail: bool = False) -> TopicRecords:
    key = ReadObjects(pa.schema({"shop": pa.int64(), "item": pa.string()}), "key")
    return TopicRecords("orders", key, ReadObjects(ROW, "this"), bytes(range(1, 9)), fail)


def test_the_first_problem_of_a_record_is_told_and_a_query_told_to_fail_names_the_record() -> None:
    good = b'{"shop": 1, "item": "a"}'
    cases = {
        (good, b"{}"): None,
        (None, b"?"): "null key",
        (b"?", b"?"): "key: not JSON that fits key",
        (b'{"shop": 1}', b"?"): "key: no item",
        (good, b"?"): "value: not JSON that fits this",
        (good, None): None,
    }
    batch, problems = records(*cases), [*cases.values()]
    assert topic().read(batch)[2].to_pylist() == problems
    with pytest.raises(FormatError, match=r"record orders-3 offset 71: null key; with on_error="):
        topic(fail=True).changes(batch)
    assert topic(fail=True).changes(batch.slice(4).slice(1)).num_rows == 1
    (dead,) = DeadRecords(topic())(iter([batch]))
    assert dead.column("offset").to_pylist() == [71, 72, 73, 74]
    assert dead.column("problem").to_pylist() == problems[1:5]


def test_records_become_changes_with_their_place_as_version() -> None:
    reading, record = topic(), (b'{"shop": 1, "item": "a"}', b'{"n": 4}')
    pack = PackRead(reading, PackChanges(reading.key.schema, None, ROW, 1))
    frames = pack(iter([records(record, (None, b"{}"))]))
    payloads = [payload for frame in frames for payload in frame.column("payload").to_pylist()]
    (changes,) = (unpack(payload) for payload in payloads if payload)
    assert changes.schema == CHANGE
    place = b"".join((number + (1 << 63)).to_bytes(8, "big") for number in (0, 3, 70))
    version = bytes((0x83, 1, 2, 3, 4, 5, 6, 7, 8)) + place
    assert column(changes, "version").to_pylist() == [version]
    assert column(changes, "ts").to_pylist() == [5]
    large = records(record, kind=pa.large_binary())
    assert reading.changes(large).column("row").to_pylist() == [{"fk": None, "n": 4}]


def test_rows_say_where_their_records_were_read_if_they_are_to() -> None:
    """Null rows stay null."""
    values = b'{"op": "c", "after": {"n": 4}}', None, b'{"op": "d"}', b"?"
    events = records(*((b"a", value) for value in values))
    key, value = ReadBytes("key", text=True), ReadEvents(EventRows(ROW), "this")
    plain = TopicRecords("orders", key, value, bytes(8), fail=False)
    placed = replace(plain, positions=True)
    first, *others = placed.changes(events).column("row").to_pylist()
    position = {"topic": "orders", "partition": 3, "offset": 70}
    assert first == {"fk": None, "n": 4, "_position": position}
    assert others == plain.changes(events).column("row").to_pylist()[1:] == [None] * 3
    assert placed.changes(events.slice(4)).num_rows == 0


def test_columns_that_cannot_be_read_from_json_are_refused(spark: SparkSession) -> None:
    assert reader(Debezium("payload int")) is not None
    for odd in ("a int, a int", "m map<int, string>"):
        with pytest.raises(TopologyError, match="cannot be read from JSON"):
            Json(odd).decode(F.col("value"))


def decoded(spark: SparkSession, form: Format, *values: bytes | None) -> DataFrame:
    frame = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)
    return frame.select(*form.decode(F.col("value")))


def test_columns_that_may_not_be_null_can_be(spark: SparkSession) -> None:
    """Fields that a record lacks are null, whatever the schema promises, as with Spark's own ``from_json``."""
    form = Json("a int not null, b array<string> not null")
    frame = decoded(spark, form, b'{"a": 1}', b'{"b": [null]}')
    assert all(field.nullable for field in frame.schema[0].dataType)
    assert [tuple(row[0]) for row in frame.collect()] == [(1, None), (None, [None])]


def test_of_text_workers_say_what_sparks_expressions_say(spark: SparkSession) -> None:
    """For other formats, Spark's expressions call the workers' readers."""
    values = [None, b"", "é".encode(), b"\xff", b'{"fk":"\xc3\x28"}']
    for form in (String("it"), Bytes("it")):
        rows, deleted, problems = read(form.reader(), *values)
        collected = decoded(spark, form, *values).collect()
        assert [row[1:] for row in collected] == list(zip(deleted, problems, strict=True))
        usable = [row and row.it for row, _, problem in collected if problem is None]
        pairs = zip(rows, problems, strict=True)
        assert usable == [row["it"] for row, problem in pairs if problem is None]
