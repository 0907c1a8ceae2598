"""The map of left rows per right row, against the plain tables, after every batch and however it is paged."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

from fkjoin.codec import versions
from tests.support.child_rows import Maps, wanted
from tests.support.laws import law
from tests.support.oracle import Change, histories


@law(100, history=histories(40), cut=st.integers(1, 12), page=st.integers(1, 4), at_a_time=st.integers(1, 3))
def test_after_every_batch_each_right_row_has_its_left_rows(history: list[Change], cut: int, page: int, at_a_time: int) -> None:
    maps = Maps(page)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.import_module("fkjoin.stages.children"), "AT_A_TIME", at_a_time)
        for start in range(0, len(history), cut):
            part = history[start : start + cut]
            maps.batch(part)
            assert maps.table == wanted(history[: start + cut])
            sent = maps.sent
            maps.batch(part)
            assert maps.sent == sent, "what comes again changes nothing"


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
    maps.batch([Change(True, b"1", b"x", 1, b"a"), Change(False, b"a", b"A", 3)])
    maps.batch([Change(True, b"1", b"x", 4, b"a")])
    assert (maps.sent, maps.count["idempotent-update-skip"]) == (1, 1)
    maps.batch([Change(True, b"1", b"x", 5, b"a")], every=True)
    assert maps.sent == 2
    maps.batch([Change(False, b"a", None, 6)])
    maps.batch([Change(False, b"a", b"A", 7)])
    stored = dict(maps.stores[1].items())[b"da"]
    assert versions.decode(stored[12:29])[0][1] == (4,)
