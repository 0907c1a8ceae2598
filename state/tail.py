"""The tail: writes of the last few batches, laid over the index, which does not have them yet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.state.order import byte_order
from fkjoin.state.protocol import BYTES, PAGE_ENTRIES, Bytes, KeyRange, Page, items

KeysAndValues = tuple[Bytes, Bytes]
"""Keys, none of them twice, and values; null: deleted."""


Scan = Callable[[Sequence[KeyRange], int | None, int | None], Iterator[Page]]
"""A function with the signature of ``Store.scan``."""


def latest(batches: Sequence[KeysAndValues]) -> KeysAndValues:
    """Merge entries; of a key in several batches the last one stays."""
    if not batches:
        return pa.array([], BYTES), pa.array([], BYTES)
    if len(batches) == 1:
        return batches[0]
    keys, values = (pa.concat_arrays(columns) for columns in zip(*batches, strict=True))
    return in_order(keys, values)


def in_order(keys: Bytes, values: Bytes) -> KeysAndValues:
    """The entries by key, of a key that is there twice the last."""
    order = pa.array(byte_order(keys))
    keys, values = keys.take(order), values.take(order)
    last = np.ones(len(keys), bool)
    last[:-1] = pc.not_equal(keys.slice(1), keys.slice(0, max(0, len(keys) - 1))).to_numpy(
        zero_copy_only=False
    )
    if last.all():
        return keys, values
    return keys.filter(pa.array(last)), values.filter(pa.array(last))


def laid_over(keys: Bytes, values: Bytes, written: KeysAndValues) -> Bytes:
    """Overlay what was found under ``keys`` with what was written since."""
    index = pc.index_in(keys, value_set=written[0])
    if index.null_count == len(index):
        return values
    return pc.if_else(pc.is_valid(index), written[1].take(index.fill_null(0)), values)


class Tail:
    """The entries of some batches, the later ones over the earlier."""

    def __init__(self, batches: Sequence[KeysAndValues] = ()) -> None:
        self._entries: dict[bytes, bytes | None] = {}
        self._order: tuple[bytes, ...] = ()
        """The keys in order, as far as they have been sorted.  The garbage collector, which Spark
        calls after each task, does not look into tuples and dicts of bytes; into a list it would.
        """
        self._take(batches)

    def __len__(self) -> int:
        return len(self._entries)

    def followed_by(self, batches: Sequence[KeysAndValues]) -> Tail:
        """A tail of these batches, too; this one stays as it is."""
        longer = Tail()
        longer._entries, longer._order = self._entries.copy(), self._order
        longer._take(batches)
        return longer

    def over(self, keys: Bytes, values: Bytes) -> Bytes:
        """Overlay what was found under ``keys`` with the tail."""
        entries = self._entries
        if not entries or not any(hidden := [key in entries for key in items(keys)]):
            return values
        mask = pa.array(hidden)
        return pc.replace_with_mask(
            values, mask, pa.array([entries[key] for key in items(keys.filter(mask))], BYTES)
        )

    def _take(self, batches: Sequence[KeysAndValues]) -> None:
        for keys, values in batches:
            self._entries.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))

    def _sorted(self) -> tuple[bytes, ...]:
        if len(self._order) < len(self._entries):  # a dict keeps the order in which keys came first
            self._order = tuple(
                sorted((*self._order, *islice(self._entries, len(self._order), None)))
            )
        return self._order

    def scan(
        self,
        below: Scan,
        ranges: Sequence[KeyRange],
        limit: int | None = None,
        each: int | None = None,
    ) -> Iterator[Page]:
        """Read a range, see ``Store.scan``; ``below`` scans what the tail is laid over."""
        mine, most = self._within(ranges) if len(self) else (None, 0)
        if mine is None:
            yield from below(ranges, limit, each)
            return
        # Each of these entries can hide or delete one below, so that as many more are asked for.
        # With ``each``, ``below`` has no limit: it would count the extra entries of a range, and
        # stop too early.  ``_first_of`` counts what remains.
        total = limit + len(mine.ranges) if limit is not None and each is None else None
        pages = below(ranges, total, each and each + most)
        yield from _first_of(_merged(pages, mine), limit, each)

    def _within(self, ranges: Sequence[KeyRange]) -> tuple[Page | None, int]:
        """The entries in the ranges, in order, null for what is deleted.

        And how many there are in one range at most.
        """
        ordered = self._sorted()
        bounds = [
            (bisect_left(ordered, first), bisect_left(ordered, last)) for first, last in ranges
        ]
        counts = np.array([max(0, last - first) for first, last in bounds], np.int64)
        if not counts.any():
            return None, 0
        numbers = np.repeat(np.arange(len(ranges)), counts)
        keys = list(chain.from_iterable(ordered[first:last] for first, last in bounds))
        values = map(self._entries.__getitem__, keys)
        entries = pa.array(keys, BYTES), pa.array(values, BYTES, size=len(keys))
        return Page(numbers, *entries), int(counts.max())


def _slice(page: Page, first: int, last: int) -> Page:
    keys, values = (part.slice(first, last - first) for part in (page.keys, page.values))
    return Page(page.ranges[first:last], keys, values)


def _merged(pages: Iterator[Page], over: Page) -> Iterator[Page]:
    """Pages with what lies over them: with each page go the entries up to its last."""
    order = list(zip(over.ranges.tolist(), over.keys.to_pylist(), strict=True))
    start = 0
    for page in pages:
        # The entries above go with the first page that reaches beyond them: pages come in order,
        # and the next one begins behind this one's last key.
        end = bisect_left(order, (int(page.ranges[-1]), page.keys[-1].as_py() + b"\0"))
        yield from _both(page, _slice(over, start, end)) if end > start else (page,)
        start = end
    if start < len(order):
        yield from _both(_slice(over, 0, 0), _slice(over, start, len(order)))


def _both(page: Page, over: Page) -> Iterator[Page]:
    """A page and what lies over it, in order, without what is deleted."""
    columns = {
        "range": np.concatenate([page.ranges, over.ranges]),
        "key": pa.concat_arrays([page.keys, over.keys]),
        "over": np.repeat([0, 1], [len(page.keys), len(over.keys)]),
    }
    # Sorted like that, an entry of the tail stands behind the one that it hides: of equal keys in a
    # range the last one stays.  Deletions go only then, when they have hidden what they delete.
    table = pa.table(columns)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
    ranges, keys = columns["range"][order.to_numpy()], columns["key"].take(order)
    values = pa.concat_arrays([page.values, over.values]).take(order)
    stays = np.ones(len(keys), bool)
    if len(keys) > 1:
        again = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        stays[:-1] = ~(again & (ranges[1:] == ranges[:-1]))
    stays &= pc.is_valid(values).to_numpy(zero_copy_only=False)
    mask = pa.array(stays)
    left = Page(ranges[stays], keys.filter(mask), values.filter(mask))
    for first in range(0, len(left.keys), PAGE_ENTRIES):
        yield _slice(left, first, first + PAGE_ENTRIES)


def _first_of(pages: Iterator[Page], limit: int | None, each: int | None) -> Iterator[Page]:
    """No more than ``limit`` entries in all, and ``each`` of a range."""
    room, number, taken = limit, -1, 0
    for page in pages:
        ranges = page.ranges
        if each is not None:
            # Number the entries of each range.  The first range may have begun in earlier pages:
            # ``taken`` of its entries came there.
            starts = np.searchsorted(ranges, ranges)
            before = np.where(ranges == number, taken, 0)
            chosen = np.arange(len(ranges)) - starts + before < each
            taken = int((ranges == ranges[-1]).sum()) + (taken if ranges[-1] == number else 0)
            number = int(ranges[-1])
            mask = pa.array(chosen)
            page = Page(ranges[chosen], page.keys.filter(mask), page.values.filter(mask))
        if room is not None:
            page = _slice(page, 0, room)
            room -= len(page.keys)
        if len(page.keys):
            yield page
        if room == 0:
            return
