"""The map of left rows per right row, against the plain tables, after every batch and however it is paged."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.messages import Operation, column
from fkjoin.codec.rows import RowCodec
from fkjoin.stages import Counters, rekey
from fkjoin.stages.children import Family, children
from fkjoin.state import MemoryStore
from tests.oracle import Change, messages
from tests.test_faults import histories

ROW = pa.schema([("v", pa.binary())])
KEY = pa.schema([("id", pa.binary())])
RESULT = pa.schema([("v", pa.binary()), ("children", pa.map_(pa.binary(), pa.struct(list(ROW))))])
FAMILY = Family(KEY, ROW, ROW, RESULT)
TIMES: Any = {"now_ms": 0, "retention_ms": 10}

Table = dict[bytes, tuple[bytes, list[tuple[bytes, bytes]]]]


class Maps:
    """rekey and children over memory, and the table that the results lead to."""

    def __init__(self, page: int = 1000) -> None:
        self.stores, self.count, self.table = (MemoryStore(), MemoryStore(page)), Counters(), Table()
        self.sent = 0

    def batch(self, changes: list[Change], *, every: bool = False) -> None:
        coded = [
            row._replace(value=None if row.value is None else RowCodec(ROW).encode([pa.array([row.value])], 1)[0].as_py())
            for row in changes
        ]
        sides = messages(coded, left=True), messages(coded, left=False)
        rekeyed = rekey(sides[0], self.stores[0], self.count, every=every, **TIMES)
        pages = children(
            rekeyed.subscriptions, sides[1], self.stores[1], self.count, FAMILY, source=b"children", every=every, **TIMES
        )
        for page in pages:
            self.apply(page)

    def apply(self, results: pa.Table) -> None:
        rows = [part.to_pylist() for part in RowCodec(RESULT).decode(column(results, "value"))]
        for one, value, mapped in zip(results.to_pylist(), *rows, strict=True):
            key, before = one["key"], self.table.get(one["key"])
            gone = one["value"] is None
            assert one["operation"] == (Operation.DELETE if gone else Operation.INSERT if before is None else Operation.UPDATE)
            self.sent += 1
            if gone:
                del self.table[key]
            else:
                self.table[key] = value, [(child, row["v"]) for child, row in mapped]


def wanted(changes: list[Change]) -> Table:
    lefts = {change.key: change for change in changes if change.left}
    rights = {change.key: change.value for change in changes if not change.left}
    return {
        key: (
            value,
            [(child, row.value) for child, row in sorted(lefts.items()) if row.foreign_key == key and row.value is not None],
        )
        for key, value in rights.items()
        if value is not None
    }


@given(history=histories(40), cut=st.integers(1, 12), page=st.integers(1, 4), at_a_time=st.integers(1, 3))
@settings(max_examples=100)
def test_after_every_batch_each_right_row_has_its_left_rows(history: list[Change], cut: int, page: int, at_a_time: int) -> None:
    module = importlib.import_module("fkjoin.stages.children")
    maps, before = Maps(page), module.AT_A_TIME
    module.AT_A_TIME = at_a_time
    try:
        for start in range(0, len(history), cut):
            part = history[start : start + cut]
            maps.batch(part)
            assert maps.table == wanted(history[: start + cut])
            sent = maps.sent
            maps.batch(part)
            assert maps.sent == sent, "what comes again changes nothing"
    finally:
        module.AT_A_TIME = before


def test_groups_that_pages_cut_through_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("fkjoin.stages.children"), "AT_A_TIME", 2)
    maps, rights = Maps(4), [b"r%d" % number for number in range(8)]
    lefts = [Change(True, b"l%02d" % number, b"x", number, rights[number % 7 // 2]) for number in range(20)]
    maps.batch([*lefts, *(Change(False, key, b"A", 100) for key in rights)])
    again = [Change(False, key, b"B", 200) for key in rights]
    maps.batch(again)
    assert maps.table == wanted([*lefts, *again])


def test_one_change_of_many_children_writes_that_child_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = Maps(100)
    rows = [Change(True, b"c%04d" % number, b"x" * 50, number, b"a") for number in range(1000)]
    maps.batch([Change(False, b"a", b"A", 0), *rows])
    written = list[int]()
    write = maps.stores[1].write

    def counted(keys: Any, values: Any) -> None:
        written.append(sum(map(len, itertools.compress(values.to_pylist(), values.is_valid().to_pylist()))))
        write(keys, values)

    monkeypatch.setattr(maps.stores[1], "write", counted)
    maps.batch([Change(True, b"c0500", b"y", 2000, b"a")])
    assert maps.table[b"a"][1][500] == (b"c0500", b"y")
    assert len(maps.table[b"a"][1]) == 1000
    assert sum(written) < 300


def test_a_result_is_sent_when_it_differs_and_its_version_goes_up() -> None:
    maps = Maps()
    maps.batch([Change(True, b"1", b"x", 1, b"a"), Change(True, b"2", b"y", 2, b"b")])
    assert maps.sent == 0, "without a right row there is no result"
    maps.batch([Change(False, b"a", b"A", 3)])
    maps.batch([Change(True, b"1", b"x", 4, b"a")])
    assert (maps.sent, maps.count["idempotent-update-skip"]) == (1, 1)
    maps.batch([Change(True, b"1", b"x", 5, b"a")], every=True)
    assert maps.sent == 2
    maps.batch([Change(False, b"a", None, 6)])
    maps.batch([Change(False, b"a", b"A", 7)])
    assert maps.table == {b"a": (b"A", [(b"1", b"x")])}
    stored = dict(maps.stores[1].items())[b"da"]
    assert versions.decode(stored[12:29])[0][1] == (4,)
