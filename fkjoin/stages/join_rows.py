"""Joined rows from answers, and the byte form of a joined row that no joiner has changed.

``{1 byte: 1 if a right row follows, else 0}{uint32 little-endian: length of the left row}{left row}{right row}``.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import BYTES, Bools, Bytes, after, buffers, fixed, lengths, slices, valid, window
from fkjoin.codec.messages import ANSWER, JOINED, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import TopologyError

How = Literal["inner", "left"]

_HEAD = np.dtype([("right", "u1"), ("left", "<u4")])


def require_how(given: str) -> None:
    """Raise ``TopologyError`` if it is no ``How``."""
    if given not in get_args(How):
        raise TopologyError(f'how: {given!r} is not one of "inner", "left"')


def matched(answers: pa.Table, how: How) -> Bools:
    """Tell which answers give a row: inner, where there are both rows; left, where there is a left row."""
    left = valid(column(answers, "left"))
    return left & valid(column(answers, "right")) if how == "inner" else left


def join_rows(answers: pa.Table, how: How) -> pa.Table:
    """Make ``JOINED`` of ``ANSWER``, with both rows as the value."""
    assert answers.schema.equals(ANSWER)
    left, right = column(answers, "left"), column(answers, "right")
    head = np.empty(len(answers), _HEAD)
    head["right"] = valid(right)
    head["left"] = lengths(left)
    if how == "left":
        right = pc.fill_null(right, b"")
    heads = fixed(head.view(np.uint8).reshape(len(answers), _HEAD.itemsize))
    both = pc.binary_join_element_wise(heads, left, right, pa.scalar(b"", BYTES))  # null where a row is null that must not be
    return with_value(answers, both)


def with_value(answers: pa.Table, value: Bytes) -> pa.Table:
    """Make ``JOINED`` of ``ANSWER``, with that value."""
    key, version, ts = (column(answers, name) for name in ("key", "version", "ts"))
    return table(JOINED, key, version, value, ~valid(column(answers, "left")), ts)


def structs(schema: pa.Schema, rows: Bytes) -> pa.StructArray:
    """Encoded rows as structs, null where they are."""
    return pa.StructArray.from_arrays(RowCodec(schema).decode(rows), fields=list(schema), mask=pa.array(~valid(rows)))


def split_rows(values: Bytes) -> tuple[Bytes, Bytes]:
    """Left rows and right rows of ``join_rows`` values; both null where the value is."""
    present = valid(values)
    data, bounds = buffers(values)
    starts = bounds[:-1]
    head = np.ascontiguousarray(window(data, starts, _HEAD.itemsize)).view(_HEAD).reshape(-1)
    size = np.where(present, head["left"], 0).astype(np.int64)
    left = slices(data, starts + _HEAD.itemsize, size, present)
    return left, after(values, _HEAD.itemsize + size, present & (head["right"] > 0))
