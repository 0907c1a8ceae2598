"""The staged deployment's records: round trips, golden bytes, refusals; and Java's partitioner.

Records of a repartition topic (KIP-904) may come twice, late and out of order.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin import FormatError
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import ANSWER, GROUPED, SUBSCRIPTION, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.kafka import wire
from fkjoin.kafka.murmur2 import murmur2, partitions_of
from fkjoin.kafka.wire import WireRecords
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.regroup import regroup
from tests.support.grouping import SOURCE, TIMES, Change, Grouping, recomputed_sums
from tests.support.sampling import examples

PARTITION_5 = bytes.fromhex("0a0b0c0d00000005")
"""Partition 5 of some topic."""

DATA = st.binary(max_size=12)
STAMPS = st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = st.integers(-(1 << 62), 1 << 62)


def version(*offsets: int) -> bytes:
    parts = [versions.encode(PARTITION_5, [np.array([offset])]).to_pylist()[0] for offset in offsets]
    return b"".join(parts)


def table_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


subscriptions, answers = (functools.partial(table_of, schema) for schema in (SUBSCRIPTION, ANSWER))


ONE, TWO = NUMBERS.map(version), st.tuples(NUMBERS, NUMBERS).map(lambda pair: version(*pair))
MAYBE = st.none() | DATA
COMING = st.tuples(DATA, DATA, st.just(True), ONE, DATA, STAMPS)
LEAVING = st.tuples(DATA, DATA, st.just(False), ONE, st.none(), STAMPS)
SUBSCRIPTIONS = st.lists(COMING | LEAVING, max_size=5)
ANSWERS = st.lists(st.tuples(DATA, TWO, MAYBE, MAYBE, STAMPS), max_size=5)


@given(SUBSCRIPTIONS, ANSWERS)
def test_records_round_trip(registered: list[Any], answered: list[Any]) -> None:
    sent, replies = subscriptions(registered), answers(answered)
    assert wire.read_registrations(wire.registrations(sent)).equals(sent)
    assert wire.read_responses(wire.responses(replies)).equals(replies)


def hexes(records: WireRecords) -> list[str | None]:
    found = [records.key, records.value, *records.headers]
    return [None if (value := column.to_pylist()[0]) is None else value.hex() for column in found]


def test_golden_registrations() -> None:
    one = [(b"a", b"bc", True, version(7), b"row", 9), (b"a", b"bc", False, version(7), None, 9)]
    mark = "01" + "0a0b0c0d00000005" + "8000000000000007"
    key = "00000001" + "61" + "6263"
    propagated = [key, "726f77", "01" + mark, "02", "01", "0000000000000009"]
    assert hexes(wire.registrations(subscriptions(one[:1]))) == propagated
    left = [key, None, "01" + mark, "00", "00", "0000000000000009"]
    assert hexes(wire.registrations(subscriptions(one[1:]))) == left


def test_golden_responses() -> None:
    rows = [(b"bc", version(7, 8), b"left", b"right", 9)]
    pair = "01" + "0a0b0c0d00000005" + "8000000000000007" + "01" + "0a0b0c0d00000005" + "8000000000000008"
    body = "03" + "00000004" + b"leftright".hex()
    assert hexes(wire.responses(answers(rows))) == ["6263", body, "01" + pair, "02", "01", "0000000000000009"]


OTHERS = "is not one that fkjoin writes: is something else"


@pytest.mark.parametrize(
    ("place", "header", "says"),
    [
        (0, b"\2", "wire version 2, this release reads 1"),
        *((1, bytes([odd]), f"a header fkjoin\\.instruction {OTHERS}") for odd in (0, 1, 3, 4)),
        (0, None, "lacks the header fkjoin.version: is something else writing"),
    ],
)
def test_headers_of_others_are_refused(place: int, header: bytes | None, says: str) -> None:
    records = wire.registrations(subscriptions([(b"a", b"b", True, version(1), b"v", 0)]))
    assert len(wire.read_registrations(records)) == 1, "as they were"
    headers = [*records.headers]
    headers[place] = pa.array([header], BYTES)
    with pytest.raises(FormatError, match=says):
        wire.read_registrations(records._replace(headers=tuple(headers)))


@given(st.integers(0, 2**31 - 1))
def test_a_version_tells_the_partition(partition: int) -> None:
    place = [np.array([number]) for number in (7, partition, 3)]
    both = [versions.encode(versions.identity("topic"), place, placed=True).to_pylist()[0], version(4)]
    assert versions.first_places(pa.array([b"".join(both)], BYTES)).partition.tolist() == [partition]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"a-little-bit-long-string", -985981536),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, hashed: int) -> None:
    assert murmur2(pa.array([b"", key, b"x" * 9], BYTES)).view(np.int32)[1] == hashed


@given(st.lists(st.binary(max_size=20) | st.binary(min_size=250, max_size=300), max_size=6))
def test_a_keys_partition_does_not_depend_on_its_neighbours(keys: list[bytes]) -> None:
    alone = [partitions_of(pa.array([key], BYTES), 7)[0] for key in keys]
    assert partitions_of(pa.array(keys, BYTES), 7).tolist() == alone


BODY = st.none() | st.binary(max_size=6)


def grouped(*rows: tuple[bytes, bytes, bytes | None, bytes | None], ts: int = 7) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], BYTES) for at in range(4)]
    version = versions.encode(SOURCE, [np.arange(len(rows), dtype=np.int64)])
    return table(GROUPED, columns[0], columns[1], version, *columns[2:], np.full(len(rows), ts, np.int64))


def records_of(*records: tuple[Any, Any, tuple[Any, ...]]) -> WireRecords:
    rows = [(key, value, *headers) for key, value, headers in records]
    key, value, *headers = [pa.array(column, BYTES) for column in zip(*rows, strict=True)]
    return WireRecords(key, value, tuple(headers))


def picked(records: WireRecords, places: list[int]) -> WireRecords:
    rows = pa.array(places, pa.int64())
    headers = tuple(header.take(rows) for header in records.headers)
    return WireRecords(records.key.take(rows), records.value.take(rows), headers)


def test_golden_changes() -> None:
    rows = grouped(
        (b"g", b"r", b"old", b"new!"), (b"g", b"r", b"old", None), (b"g", b"r", None, b"new!"), (b"g", b"r", b"", b"")
    )
    made = wire.changes(rows)
    assert made.value.to_pylist() == [b"\0\0\0\4new!old\2", b"old\0", b"new!\1", b"\0\0\0\0\2"]
    assert made.key.to_pylist() == [b"g"] * 4
    version, row, time = (header[0].as_py() for header in made.headers)
    assert (row, time) == (b"r", b"\0\0\0\0\0\0\0\7")
    assert version == b"\1" + rows.column("version")[0].as_py()


@given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3), BODY, BODY), max_size=8), st.integers(-(1 << 63), 9))
def test_what_was_written_is_read(rows: list[Any], ts: int) -> None:
    rows = [row for row in rows if row[2] is not None or row[3] is not None]
    sent = grouped(*rows, ts=ts)
    records = wire.changes(sent)
    assert wire.problems(records).null_count == len(records.key)
    assert wire.read_changes(records).to_pylist() == sent.to_pylist()


GOOD = (b"\1v", b"r", b"\0" * 8)


@pytest.mark.parametrize(
    ("key", "value", "headers", "says"),
    [
        (None, b"x\1", GOOD, "has no key"),
        (b"g", b"", GOOD, "the value is empty"),
        (b"g", b"x\3", GOOD, "last byte is not 0, 1 or 2"),
        (b"g", b"\2", GOOD, "the new value is cut off"),
        (b"g", b"\0\0\0\4new\2", GOOD, "the new value is cut off"),
        (b"g", b"\xff\0\0\0new!\2", GOOD, "the new value is cut off"),
        (b"g", b"x\1", (None, b"r", b"\0" * 8), "a header fkjoin.version, fkjoin.row or fkjoin.timestamp is missing"),
        (b"g", b"x\1", (b"", b"r", b"\0" * 8), "the header fkjoin.version is empty"),
        (b"g", b"x\1", (b"\1v", b"r", b"\0" * 7), "has not 8 bytes"),
    ],
)
def test_what_is_no_such_record_is_told_apart(key: Any, value: Any, headers: Any, says: str) -> None:
    found = wire.problems(records_of((key, value, headers), (b"g", b"fine\1", GOOD))).to_pylist()
    assert says in found[0]
    assert found[1] is None


def test_a_record_of_another_release_stops_the_query() -> None:
    """A dead letter would leave the row out of its group for good."""
    for wire_version in (b"\0", b"\2"):
        records = records_of((b"g", b"x\1", (wire_version + b"v", b"r", b"\0" * 8)), (b"g", b"fine\1", GOOD))
        with pytest.raises(FormatError, match=f"wire version {wire_version[0]}, this release reads 1: run all queries"):
            wire.problems(records)


@given(st.binary(max_size=12), st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=3))
def test_contributions_of_another_length_are_noticed(noise: bytes, numbers: list[int | None]) -> None:
    codec = RowCodec(pa.schema([("n", pa.int64()), ("t", pa.string())]))
    rows = codec.encode([pa.array(numbers, pa.int64()), pa.array(["x" * (n or 0) for n in numbers])], len(numbers))
    assert codec.fits(rows).all()
    assert codec.fits(pa.array([None], BYTES)).all()
    if noise:
        longer = pa.array([row + noise for row in rows.to_pylist()], BYTES)
        assert not codec.fits(longer).any()
        assert not codec.fits(pa.array([row[: -len(noise)] for row in rows.to_pylist()], BYTES)).any()


COLUMNS = (Count("rows"), WholeSum("total", 0, "sum"), Extreme("least", 0, "min", pa.int64()))


class Staged(Grouping):
    """Stages ``regroup`` and ``aggregate``, with records between them, of a random history."""

    def __init__(self, rng: random.Random, size: int) -> None:
        super().__init__(pa.schema([("n", pa.int64())]), *COLUMNS)
        self.changes, grouped = list[Change](), list[pa.Table]()
        for version in range(size):
            key, group = rng.choice("abcdef"), rng.choice(["g", "h", "g", None])
            self.changes.append(Change(key, version, group, (rng.randrange(5),)))
            messages = self.messages(self.changes[-1:])
            grouped.append(regroup(messages, self.rows, self.count, **TIMES))
        self.records = wire.changes(pa.concat_tables(grouped))

    def read(self, places: list[int]) -> None:
        records = picked(self.records, places)
        assert wire.problems(records).null_count == len(records.key)
        arrived = wire.read_changes(records)
        how = {"source": SOURCE, "guarded": True, **TIMES}
        self.apply(aggregate(arrived, self.groups, self.count, self.fold, **how))

    def wanted(self) -> dict[str, Any]:
        """The table of all changes."""
        wide = recomputed_sums(self.changes)
        return {group: (row[0], row[2], row[8]) for group, row in wide.items()}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(40))
def test_records_that_come_twice_late_and_in_any_order_end_in_the_same_aggregates(seed: int) -> None:
    rng = random.Random(seed)
    staged = Staged(rng, 30)
    every = range(len(staged.records.key))
    places = [*every, *rng.choices(every, k=10)]
    rng.shuffle(places)
    while places:
        cut = rng.randrange(1, 9)
        staged.read(places[:cut])
        places = places[cut:]
    assert staged.table == staged.wanted()
