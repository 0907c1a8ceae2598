"""min and max, which can be taken back: the store counts how often each group has each value.

Store: ``{'o'}{1 byte: number of the column}{uint32 big-endian: length of the group's key}
{group's key}{value in a form that sorts, for max the other way round}`` →
``{int64 count}{value}``.  So the next extreme of a group is its first entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    Bools,
    Ints,
    after,
    as_bytes,
    buffers,
    codes,
    concat,
    constant,
    fixed,
    is_any,
    masked,
    numbers_at,
    take,
    valid,
)
from fkjoin.codec.rows import RowCodec, is_text
from fkjoin.folds.fold import AggregateColumn, FoldSteps, entry_prefixes, totals, whole
from fkjoin.folds.sums import decimal_words
from fkjoin.state import BYTES, Bytes, Store, byte_order, prefix_range

COUNT_BYTES = 8
_LOOKED_AT = 8
"""Entries of a group that are looked at first, for one that is left."""


@dataclass(frozen=True)
class Extreme(AggregateColumn):
    """The least or the greatest value of a column, without nulls.

    Not-a-number is greater than all, as in Spark.
    """

    name: str
    column: int
    kind: Literal["min", "max"]
    type: pa.DataType
    has_entries = True

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, self.type)

    @property
    def state(self) -> list[pa.Field]:
        return [pa.field("count", pa.int64()), pa.field("value", self.type)]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        code, sign, _ = steps.signed
        amounts = steps.column(self.column)
        present = valid(amounts)
        counted = whole(state[0]) + totals(code, sign * present, len(state[0]))
        code, sign, amounts = code[present], sign[present], amounts.filter(pa.array(present))
        prefixes = entry_prefixes(number, steps.keys)
        names = concat(take(prefixes, code), self._sorting(amounts))
        names, first, _, counts = count_entries(steps.store, names, sign)
        group, values = code[first], self._codec.encode([take(amounts, first)], len(first))
        remains = counts > 0
        steps.entries.append((names, masked(concat(encoded(counts), values), remains)))

        # A group's extreme is the least name of three:
        #   the entries that the batch brings or counts again;
        #   the extreme so far, unless its last one was taken back;
        #   if it was, the first stored entry that the batch has not touched.
        # Only for the last of these is the store read in order.
        held = state[1]
        held_names = masked(concat(prefixes, self._sorting(held)), valid(held))
        gone, staying = names.filter(pa.array(~remains)), pa.array(remains)
        lost = valid(pc.index_in(held_names, value_set=gone)) & valid(held)
        best = _first_of_each(
            names.filter(staying), values.filter(staying), group[remains], len(held)
        )
        best = _less(best, (masked(held_names, ~lost), self._codec.encode([held], len(held))))
        missing = np.flatnonzero(lost)
        if len(missing):
            stored = _first_stored(steps.store, take(prefixes, missing), names)
            scattered = np.full(len(held), -1)
            scattered[missing] = np.arange(len(missing))
            best = _less(best, tuple(take(part, scattered, lost) for part in stored))
        extreme = self._codec.decode(masked(best[1], counted > 0))[0]
        return [pa.array(counted), extreme]

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        return state[1]

    @property
    def _codec(self) -> RowCodec:
        return RowCodec(pa.schema([("value", self.type)]), canonical=True)

    def _sorting(self, values: pa.Array) -> Bytes:
        ascending = sorting(values)
        if self.kind == "min":
            return ascending
        return complement(ended(ascending) if is_text(self.type) else ascending)


def count_entries(store: Store, names: Bytes, sign: Ints) -> tuple[Bytes, Ints, Ints, Ints]:
    """Count values that come (1) and go (-1), by the names of their entries.

    Returns the names of the entries that change, the position of the first change of each, and the
    number of times that the group had the value, and has it after the changes.
    """
    number, names = codes(names)
    # Backwards: of one entry's changes, the first is written last, and stays.
    first = np.zeros(len(names), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    before = counts_of(store.get_many(names))
    change = np.bincount(number, sign, len(names)).astype(np.int64)
    return names, first, before, before + change


def encoded(counts: Ints) -> Bytes:
    """The beginnings of entries."""
    return fixed(counts.astype("<i8"))


def counts_of(entries: Bytes) -> Ints:
    """The number of times that each group has a value; 0 where there is no entry."""
    data, bounds = buffers(entries)
    return np.where(valid(entries), numbers_at(data, bounds[:-1], "<i8"), 0)


def sortable(kind: pa.DataType) -> bool:
    """Tell whether ``min`` and ``max`` work on a type."""
    numbers = is_any(kind, "integer", "floating", "decimal128", "boolean")
    return is_text(kind) or numbers or is_any(kind, "date32", "timestamp")


def sorting(values: pa.Array) -> Bytes:
    """Bytes that sort as the values do; of nulls any.

    Whole numbers: big-endian, with the sign bit turned round.  Doubles: their bits, of positive
    ones with the sign bit set, of negative ones all bits turned round.  Text: its UTF-8.
    """
    kind, rows = values.type, len(values)
    if is_text(kind):
        return pc.fill_null(as_bytes(values), b"")
    if pa.types.is_decimal128(kind):
        words = decimal_words(values)
        words[~valid(values)] = 0
        octets = np.ascontiguousarray(words[:, ::-1].astype(">u8")).view(np.uint8).reshape(rows, 16)
        octets[:, 0] ^= 0x80
        return fixed(octets)
    if pa.types.is_floating(kind):
        # Adding 0.0 makes 0.0 of -0.0, and there is one not-a-number: equal values of SQL must have
        # equal bytes, or taking one back would miss the other's entry.
        numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits = numbers.view(np.int64)
        bits = np.where(bits < 0, ~bits, bits | np.int64(-(1 << 63)))
    else:
        if pa.types.is_date32(kind):
            values = values.cast(pa.int32())
        numbers = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        bits = numbers ^ np.int64(-(1 << 63))
    return fixed(bits.astype(">i8"))


def ended(texts: Bytes) -> Bytes:
    """Texts with an end that sorts before anything that might follow."""
    # Without it, "a" is less than "ab" because it is shorter: turned round, it still would be.
    # Zero bytes become 00 ff, which sorts behind the end 00 00.
    return concat(pc.replace_substring(texts, b"\0", b"\0\xff"), constant(b"\0\0", len(texts)))


def complement(values: Bytes) -> Bytes:
    """The values with all bytes turned round: they sort the other way."""
    data, bounds = buffers(values)
    begin, end = int(bounds[0]), int(bounds[-1])
    offsets = pa.py_buffer(bounds - begin)
    return pa.Array.from_buffers(
        BYTES, len(values), [None, offsets, pa.py_buffer(~data[begin:end])]
    )


def _first_of_each(names: Bytes, values: Bytes, group: Ints, groups: int) -> tuple[Bytes, ...]:
    """The least name of each group, with its value; null where there is none."""
    ranks = np.empty(len(names), np.int64)
    ranks[byte_order(names)] = np.arange(len(names))
    order = np.lexsort((ranks, group))
    least = np.full(groups, -1)
    least[group[order[::-1]]] = order[::-1]
    return tuple(take(part, least, least >= 0) for part in (names, values))


def _less(some: tuple[Bytes, ...], more: tuple[Bytes, ...]) -> tuple[Bytes, ...]:
    """The lesser name of each two, with its value; null is greater than all."""
    (names, values), (others, other_values) = some, more
    other: Bools = pc.fill_null(pc.less(others, names), False).to_numpy(zero_copy_only=False)
    other |= ~valid(names)
    chosen = pa.array(other)
    return pc.if_else(chosen, others, names), pc.if_else(chosen, other_values, values)


def _first_stored(store: Store, prefixes: Bytes, touched: Bytes) -> tuple[Bytes, ...]:
    """The first entry under each prefix that the batch has not ``touched``, with its value.

    Null where there is none.  Mostly it is among the first few entries.  Where a batch has touched
    all of these, the range continues after the last one seen, with more entries at a time::

        while groups are waiting:
            scan the first ``each`` entries of each one's range
            take the first untouched entry, if there is one
            let those wait whose entries were all touched, and were as many as ``each``
    """
    ranges = [prefix_range(prefix) for prefix in prefixes.to_pylist()]
    names: list[bytes | None] = [None] * len(ranges)
    values: list[bytes | None] = [None] * len(ranges)
    waiting, each = list(range(len(ranges))), _LOOKED_AT
    while waiting:
        seen = np.zeros(len(waiting), np.int64)
        following: dict[int, bytes] = {}
        for page in store.scan([ranges[group] for group in waiting], each=each):
            seen += np.bincount(page.ranges, minlength=len(waiting))
            fresh = ~valid(pc.index_in(page.keys, value_set=touched))
            value = after(page.values, COUNT_BYTES)
            for entry in np.flatnonzero(fresh).tolist():
                group = waiting[int(page.ranges[entry])]
                if names[group] is None:
                    names[group], values[group] = page.keys[entry].as_py(), value[entry].as_py()
            last = np.flatnonzero(np.append(np.diff(page.ranges) > 0, True)).tolist()
            following.update({int(page.ranges[entry]): page.keys[entry].as_py() for entry in last})
        again: list[int] = []
        for number, group in enumerate(waiting):
            if names[group] is None and seen[number] == each:
                ranges[group] = following[number] + b"\0", ranges[group][1]
                again.append(group)
        waiting, each = again, 8 * each
    return pa.array(names, BYTES), pa.array(values, BYTES)
