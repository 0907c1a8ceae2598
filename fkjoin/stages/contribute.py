"""From answers straight to what the next operator reads: it takes the fields that it needs, and resolve is left out.

*Law*: what ``regroup`` makes of these contributions, and ``rekey`` of these changes, is what it would make of the joined
rows', since its marks are those of resolve: the pair of versions of the newest answer.  Of a batch's changes of a row, a
contribution has the timestamp of the one that first led to it; a joined row has that of the one that first led to the whole
row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from fkjoin.codec.arrays import Bools, masked, narrowed, valid
from fkjoin.codec.messages import CHANGE, column, table
from fkjoin.codec.rows import KeyCodec, Path, RowCodec
from fkjoin.stages.join_rows import How, matched, with_value
from fkjoin.stages.regroup import contributions

Side = Literal["key", "left", "right"]
Place = tuple[Side, Path]
"""A field of the left key, of the left row or of the right row."""


@dataclass(frozen=True)
class Fields:
    """Where the fields of joined rows are; the schemas are those of key and rows."""

    key: pa.Schema
    left: pa.Schema
    right: pa.Schema
    how: How

    def there(self, answers: pa.Table) -> Bools:
        """Which answers make a joined row."""
        return matched(answers, self.how)

    def columns(self, answers: pa.Table, *wanted: tuple[Sequence[Place], pa.Schema]) -> list[list[pa.Array]]:
        """Of ``ANSWER``: for each list of places, the columns there, in the types of the schema."""
        places = [place for chosen, _ in wanted for place in chosen]
        found: dict[Place, pa.Array] = {}
        sides: tuple[tuple[Side, pa.Schema], ...] = ("left", self.left), ("right", self.right)
        for side, schema in sides:
            paths = list(dict.fromkeys(path for of, path in places if of == side))
            if not paths:
                continue
            rows, codec = column(answers, side), RowCodec(schema)
            if () in paths:  # the row, or what is wanted of it
                kind = next(
                    one.type for chosen, into in wanted for place, one in zip(chosen, into, strict=True) if place == (side, ())
                )
                inner = codec.narrowed(rows, pa.schema(list(kind)))
                found[side, ()] = pa.StructArray.from_arrays(inner, fields=list(kind), mask=pa.array(~valid(rows)))
                paths.remove(())
            found |= {(side, path): one for path, one in zip(paths, codec.pick(rows, paths), strict=True)}
        if any(of == "key" for of, _ in places):
            keys = KeyCodec(self.key).decode(column(answers, "key"))
            found |= {("key", (name,)): one for name, one in zip(self.key.names, keys, strict=True)}
        return [
            [column.cast(field.type) for column, field in zip(_columns(found, chosen, schema), schema, strict=True)]
            for chosen, schema in wanted
        ]


def leaves(fields: Iterable[pa.Field]) -> Iterator[Path]:
    """The paths of fields, and of fields in them, that are no structs."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from ((field.name, *below) for below in leaves(field.type))
        else:
            yield (field.name,)


def _columns(found: dict[Place, pa.Array], places: Sequence[Place], schema: pa.Schema) -> list[pa.Array]:
    return narrowed({field.name: found[place] for field, place in zip(schema, places, strict=True)}, schema)


@dataclass(frozen=True)
class Contribute:
    """Which fields of a joined row are its group and its value."""

    fields: Fields
    group: tuple[Place, ...]
    value: tuple[Place, ...]
    group_schema: pa.Schema
    value_schema: pa.Schema

    @property
    def places(self) -> list[Place]:
        """What is read."""
        return [*self.group, *self.value]

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``JOINED`` with contributions."""
        group, value = self.fields.columns(answers, (self.group, self.group_schema), (self.value, self.value_schema))
        contributed = contributions(self.group_schema, group, self.value_schema, value, self.fields.there(answers))
        return with_value(answers, contributed)


@dataclass(frozen=True)
class Carry:
    """Which fields of a joined row are the row of the next join's left table, and its foreign key."""

    fields: Fields
    foreign_key: tuple[Place, ...]
    row: tuple[Place, ...]
    foreign_key_schema: pa.Schema
    row_schema: pa.Schema

    @property
    def places(self) -> list[Place]:
        """What is read: where the foreign key is, and the row's columns, of structs the fields that are in the row's schema."""
        columns = zip(self.row, self.row_schema, strict=True)
        row = [(side, (*path, *below[1:])) for (side, path), field in columns for below in leaves([field])]
        return [*self.foreign_key, *row]

    def __call__(self, answers: pa.Table) -> pa.Table:
        """``ANSWER`` → ``CHANGE``."""
        foreign_key, row = self.fields.columns(
            answers, (self.foreign_key, self.foreign_key_schema), (self.row, self.row_schema)
        )
        named = KeyCodec(self.foreign_key_schema).encode(foreign_key, len(answers))
        value = masked(RowCodec(self.row_schema).encode(row, len(answers)), self.fields.there(answers))
        return table(CHANGE, column(answers, "key"), named, value, column(answers, "version"), column(answers, "ts"))
