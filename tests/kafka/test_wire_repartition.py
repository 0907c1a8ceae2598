"""KIP-904's records of a repartition topic: golden bytes, refusals, and a way that loses order."""

from __future__ import annotations

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
from fkjoin.codec.messages import GROUPED, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.kafka import wire as wire_change
from fkjoin.kafka.wire import WireRecords
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.regroup import regroup
from tests.support.grouping import SOURCE, TIMES, Change, Grouping, recomputed_sums
from tests.support.sampling import examples

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


def test_golden_bytes() -> None:
    rows = grouped(
        (b"g", b"r", b"old", b"new!"), (b"g", b"r", b"old", None), (b"g", b"r", None, b"new!"), (b"g", b"r", b"", b"")
    )
    made = wire_change.changes(rows)
    assert made.value.to_pylist() == [b"\0\0\0\4new!old\2", b"old\0", b"new!\1", b"\0\0\0\0\2"]
    assert made.key.to_pylist() == [b"g"] * 4
    version, row, time = (header[0].as_py() for header in made.headers)
    assert (row, time) == (b"r", b"\0\0\0\0\0\0\0\7")
    assert version == b"\1" + rows.column("version")[0].as_py()


@given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3), BODY, BODY), max_size=8), st.integers(-(1 << 63), 9))
def test_what_was_written_is_read(rows: list[Any], ts: int) -> None:
    rows = [row for row in rows if row[2] is not None or row[3] is not None]
    sent = grouped(*rows, ts=ts)
    records = wire_change.changes(sent)
    assert wire_change.problems(records).null_count == len(records.key)
    assert wire_change.read_changes(records).to_pylist() == sent.to_pylist()


GOOD = (b"\1v", b"r", b"\0" * 8)


@pytest.mark.parametrize(
    ("key", "value", "headers", "says"),
    [
        (None, b"x\1", GOOD, "has no key"),
        (b"g", None, GOOD, "the value is empty"),
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
    found = wire_change.problems(records_of((key, value, headers), (b"g", b"fine\1", GOOD))).to_pylist()
    assert says in found[0]
    assert found[1] is None


def test_a_record_of_another_release_stops_the_query() -> None:
    """A dead letter would leave the row out of its group for good."""
    for wire_version in (b"\0", b"\2"):
        records = records_of((b"g", b"x\1", (wire_version + b"v", b"r", b"\0" * 8)), (b"g", b"fine\1", GOOD))
        with pytest.raises(FormatError, match=f"wire version {wire_version[0]}, this release reads 1: run all queries"):
            wire_change.problems(records)


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
        self.records = wire_change.changes(pa.concat_tables(grouped))

    def read(self, places: list[int]) -> None:
        records = picked(self.records, places)
        assert wire_change.problems(records).null_count == len(records.key)
        arrived = wire_change.read_changes(records)
        how = {"source": SOURCE, "guarded": True, **TIMES}
        self.apply(aggregate(arrived, self.groups, self.count, self.fold, **how))

    def wanted(self, end: int | None = None) -> dict[str, Any]:
        """The table of all changes, or of so many."""
        wide = recomputed_sums(self.changes[:end])
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


@pytest.mark.nightly
@given(seed=st.integers(0, 10_000))
@settings(max_examples=40)
def test_records_in_order_show_nothing_in_between_wherever_a_batch_ends(seed: int) -> None:
    """Stretches of records come again."""
    staged = Staged(random.Random(seed), 20)
    allowed = [staged.wanted(end) for end in range(len(staged.changes) + 1)]
    keys = staged.records.key.to_pylist()
    for group in ("g", "h"):
        places = [at for at, key in enumerate(keys) if key == group.encode()]
        for at in range(len(places)):
            staged.read(places[at : at + 1])
            staged.read(places[max(0, at - 3) : at + 1])
            assert staged.table.get(group) in [one.get(group) for one in allowed]
    assert staged.table == allowed[-1]
