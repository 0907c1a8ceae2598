"""complete, in front of resolve: rows whose source left values out get those that the key's row has.

*Law*: what comes out is as if every change had carried its whole row.  A change that lacks a value, and whose key has no row,
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
    """The completion of rows.

    ``schema``: of the rows as they come, ``UNAVAILABLE`` among its columns; whole rows have the others.
    """

    schema: pa.Schema

    @property
    def whole(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name != UNAVAILABLE])

    def __call__(self, values: Bytes, code: Ints, before: Bytes) -> tuple[Bytes, Bools]:
        """Make rows whole, and tell which of them count.

        ``values``: rows by key and version; ``code``: each one's key, ascending; ``before``: the whole rows that keys have.
        """
        present = valid(values)
        columns = dict(zip(self.schema.names, RowCodec(self.schema).decode(values), strict=True))
        lacking = columns.pop(UNAVAILABLE)
        whole = [columns[name] for name in self.whole.names]
        usable = np.ones(len(values), bool)
        if lacking.null_count < len(lacking):
            places, usable = _places(lacking, present, code, valid(before), len(whole))
            old = RowCodec(self.whole).decode(before)
            pairs = zip(whole, old, strict=True)
            whole = [pa.concat_arrays([then, now]).take(pa.array(places[:, at])) for at, (now, then) in enumerate(pairs)]
        return masked(RowCodec(self.whole).encode(whole, len(values)), present), usable


def _places(lacking: pa.ListArray, present: Bools, code: Ints, known: Bools, columns: int) -> tuple[Ints, Bools]:
    """The place of each row's columns, among the rows before, of which there are as many as keys, and then those that came.

    ``last`` goes along the rows of a key: the places of the columns that the key's row has by then, or None where it
    has no row.  A completed row is what the next one of its key is completed from; a deleted one is not.
    """
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
        if gaps and present[row]:
            if last is None:
                usable[row] = False
                continue
            places[row, gaps] = last[gaps]
        last = places[row] if present[row] else None
    return places, usable
