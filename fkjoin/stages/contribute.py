"""From answers straight to contributions: an aggregate of a join takes the fields that it needs, and resolve is left out.

*Law*: what ``regroup`` makes of these contributions is what it would make of the joined rows', since its marks are those of
resolve: the pair of versions of the newest answer.  Of a batch's changes of a row, a contribution has the timestamp of the
one that first led to it; a joined row has that of the one that first led to the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from fkjoin.arrays import valid
from fkjoin.messages import JOINED, column, table
from fkjoin.rows import KeyCodec, Path, RowCodec
from fkjoin.stages.join_rows import How, matched
from fkjoin.stages.regroup import contributions

Side = Literal["key", "left", "right"]
Place = tuple[Side, Path]
"""A field of the left key, of the left row or of the right row."""


@dataclass(frozen=True)
class Contribute:
    """Which fields of a joined row are its group and its value; the schemas are those of key and rows."""

    key: pa.Schema
    left: pa.Schema
    right: pa.Schema
    how: How
    group: tuple[Place, ...]
    value: tuple[Place, ...]
    group_schema: pa.Schema
    value_schema: pa.Schema

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``JOINED`` with contributions."""
        wanted = [*self.group, *self.value]
        found: dict[Place, pa.Array] = {}
        left, right = column(answers, "left"), column(answers, "right")
        for side, schema, rows in (("left", self.left, left), ("right", self.right, right)):
            paths = list(dict.fromkeys(path for of, path in wanted if of == side))
            columns = RowCodec(schema).pick(rows, paths) if paths else []
            found |= {(side, path): one for path, one in zip(paths, columns, strict=True)}  # type: ignore[misc]
        if any(of == "key" for of, _ in wanted):
            keys = KeyCodec(self.key).decode(column(answers, "key"))
            found |= {("key", (name,)): one for name, one in zip(self.key.names, keys, strict=True)}
        group = self._columns(found, self.group, self.group_schema)
        value = self._columns(found, self.value, self.value_schema)
        there = matched(answers, self.how)
        contributed = contributions(self.group_schema, group, self.value_schema, value, there)
        columns = [column(answers, name) for name in ("key", "version")]
        return table(JOINED, *columns, contributed, ~valid(left), column(answers, "ts"))

    def _columns(self, found: dict[Place, pa.Array], places: Sequence[Place], schema: pa.Schema) -> list[pa.Array]:
        return [found[place].cast(field.type) for place, field in zip(places, schema, strict=True)]
