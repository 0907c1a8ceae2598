"""Values of a group's rows that are kept one by one and in order, so that each can be taken back.

Store: as ``extremes``, with ``{order}{value}`` behind the group's key →
``{int64 count}{uint32 length of value}``; of sets ``{order}`` → ``{int64 count}{value}``.  In
``order`` each column is ``{1 byte: is it not null}{value in a form that sorts}``; of a descending
one all bytes are turned round.  So the entries of a group are its members in their order.  A change
of one member writes one entry, however many there are.

*Law*: what is read is a function of the members that are there: neither of the order in which they
came, nor of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    Ints,
    after,
    buffers,
    concat,
    fixed,
    lengths,
    masked,
    numbers_at,
    slices,
    take,
    valid,
)
from fkjoin.codec.rows import RowCodec, is_text
from fkjoin.folds.extremes import (
    COUNT_BYTES,
    complement,
    count_entries,
    counts_of,
    encoded,
    ended,
    sortable,
    sorting,
)
from fkjoin.folds.fold import AggregateColumn, FoldSteps, entry_prefixes, totals, whole
from fkjoin.state import BYTES, Bytes, Reads, prefix_range

Order = tuple[tuple[int, bool], ...]
"""Indexes of columns that order members, each with: from the greatest down."""


def take_in(
    steps: FoldSteps,
    number: int,
    column: int,
    kind: pa.DataType,
    order: Order,
    *,
    needs: int,
    once: bool = False,
) -> tuple[Ints, Ints]:
    """Count the members that come and go, and write their entries, as column ``number``'s.

    Returns the group of each entry, and 1 where the member is new, -1 where the last like it goes.
    ``needs``: the column without which a row is not a member.  ``once``: equal values are one
    member (of a set).
    """
    prefixes = entry_prefixes(number, steps.keys)
    code, sign, _ = steps.signed
    present = valid(steps.column(needs))
    mask = pa.array(present)
    columns = [_ordered(steps.column(by).filter(mask), descending) for by, descending in order]
    values = RowCodec(pa.schema([("value", kind)]), canonical=once)
    value = values.encode([steps.column(column).filter(mask)], int(present.sum()))
    names = concat(take(prefixes, code[present]), *columns, *(() if once else (value,)))
    names, first, before, after_ = count_entries(steps.store, names, sign[present])
    # A list's name ends with the value already: the entry says only how long that end is.  A set's
    # name has the form that sorts, from which the value cannot be made.
    body = take(value, first)
    if not once:
        body = fixed(lengths(body).astype("<u4"))
    steps.store.write(names, masked(concat(encoded(after_), body), after_ > 0))
    return code[present][first], (after_ > 0).astype(np.int64) - (before > 0)


@dataclass(frozen=True)
class DistinctCount(AggregateColumn):
    """The number of different values of a column, nulls left out."""

    name: str
    column: int
    type: pa.DataType
    has_entries = True

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, pa.int64())

    @property
    def state(self) -> list[pa.Field]:
        return [pa.field("count", pa.int64())]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        order = ((self.column, False),)
        group, change = take_in(
            steps, number, self.column, self.type, order, needs=self.column, once=True
        )
        by = np.argsort(group, kind="stable")
        difference = totals(group[by], change[by], len(state[0]))
        return [pa.array(whole(state[0]) + difference)]


@dataclass(frozen=True)
class ColumnForm:
    """The way in which members become the value of a column."""

    form: Literal["list", "set", "text", "first"]
    type: pa.DataType
    """The members' type."""
    delimiter: str = ""
    """Text between the members of a text."""
    most: int | None = None
    """The number of members that are read, the first ones; None: all."""

    @property
    def result(self) -> pa.DataType:
        single = self.form in ("text", "first")
        return self.type if single else pa.list_(pa.field("element", self.type))

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that ``of_facts`` needs besides the result's type."""
        return {"form": self.form, "delimiter": self.delimiter}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any], result: pa.DataType) -> ColumnForm:
        """Undo ``facts``, of a column that is read whole."""
        member = result if facts["form"] == "text" else result.value_type
        return cls(facts["form"], member, facts["delimiter"])

    def read(self, store: Reads, number: int, keys: Bytes) -> pa.Array:
        """Read the members of the groups with those keys, in column ``number``: a value a group."""
        groups, values = [np.zeros(0, np.int64)], [pa.array([], BYTES)]
        ranges = [prefix_range(prefix) for prefix in entry_prefixes(number, keys).to_pylist()]
        for page in store.scan(ranges, each=self.most):
            counts = counts_of(page.values)
            if self.form == "set":
                value = after(page.values, COUNT_BYTES)
                counts = np.minimum(counts, 1)
            else:
                value = _ends(page.keys, page.values)
            groups.append(np.repeat(page.ranges, counts))
            values.append(take(value, np.repeat(np.arange(len(counts)), counts)))
        group, members = np.concatenate(groups), pa.concat_arrays(values)
        starts = np.searchsorted(group, np.arange(len(keys) + 1))
        # The scan has limited entries: an entry with a count of three is three members.
        if self.most is not None:
            few = np.arange(len(group)) - starts[group] < self.most
            group, members = group[few], members.filter(pa.array(few))
            starts = np.searchsorted(group, np.arange(len(keys) + 1))
        (column,) = RowCodec(pa.schema([("value", self.type)])).decode(members)
        if self.form == "first":
            return take(column, starts[:-1], starts[:-1] < starts[1:])
        listed = pa.ListArray.from_arrays(
            pa.array(starts, pa.int32()), column, type=pa.list_(pa.field("element", self.type))
        )
        if self.form != "text":
            return listed
        delimiter = self.delimiter.encode() if pa.types.is_binary(self.type) else self.delimiter
        joined = pc.binary_join(listed, pa.scalar(delimiter, self.type))
        return pc.if_else(pa.array(starts[:-1] < starts[1:]), joined, pa.scalar(None, self.type))


