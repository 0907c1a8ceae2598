"""What the rows of a star are made of: fields of a left row, of its key, and of the right rows that it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bytes
from fkjoin.codec.messages import LEFT
from fkjoin.codec.rows import KeyCodec, Path, RowCodec
from fkjoin.stages.join_rows import How, structs

KEY = -2
"""The number of the left key among the parts of a row; ``LEFT`` is that of the left row, and right rows have their own."""


class Field(NamedTuple):
    """A field of a part; with an empty path, the part itself."""

    part: int
    path: Path


class Nested(NamedTuple):
    """A struct of columns."""

    columns: tuple[tuple[str, Made], ...]

    def at(self, path: Path) -> Made:
        """What is at a path of it."""
        found: Made = self
        for place, name in enumerate(path):
            if isinstance(found, Field):
                return Field(found.part, (*found.path, *path[place:]))
            found = dict(found.columns)[name]
        return found


Made = Field | Nested


def pruned(made: Nested, paths: Iterable[Path]) -> Nested:
    """The columns of it that the paths lead to or into, one at least; fields of parts stay whole, so that null stays null."""
    wanted, found = list(paths), list[tuple[str, Made]]()
    for name, column in made.columns:
        below = [path[1:] for path in wanted if path[0] == name]
        if below:
            found.append((name, pruned(column, below) if isinstance(column, Nested) and () not in below else column))
    return Nested(tuple(found or made.columns[:1]))


def fields_at(made: Made, paths: Iterable[Path]) -> Iterator[Field]:
    """What the paths lead to, of the parts."""
    for path in paths:
        yield from fields_of(made.at(path) if isinstance(made, Nested) else Field(made.part, (*made.path, *path)))


def fields_of(made: Made) -> Iterator[Field]:
    """All fields in it."""
    if isinstance(made, Field):
        yield made
    else:
        for _, column in made.columns:
            yield from fields_of(column)


@dataclass(frozen=True)
class Right:
    """One of a star's right tables: its key, what is kept of its rows, of how many parts its versions are, how it is joined."""

    name: str
    key: pa.Schema
    row: pa.Schema
    parts: int
    how: How


@dataclass(frozen=True)
class Star:
    """A left table, the right tables that its rows name, and what the rows of the result are."""

    key: pa.Schema
    left: pa.Schema
    left_parts: int
    rights: tuple[Right, ...]
    made: Nested

    @property
    def schema(self) -> pa.Schema:
        """Of the result's rows."""
        return pa.schema(list(self._kind(self.made)))

    def rows(self, keys: Bytes, left: Bytes, rights: Sequence[Bytes]) -> Bytes:
        """Rows of the result; of right rows, null where there is none."""
        key = pa.StructArray.from_arrays(KeyCodec(self.key).decode(keys), fields=list(self.key))
        parts = {LEFT: structs(self.left, left), KEY: key}
        parts |= {at: structs(right.row, rows) for at, (right, rows) in enumerate(zip(self.rights, rights, strict=True))}
        return RowCodec(self.schema).encode([self._column(one, parts) for _, one in self.made.columns], len(keys))

    @property
    def columns(self) -> list[str]:
        """What each column of the result is, for people."""
        return [f"{name} = {self._said(made)}" for name, made in self.made.columns]

    def facts(self) -> dict[str, Any]:
        """As JSON can write it, but for the schemas."""
        rights = [{"name": right.name, "parts": right.parts, "how": right.how} for right in self.rights]
        return {"left_parts": self.left_parts, "rights": rights, "made": _written(self.made)}

    @classmethod
    def of(cls, facts: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> Star:
        """What ``facts`` said; ``schemas``: ``key``, ``left``, and with the number of each right table ``foreign_key`` and
        ``right``."""
        rights = tuple(
            Right(one["name"], schemas[f"foreign_key{at}"], schemas[f"right{at}"], one["parts"], one["how"])
            for at, one in enumerate(facts["rights"])
        )
        made = _read(facts["made"])
        assert isinstance(made, Nested)
        return cls(schemas["key"], schemas["left"], facts["left_parts"], rights, made)

    def _said(self, made: Made) -> str:
        if isinstance(made, Nested):
            return f"({', '.join(f'{name} = {self._said(one)}' for name, one in made.columns)})"
        part = {LEFT: "left", KEY: "key"}.get(made.part) or self.rights[made.part].name
        return ".".join((part, *made.path))

    def _column(self, made: Made, parts: dict[int, pa.StructArray]) -> pa.Array:
        if isinstance(made, Field):
            return pc.struct_field(parts[made.part], list(made.path)) if made.path else parts[made.part]
        columns = [self._column(one, parts) for _, one in made.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind(made)))

    def _kind(self, made: Made) -> pa.DataType:
        if isinstance(made, Nested):
            return pa.struct([pa.field(name, self._kind(one)) for name, one in made.columns])
        kind: pa.DataType = pa.struct(list(self._schema(made.part)))
        for name in made.path:
            kind = kind.field(name).type
        return kind

    def _schema(self, part: int) -> pa.Schema:
        return self.left if part == LEFT else self.key if part == KEY else self.rights[part].row


def _written(made: Made) -> dict[str, Any]:
    if isinstance(made, Field):
        return {"part": made.part, "path": list(made.path)}
    return {"columns": [[name, _written(one)] for name, one in made.columns]}


def _read(given: Mapping[str, Any]) -> Made:
    if "columns" not in given:
        return Field(given["part"], tuple(given["path"]))
    return Nested(tuple((name, _read(one)) for name, one in given["columns"]))
