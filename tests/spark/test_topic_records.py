"""A topic's records read by the workers: what Spark's expressions read, with the same verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.codec.messages import CHANGE, column, unpack
from fkjoin.errors import FormatError, TopologyError
from fkjoin.kafka.formats import Bytes, Debezium, Json, String, key_reader, reader
from fkjoin.spark.change_events import ReadEvents, ReadKeys
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.topic_records import DeadRecords, PackRecords, ReadBytes, Reader, ReadObjects, TopicRecords

ROW = pa.schema([("fk", pa.string()), ("n", pa.int64())])


def read(how: Reader, *values: bytes | None) -> tuple[list[Any], list[bool], list[str | None]]:
    found = how(pa.array(values, pa.binary()))
    return found.rows.to_pylist(), found.deleted.tolist(), found.problem.to_pylist()


def test_text_must_be_utf_8_and_bytes_need_not() -> None:
    values = b"a", None, b"\xff", "é".encode()
    assert read(ReadBytes("it", text=True), *values) == (
        [{"it": "a"}, {"it": None}, {"it": None}, {"it": "é"}],
        [False, True, False, False],
        [None, None, "not UTF-8", None],
    )
    rows, deleted, problems = read(ReadBytes("it", text=False), *values)
    assert (rows, deleted, problems) == ([{"it": value} for value in values], [False, True, False, False], [None] * 4)


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


def records(*items: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([3] * len(items), pa.int32()),
            "offset": pa.array(range(70, 70 + len(items)), pa.int64()),
            "timestamp": pa.array([5] * len(items), pa.timestamp("us", "UTC")),
            "key": pa.array([key for key, _ in items], pa.binary()),
            "value": pa.array([value for _, value in items], pa.binary()),
        }
    )


def topic(fail: bool = False) -> TopicRecords:
    key = ReadObjects(pa.schema([("shop", pa.int64()), ("item", pa.string())]), "key")
    return TopicRecords("orders", key, ReadObjects(ROW, "this"), bytes(range(1, 9)), fail)


def test_the_first_problem_of_a_record_is_told_and_a_query_told_to_fail_names_the_record() -> None:
    good = b'{"shop": 1, "item": "a"}'
    batch = records((good, b"{}"), (None, b"?"), (b"?", b"?"), (b'{"shop": 1}', b"?"), (good, b"?"), (good, None))
    problems = topic().problems(batch).to_pylist()
    assert problems == [
        None,
        "null key",
        "key: not JSON that fits key",
        "key: no item",
        "value: not JSON that fits this",
        None,
    ]
    with pytest.raises(FormatError, match=r"record orders-3 offset 71: null key; with on_error="):
        topic(fail=True).changes(batch)
    assert topic(fail=True).changes(batch.slice(4).slice(1)).num_rows == 1
    (dead,) = DeadRecords(topic())(iter([batch]))
    assert dead.column("offset").to_pylist() == [71, 72, 73, 74]
    assert dead.column("problem").to_pylist() == problems[1:5]


def test_records_become_changes_with_their_place_as_version() -> None:
    reading = topic()
    pack = PackRecords(reading, PackChanges(reading.key.schema, None, ROW, 1))
    found = [
        unpack(payload)
        for frame in pack(iter([records((b'{"shop": 1, "item": "a"}', b'{"n": 4}'), (None, b"{}"))]))
        for payload in frame.column("payload").to_pylist()
        if payload
    ]
    assert [table.schema for table in found] == [CHANGE]
    large = records((b'{"shop": 1, "item": "a"}', b'{"n": 4}'))
    for at, name in enumerate(large.schema.names):
        if name in ("key", "value"):
            large = large.set_column(at, name, large.column(name).cast(pa.large_binary()))
    assert reading.changes(large).column("row").to_pylist() == [{"fk": None, "n": 4}]
    (version,) = column(found[0], "version").to_pylist()
    place = b"".join((number + (1 << 63)).to_bytes(8, "big") for number in (0, 3, 70))
    assert version == bytes((0x83, 1, 2, 3, 4, 5, 6, 7, 8)) + place
    assert column(found[0], "ts").to_pylist() == [5]


def test_rows_say_where_their_records_were_read_if_they_are_to() -> None:
    """Null rows stay null."""
    events = records((b"a", b'{"op": "c", "after": {"n": 4}}'), (b"b", None), (b"c", b'{"op": "d"}'), (b"d", b"?"))
    plain = TopicRecords("orders", ReadBytes("key", text=True), ReadEvents(EventRows(ROW), "this"), bytes(8), fail=False)
    placed = replace(plain, positions=True)
    rows = placed.changes(events).column("row")
    assert rows[0].as_py() == {"fk": None, "n": 4, "_position": {"topic": "orders", "partition": 3, "offset": 70}}
    assert rows.is_null().to_pylist() == plain.changes(events).column("row").is_null().to_pylist() == [False, True, True, True]
    assert placed.changes(records()).num_rows == 0


def test_which_formats_can_be_read(spark: SparkSession) -> None:
    assert all(
        reader(given) for given in (String("a"), Bytes("a"), Json("at timestamp, m map<string, int>"), Debezium("payload int"))
    )
    assert key_reader(Debezium("id int")) is not None
    with pytest.raises(TopologyError, match="column cannot be called 'payload'"):
        key_reader(Debezium("payload int"))
    for odd in ("a int, a int", "m map<int, string>"):
        with pytest.raises(TopologyError, match="cannot be read from JSON"):
            Json(odd).decode(F.col("value"))


def test_columns_that_may_not_be_null_can_be(spark: SparkSession) -> None:
    """Fields that a record lacks are null, whatever the schema promises, as with Spark's own ``from_json``."""
    told = Json("a int not null, b array<string> not null").decode(F.col("value"))
    frame = spark.createDataFrame([(b'{"a": 1}',), (b'{"b": [null]}',)], "value binary").select(told.row, told.problem)
    assert all(field.nullable for field in frame.schema[0].dataType)
    assert [tuple(row[0]) for row in frame.collect()] == [(1, None), (None, [None])]


def test_of_text_workers_say_what_sparks_expressions_say(spark: SparkSession) -> None:
    """For other formats, Spark's expressions call the workers' readers."""
    values = [None, b"", "é".encode(), b"\xff", b'{"fk":"\xc3\x28"}']
    for form in (String("it"), Bytes("it")):
        told = form.decode(F.col("value"))
        frame = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)
        found = frame.select(told.row.getField("it").alias("it"), told.deleted, told.problem).collect()
        rows, deleted, problems = read(form.reader(), *values)
        assert [row[1:] for row in found] == list(zip(deleted, problems, strict=True))
        assert [row["it"] for row, *_ in zip(rows, strict=True)] == [row.it if row[2] is None else None for row in found]
