"""complete, in front of resolve: rows whose source left values out get those that the key's row has.

*Law*: what comes out is as if every change had carried its whole row.  A change that lacks a value of a row that is not there
cannot be completed: it does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bools, Bytes, Ints, bools, changes_from_previous, masked, valid
from fkjoin.codec.rows import RowCodec

UNAVAILABLE = "__fkjoin_unavailable"
"""A column of rows that may lack values: the places of the columns that do, or null."""


@dataclass(frozen=True)
class Complete:
    """``schema``: of the rows as they come, ``UNAVAILABLE`` among its columns; whole rows have the others."""

    schema: pa.Schema

    @property
    def whole(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name != UNAVAILABLE])

    def __call__(self, values: Bytes, code: Ints, before: Bytes) -> tuple[Bytes, Bools]:
        """Whole rows, and which of them count.

        ``values``: rows by key and version; ``code``: each one's key, ascending; ``before``: the whole rows that keys have.
        """
        there = valid(values)
        columns = dict(zip(self.schema.names, RowCodec(self.schema).decode(values), strict=True))
        lacking = columns.pop(UNAVAILABLE)
        some = [columns[name] for name in self.whole.names]
        usable = np.ones(len(values), bool)
        if lacking.null_count < len(lacking):
            places, usable = _places(lacking, there, code, valid(before), len(some))
            old = RowCodec(self.whole).decode(before)
            pairs = zip(some, old, strict=True)
            some = [pa.concat_arrays([then, now]).take(pa.array(places[:, at])) for at, (now, then) in enumerate(pairs)]
        return masked(RowCodec(self.whole).encode(some, len(values)), there), usable


def _places(lacking: pa.ListArray, there: Bools, code: Ints, known: Bools, columns: int) -> tuple[Ints, Bools]:
    """Where each row's columns are: among the rows before, of which there are as many as keys, and then those that came."""
    keys = len(known)
    places = np.repeat(keys + np.arange(len(code))[:, None], columns, axis=1)
    usable = np.ones(len(code), bool)
    first = changes_from_previous(code)
    concerned = np.isin(code, code[bools(pc.is_valid(lacking))])
    last: Ints | None = None
    for row in np.flatnonzero(concerned):
        if first[row]:
            last = np.full(columns, code[row]) if known[code[row]] else None
        gaps = lacking[int(row)].as_py()
        if gaps and there[row]:
            if last is None:
                usable[row] = False
                continue
            places[row, gaps] = last[gaps]
        last = places[row] if there[row] else None
    return places, usable
