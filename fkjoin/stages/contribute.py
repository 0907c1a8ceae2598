"""The way from answers straight to the fields that the next operator reads, without resolve.

*Law*: what ``regroup`` makes of these contributions, and ``rekey`` of these changes, is what it
would make of the joined rows', since its highwater marks are the same as in resolve: the pair of
versions of the newest answer.  Of a batch's changes of a row, a contribution has the timestamp of
the one that first led to it; a joined row has the timestamp of the change that first led to the
whole row.
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
    """The places of the fields of joined rows; the schemas belong to key and rows."""

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
        """Take from ``ANSWER`` the columns at each list of places, in the types of its schema."""
        types: dict[Place, pa.DataType] = {}
        for places, into in wanted:
            for source, type_ in zip(places, into.types, strict=True):
                types.setdefault(source, type_)
        columns: dict[Place, pa.Array] = {}
        sides: tuple[tuple[Side, pa.Schema], ...] = ("left", self.left), ("right", self.right)
        for side, schema in sides:
            paths = [path for path_side, path in types if path_side == side]
            if not paths:
                continue
            rows, codec = column(answers, side), RowCodec(schema)
            # An empty path is the row itself, or as much of it as the wanted type has.
            if () in paths:
                fields = list(types[side, ()])
                inner = codec.narrowed(rows, pa.schema(fields))
                row = pa.StructArray.from_arrays(inner, fields=fields, mask=pa.array(~valid(rows)))
                columns[side, ()] = row
                paths.remove(())
            for path, values in zip(paths, codec.pick(rows, paths), strict=True):
                columns[side, path] = values
        if any(side == "key" for side, _ in types):
            keys = KeyCodec(self.key).decode(column(answers, "key"))
            for name, values in zip(self.key.names, keys, strict=True):
                columns["key", (name,)] = values
        return [_columns(columns, places, schema) for places, schema in wanted]


def leaves(fields: Iterable[pa.Field]) -> Iterator[Path]:
    """The paths of fields, and of fields in them, that are not structs."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from ((field.name, *below) for below in leaves(field.type))
        else:
            yield (field.name,)


def _columns(
    columns: dict[Place, pa.Array], places: Sequence[Place], schema: pa.Schema
) -> list[pa.Array]:
    """The columns at some places, in the types of the schema."""
    by_name = {name: columns[source] for name, source in zip(schema.names, places, strict=True)}
    typed = zip(narrowed(by_name, schema), schema.types, strict=True)
    return [values.cast(type_) for values, type_ in typed]


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
    """The fields of a joined row that make a left row of the next join, and its foreign key."""

    fields: Fields
    foreign_key: tuple[Place, ...]
    row: tuple[Place, ...]
    foreign_key_schema: pa.Schema
    row_schema: pa.Schema

    @property
    def places(self) -> list[Place]:
        """The places that are read: the foreign key, and the row's columns.

        Of a struct, these are its fields in the row's schema.
        """
        places = list(self.foreign_key)
        for (side, path), field in zip(self.row, self.row_schema, strict=True):
            places += [(side, (*path, *below[1:])) for below in leaves([field])]
        return places

    def __call__(self, answers: pa.Table) -> pa.Table:
        """Make ``CHANGE`` of ``ANSWER``."""
        foreign_key, row = self.fields.columns(
            answers, (self.foreign_key, self.foreign_key_schema), (self.row, self.row_schema)
        )
        named = KeyCodec(self.foreign_key_schema).encode(foreign_key, len(answers))
        encoded = RowCodec(self.row_schema).encode(row, len(answers))
        value = masked(encoded, self.fields.matched(answers))
        key, version, ts = (column(answers, name) for name in ("key", "version", "ts"))
        return table(CHANGE, key, named, value, version, ts)
