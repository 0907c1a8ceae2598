"""The way from answers straight to what the next operator reads: it takes the fields that it needs,
and resolve is left out.

*Law*: what ``regroup`` makes of these contributions, and ``rekey`` of these changes, is what it
would make of the joined rows', since its highwater marks are those of resolve: the pair of versions
of the newest answer.  Of a batch's changes of a row, a contribution has the timestamp of the one
that first led to it; a joined row has that of the one that first led to the whole row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from fkjoin.codec.arrays import Bools, masked, narrowed, valid
from fkjoin.codec.messages import CHANGE, column, table
from fkjoin.codec.rows import KeyCodec, Path, RowCodec
from fkjoin.stages.join_rows import HowByKey, matched, with_value
from fkjoin.stages.regroup import contributions

Side = Literal["key", "left", "right"]
Place = tuple[Side, Path]
"""A field of the left key, of the left row or of the right row."""


@dataclass(frozen=True)
class Fields:
    """The places of the fields of joined rows; the schemas are those of key and rows."""

    key: pa.Schema
    left: pa.Schema
    right: pa.Schema
    how: HowByKey

    def matched(self, answers: pa.Table) -> Bools:
        """Tell which answers make a joined row."""
        return matched(answers, self.how)

    def columns(
        self, answers: pa.Table, *wanted: tuple[Sequence[Place], pa.Schema]
    ) -> list[list[pa.Array]]:
        """Take from ``ANSWER``, for each list of places, the columns at these, in the types of the schema."""
        all_places = [place for places, _ in wanted for place in places]
        columns: dict[Place, pa.Array] = {}
        sides: tuple[tuple[Side, pa.Schema], ...] = ("left", self.left), ("right", self.right)
        for side, schema in sides:
            paths = list(
                dict.fromkeys(path for place_side, path in all_places if place_side == side)
            )
            if not paths:
                continue
            rows, codec = column(answers, side), RowCodec(schema)
            if () in paths:  # the row, or what is wanted of it
                struct = next(
                    field.type
                    for places, into in wanted
                    for place, field in zip(places, into, strict=True)
                    if place == (side, ())
                )
                inner = codec.narrowed(rows, pa.schema(list(struct)))
                columns[side, ()] = pa.StructArray.from_arrays(
                    inner, fields=list(struct), mask=pa.array(~valid(rows))
                )
                paths.remove(())
            columns |= {
                (side, path): values
                for path, values in zip(paths, codec.pick(rows, paths), strict=True)
            }
        if any(side == "key" for side, _ in all_places):
            keys = KeyCodec(self.key).decode(column(answers, "key"))
            columns |= {
                ("key", (name,)): values for name, values in zip(self.key.names, keys, strict=True)
            }
        return [
            [
                values.cast(field.type)
                for values, field in zip(_columns(columns, places, schema), schema, strict=True)
            ]
            for places, schema in wanted
        ]


def leaves(fields: Iterable[pa.Field]) -> Iterator[Path]:
    """The paths of fields, and of fields in them, that are no structs."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from ((field.name, *below) for below in leaves(field.type))
        else:
            yield (field.name,)


def _columns(
    columns: dict[Place, pa.Array], places: Sequence[Place], schema: pa.Schema
) -> list[pa.Array]:
    return narrowed(
        {field.name: columns[place] for field, place in zip(schema, places, strict=True)}, schema
    )


@dataclass(frozen=True)
class Contribute:
    """The fields of a joined row that are its group and its value."""

    fields: Fields
    group: tuple[Place, ...]
    value: tuple[Place, ...]
    group_schema: pa.Schema
    value_schema: pa.Schema

    @property
    def places(self) -> list[Place]:
        """The places that are read."""
        return [*self.group, *self.value]

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``JOINED`` with contributions of ``ANSWER``."""
        group, value = self.fields.columns(
            answers, (self.group, self.group_schema), (self.value, self.value_schema)
        )
        contributed = contributions(
            self.group_schema, group, self.value_schema, value, self.fields.matched(answers)
        )
        return with_value(answers, contributed)


@dataclass(frozen=True)
class Carry:
    """The fields of a joined row that are the row of the next join's left table, and its foreign key."""

    fields: Fields
    foreign_key: tuple[Place, ...]
    row: tuple[Place, ...]
    foreign_key_schema: pa.Schema
    row_schema: pa.Schema

    @property
    def places(self) -> list[Place]:
        """The places that are read: the foreign key, and the row's columns; of a struct, its fields in the row's schema."""
        columns = zip(self.row, self.row_schema, strict=True)
        row = [
            (side, (*path, *below[1:]))
            for (side, path), field in columns
            for below in leaves([field])
        ]
        return [*self.foreign_key, *row]

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``CHANGE`` of ``ANSWER``."""
        foreign_key, row = self.fields.columns(
            answers, (self.foreign_key, self.foreign_key_schema), (self.row, self.row_schema)
        )
        named = KeyCodec(self.foreign_key_schema).encode(foreign_key, len(answers))
        value = masked(
            RowCodec(self.row_schema).encode(row, len(answers)), self.fields.matched(answers)
        )
        return table(
            CHANGE,
            column(answers, "key"),
            named,
            value,
            column(answers, "version"),
            column(answers, "ts"),
        )
