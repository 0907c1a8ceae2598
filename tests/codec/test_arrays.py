"""Bulk operations on arrays of bytes: they are what Python does to each element, and copy what they must."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.arrays import BYTES, chosen, prefixed, slices, stack, take, window
from tests.support.versions import array

PLACES = st.tuples(st.integers(0, 30), st.integers(0, 10), st.booleans())


@pytest.mark.parametrize("in_order", [True, False])
@given(st.data())
def test_slices_and_windows_are_what_python_slices(in_order: bool, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=40, max_size=60))
    places = data.draw(st.lists(PLACES, max_size=12))
    if in_order:  # each begins where the one before it ends, or later
        ends = list(itertools.accumulate(size for _, size, _ in places))
        places = [(end - size, size, there) for end, (_, size, there) in zip(ends, places, strict=True) if end <= 40]
    octets = np.frombuffer(content, np.uint8)
    starts, sizes, there = (np.array([place[at] for place in places], kind) for at, kind in enumerate((int, int, bool)))
    wanted = [content[start : start + size] if there else None for start, size, there in places]
    assert slices(octets, starts, sizes, there).to_pylist() == wanted
    assert [row.tobytes() for row in window(octets, starts, 7)] == [
        content[start : start + 7].ljust(7, b"\0") for start, _, _ in places
    ]


ITEMS = st.lists(st.none() | st.binary(max_size=5), max_size=8)


@given(ITEMS, st.data())
def test_taking_is_what_python_indexing_is(items: list[bytes | None], data: st.DataObject) -> None:
    whole = array(b"before", *items, b"behind").slice(1, len(items))
    everything = list(range(len(items)))
    places = data.draw(st.permutations(everything) | st.lists(st.sampled_from(everything or [0]), max_size=8 * bool(items)))
    there = data.draw(st.none() | st.lists(st.booleans(), min_size=len(places), max_size=len(places)))
    taken = take(whole, np.array(places, np.int64), None if there is None else np.array(there, bool))
    wanted = there or [True] * len(places)
    assert taken.to_pylist() == [items[place] if one else None for place, one in zip(places, wanted, strict=True)]


@given(st.lists(ITEMS, min_size=1, max_size=4))
def test_stacking_is_what_adding_lists_is(parts: list[list[bytes | None]]) -> None:
    stacked = stack(*(array(*part) for part in parts))
    assert (stacked.type, stacked.to_pylist()) == (BYTES, list(itertools.chain.from_iterable(parts)))


def test_what_stays_as_it_is_is_not_copied() -> None:
    """New memory is what a large batch pays most for."""
    whole = array(b"a", None, b"c")
    assert take(whole, np.arange(3)) is whole
    assert stack(array(), whole, array()) is whole
    assert stack(whole, whole) is not whole
    with pytest.raises(pa.ArrowIndexError):
        take(whole, np.arange(1, 4))


@given(ITEMS, st.data())
def test_choosing_is_what_a_python_filter_is(items: list[bytes | None], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    given = array(*items)
    assert chosen(given, np.array(which, bool)).to_pylist() == list(itertools.compress(items, which))
    assert chosen(given, np.ones(len(items), bool)) is given


@given(st.binary(max_size=3), st.lists(st.binary(max_size=3), max_size=5))
def test_keys_are_prefixed_as_python_adds_bytes(tag: bytes, keys: list[bytes]) -> None:
    assert prefixed(tag, array(b"left out", *keys).slice(1)).to_pylist() == [tag + key for key in keys]