@dataclass(frozen=True)
class Collected(AggregateColumn):
    """Members of a group in their order: all as a list, a set or one text, or the first ones.

    A list, set or text is as large as the group: the group's record does not keep it, but a hash of
    it.
    """

    name: str
    column: int
    order: Order
    reading: ColumnForm
    needs: int
    """The column without which a row is not a member."""
    has_entries = True

    @property
    def collected(self) -> Mapping[str, Any] | None:
        return self.reading.facts if self.reading.most is None else None

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, self.reading.result)

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        once = self.reading.form == "set"
        take_in(
            steps, number, self.column, self.reading.type, self.order, needs=self.needs, once=once
        )
        return []

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        return self.reading.read(steps.store, number, steps.keys)


def orderable(kind: pa.DataType) -> bool:
    """Tell whether values of a type have an order that Spark has, too; structs field by field."""
    if pa.types.is_struct(kind):
        return all(orderable(field.type) for field in kind)
    return sortable(kind)


def _ordered(values: pa.Array, descending: bool) -> Bytes:
    """Bytes that sort as the values do, nulls first (or, from the greatest down, last).

    They do so whatever comes behind them: none is the beginning of another.  Values of a type
    without an order sort as their own bytes.
    """
    present = valid(values)
    if pa.types.is_struct(values.type):
        body = concat(*(_ordered(field, False) for field in values.flatten()))
    elif sortable(values.type):
        body = ended(sorting(values)) if is_text(values.type) else sorting(values)
    else:
        codec = RowCodec(pa.schema([("value", values.type)]), canonical=True)
        body = ended(codec.encode([values], len(values)))
    flagged = concat(fixed(present.astype(np.uint8)), masked(body, present))
    return complement(flagged) if descending else flagged


def _ends(names: Bytes, entries: Bytes) -> Bytes:
    """The values that names end with."""
    data, bounds = buffers(entries)
    sizes = numbers_at(data, bounds[:-1] + COUNT_BYTES, "<u4")
    octets, ends = buffers(names)
    return slices(octets, ends[1:] - sizes, sizes)
