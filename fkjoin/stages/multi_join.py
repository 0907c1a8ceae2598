"""The rows of a multi-way join: made of fields of a left row, its key, and its right rows."""

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
"""The left key's number among the parts of a row; the left row's is ``LEFT``."""


class Field(NamedTuple):
    """A field of a part; with an empty path, the part itself."""

    part: int
    path: Path

    def at(self, path: Path) -> Field:
        """The field at a path of it."""
        return Field(self.part, (*self.path, *path))


class Nested(NamedTuple):
    """A struct of columns."""

    columns: tuple[tuple[str, Origin], ...]

    def at(self, path: Path) -> Origin:
        """The origin of what is at a path of it."""
        return dict(self.columns)[path[0]].at(path[1:]) if path else self


Origin = Field | Nested
"""The origin of a column of the result."""


def pruned(result: Nested, paths: Iterable[Path]) -> Nested:
    """The columns of it that the paths lead to or into.

    Fields of parts stay whole, so that null stays null.
    """
    wanted, columns = list(paths), list[tuple[str, Origin]]()
    for name, origin in result.columns:
        below = [path[1:] for path in wanted if path[0] == name]
        if not below:
            continue
        if isinstance(origin, Nested) and () not in below:
            origin = pruned(origin, below)
        columns.append((name, origin))
    return Nested(tuple(columns))


def fields_at(origin: Origin, paths: Iterable[Path]) -> Iterator[Field]:
    """The fields of parts that the paths lead to."""
    for path in paths:
        yield from fields_of(origin.at(path))


def fields_of(origin: Origin) -> Iterator[Field]:
    """Read all fields in it."""
    if isinstance(origin, Field):
        yield origin
    else:
        for _, column in origin.columns:
            yield from fields_of(column)


@dataclass(frozen=True)
class Right:
    """A right table: its key, what is stored of rows, its versions' parts, how it is joined."""

    name: str
    key: pa.Schema
    row: pa.Schema
    parts: int
    how: How


@dataclass(frozen=True)
class MultiJoin:
    """A left table, the right tables that its rows name, and what the result is made of."""

    key: pa.Schema
    left: pa.Schema
    left_parts: int
    rights: tuple[Right, ...]
    result: Nested

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result's rows."""
        return pa.schema(list(self._type(self.result)))

    def rows(self, keys: Bytes, left: Bytes, rights: Sequence[Bytes]) -> Bytes:
        """Rows of the result; of right rows, null where there is none."""
        key = pa.StructArray.from_arrays(KeyCodec(self.key).decode(keys), fields=list(self.key))
        parts = {LEFT: structs(self.left, left), KEY: key}
        for number, (right, rows) in enumerate(zip(self.rights, rights, strict=True)):
            parts[number] = structs(right.row, rows)
        columns = [self._column(origin, parts) for _, origin in self.result.columns]
        return RowCodec(self.schema).encode(columns, len(keys))

    @property
    def columns(self) -> list[str]:
        """The origin of each column of the result, for people."""
        return [f"{name} = {self._text(origin)}" for name, origin in self.result.columns]

    def facts(self) -> dict[str, Any]:
        """The join as JSON can write it, but for the schemas.

        Checkpoints keep it: its keys never change.
        """
        rights = [
            {"name": right.name, "parts": right.parts, "how": right.how} for right in self.rights
        ]
        return {"left_parts": self.left_parts, "rights": rights, "made": _written(self.result)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> MultiJoin:
        """The join of which these are the ``facts``.

        ``schemas``: ``key``, ``left``, and with the number of each right table ``foreign_key`` and
        ``right``.
        """
        rights = tuple(
            Right(key=schemas[f"foreign_key{number}"], row=schemas[f"right{number}"], **right)
            for number, right in enumerate(facts["rights"])
        )
        result = _read(facts["made"])
        assert isinstance(result, Nested)
        return cls(schemas["key"], schemas["left"], facts["left_parts"], rights, result)

    def _text(self, origin: Origin) -> str:
        if isinstance(origin, Nested):
            columns = [f"{name} = {self._text(column)}" for name, column in origin.columns]
            return f"({', '.join(columns)})"
        part = {LEFT: "left", KEY: "key"}.get(origin.part) or self.rights[origin.part].name
        return ".".join((part, *origin.path))

    def _column(self, origin: Origin, parts: dict[int, pa.StructArray]) -> pa.Array:
        if isinstance(origin, Field):
            part = parts[origin.part]
            return pc.struct_field(part, list(origin.path)) if origin.path else part
        columns = [self._column(column, parts) for _, column in origin.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._type(origin)))

    def _type(self, origin: Origin) -> pa.DataType:
        if isinstance(origin, Nested):
            return pa.struct(
                [pa.field(name, self._type(column)) for name, column in origin.columns]
            )
        type_: pa.DataType = pa.struct(list(self._schema(origin.part)))
        for name in origin.path:
            type_ = type_.field(name).type
        return type_

    def _schema(self, part: int) -> pa.Schema:
        if part == KEY:
            return self.key
        return self.left if part == LEFT else self.rights[part].row


def _written(origin: Origin) -> dict[str, Any]:
    if isinstance(origin, Field):
        return {"part": origin.part, "path": list(origin.path)}
    return {"columns": [[name, _written(column)] for name, column in origin.columns]}


def _read(facts: Mapping[str, Any]) -> Origin:
    if "columns" not in facts:
        return Field(facts["part"], tuple(facts["path"]))
    return Nested(tuple((name, _read(column)) for name, column in facts["columns"]))
