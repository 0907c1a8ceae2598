"""Joined rows from answers, and the byte form of a joined row that no joiner has changed.

``{1 byte: 1 if a right row follows, 2 if there is no left row}
{uint32 little-endian: length of the left row}{left row}{right row}``.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    BYTES,
    Bools,
    Bytes,
    after,
    buffers,
    fixed,
    lengths,
    masked,
    slices,
    valid,
    window,
)
from fkjoin.codec.messages import ANSWER, JOINED, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import TopologyError

How = Literal["inner", "left"]
"""The left rows that a join by foreign key has a row for: those with a right row, or all."""

HowByKey = Literal["inner", "left", "outer"]
"""The keys that a join by primary key has a row for: of both tables, of the left one, of either."""

_HEAD = np.dtype([("right", "u1"), ("left", "<u4")])


_SPARKS = {"full": "outer", "fullouter": "outer", "leftouter": "left", "rightouter": "right"}
"""Words of Spark's for these, without underscores."""


def require_how(how: HowByKey) -> How:
    """Return it; raise ``TopologyError`` if it is not a ``How``."""
    if _meant(how) == "outer":
        raise TopologyError(
            f'how: "{how}" is only for joins by primary key, left.join(right, how="outer"); a join '
            'by a foreign key takes "inner" or "left"'
        )
    return require_how_of_events(how)


def require_how_of_events(how: str) -> How:
    """Return it; raise ``TopologyError`` if it is not a ``How``."""
    return _one_of(get_args(How), how)


def require_how_by_key(how: str) -> None:
    """Raise ``TopologyError`` if it is not a ``HowByKey``."""
    _one_of(get_args(HowByKey), how)


def _one_of(known: tuple[str, ...], how: str) -> Any:
    """Return it if it is known; else raise ``TopologyError``, with the word for one of Spark's."""
    if how in known:
        return how
    listed, meant = ", ".join(f'"{word}"' for word in known), _meant(how)
    if meant in known:
        raise TopologyError(f'how: {how!r} is not one of {listed}; write "{meant}"')
    if meant == "right" and "outer" in known:
        raise TopologyError(
            f'how: {how!r} is not one of {listed}; swap the two tables, and write "left"'
        )
    raise TopologyError(f"how: {how!r} is not one of {listed}")


def _meant(how: object) -> str:
    word = str(how).lower().replace("_", "")
    return _SPARKS.get(word, word)


def matched(answers: pa.Table, how: HowByKey) -> Bools:
    """Tell which answers give a row: inner, of both rows; left, of a left row; outer, of any."""
    left, right = (valid(column(answers, side)) for side in ("left", "right"))
    if how == "left":
        return left
    return left & right if how == "inner" else left | right


def join_rows(answers: pa.Table, how: HowByKey) -> pa.Table:
    """Make ``JOINED`` of ``ANSWER``, with both rows as the value."""
    assert answers.schema.equals(ANSWER)
    left, right = column(answers, "left"), column(answers, "right")
    head = np.empty(len(answers), _HEAD)
    head["right"] = valid(right) | ~valid(left) << 1
    head["left"] = lengths(left)
    if how != "inner":
        right = pc.fill_null(right, b"")
    if how == "outer":
        left = masked(pc.fill_null(left, b""), matched(answers, how))
    # Null where one of them is null: above, empty bytes took the place of rows that may be null.
    both = pc.binary_join_element_wise(fixed(head), left, right, pa.scalar(b"", BYTES))
    return with_value(answers, both)


def with_value(answers: pa.Table, value: Bytes) -> pa.Table:
    """Make ``JOINED`` of ``ANSWER``, with that value; gone is what has no left row and no value."""
    key, version, ts = (column(answers, name) for name in ("key", "version", "ts"))
    return table(JOINED, key, version, value, ~valid(column(answers, "left")) & ~valid(value), ts)


def structs(schema: pa.Schema, rows: Bytes) -> pa.StructArray:
    """Encoded rows as structs, null where they are."""
    columns, mask = RowCodec(schema).decode(rows), pa.array(~valid(rows))
    return pa.StructArray.from_arrays(columns, fields=list(schema), mask=mask)


def split_rows(values: Bytes) -> tuple[Bytes, Bytes]:
    """Left rows and right rows of ``join_rows`` values; both null where the value is."""
    present = valid(values)
    data, bounds = buffers(values)
    starts = bounds[:-1]
    head = np.ascontiguousarray(window(data, starts, _HEAD.itemsize)).view(_HEAD).reshape(-1)
    size = np.where(present, head["left"], 0).astype(np.int64)
    left = slices(data, starts + _HEAD.itemsize, size, present & (head["right"] & 2 == 0))
    return left, after(values, _HEAD.itemsize + size, present & (head["right"] & 1 > 0))
