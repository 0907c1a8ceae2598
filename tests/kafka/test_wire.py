"""The staged deployment's records: round trips, golden bytes, refusals; and Java's partitioner."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin import FormatError
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import ANSWER, SUBSCRIPTION
from fkjoin.kafka import wire
from fkjoin.kafka.murmur2 import murmur2, partitions_of
from fkjoin.kafka.wire import WireRecords

SOURCE = bytes.fromhex("0a0b0c0d00000005")
"""Partition 5 of some topic."""

DATA = st.binary(max_size=12)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = st.integers(-(1 << 62), 1 << 62)


def version(*offsets: int) -> bytes:
    parts = [versions.encode(SOURCE, [np.array([offset])]).to_pylist()[0] for offset in offsets]
    return b"".join(parts)


def table_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


subscriptions, answers = (functools.partial(table_of, schema) for schema in (SUBSCRIPTION, ANSWER))


ONE, TWO = NUMBERS.map(version), st.tuples(NUMBERS, NUMBERS).map(lambda pair: version(*pair))
MAYBE = st.none() | DATA
COMING = st.tuples(DATA, DATA, st.just(True), ONE, DATA, TIMES)
LEAVING = st.tuples(DATA, DATA, st.just(False), ONE, st.none(), TIMES)
SUBSCRIPTIONS = st.lists(COMING | LEAVING, max_size=5)
ANSWERS = st.lists(st.tuples(DATA, TWO, MAYBE, MAYBE, TIMES), max_size=5)


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
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
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
