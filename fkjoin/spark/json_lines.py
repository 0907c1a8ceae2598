"""JSON lines → packed changes, without rows in the JVM, where a table's columns are plain enough for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.json_text import read_rows
from fkjoin.spark.packing import Batches, PackChanges

_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NULL_TEST = re.compile(rf"\s*({_PATH.pattern})\s+is\s+(not\s+)?null\s*", re.IGNORECASE)
_EQUALITY = re.compile(rf"\s*({_PATH.pattern})\s*==?\s*'([^'\\]*)'\s*")

Path = tuple[str, ...]


def plain_path(given: Any, schema: pa.Schema) -> Path | None:
    """The fields that lead to what ``given`` names; None if it is not the plain name of a column or of a field in one."""
    if not isinstance(given, str):
        return None
    if given in schema.names:
        return (given,)
    path = tuple(given.split(".")) if _PATH.fullmatch(given) else ()
    kind: Any = pa.struct(list(schema))
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return path or None


def plain_paths(given: Sequence[Any], schema: pa.Schema) -> tuple[Path, ...] | None:
    """As ``plain_path``, of each; None if one of them is more than a name."""
    paths = tuple(path for item in given if (path := plain_path(item, schema)) is not None)
    return paths if len(paths) == len(given) else None


@dataclass(frozen=True)
class Test:
    """Whether a field is null, is not, is a certain text, or is true."""

    path: Path
    wanted: Literal["null", "not null", "true"] | tuple[str]
    """A text stands in a tuple."""

    @classmethod
    def of(cls, given: Any, schema: pa.Schema) -> Test | None:
        """The test that ``given`` is: ``X is null``, ``X is not null``, ``X = 'text'``, or the name of a truth; else None."""
        if not isinstance(given, str):
            return None
        if match := _NULL_TEST.fullmatch(given):
            path = plain_path(match[1], schema)
            return None if path is None else cls(path, "not null" if match[2] else "null")
        if match := _EQUALITY.fullmatch(given):
            path = plain_path(match[1], schema)
            is_text = path is not None and pa.types.is_string(kind_at(schema, path))
            return cls(path, (match[2],)) if path is not None and is_text else None
        path = plain_path(given, schema)
        return None if path is None else cls(path, "true")

    def __call__(self, rows: pa.StructArray) -> pa.Array:
        found = at(rows, self.path)
        if self.wanted == "null":
            return pc.is_null(found)
        if self.wanted == "not null":
            return pc.is_valid(found)
        return pc.fill_null(found if self.wanted == "true" else pc.equal(found, self.wanted[0]), False)


@dataclass(frozen=True)
class JsonLines:
    """What the columns of a table are, in terms of the fields of its lines."""

    schema: pa.Schema
    key: tuple[str, ...]
    version: tuple[Path, ...]
    deleted: Test | None
    timestamp: Path | None
    row: tuple[str, ...]
    source: bytes

    def foreign_key(self, extractor: Sequence[Any]) -> tuple[Path, ...] | None:
        """The fields that an extractor names; None if it is more than names."""
        return plain_paths(extractor, pa.schema([field for field in self.schema if field.name in {*self.row, *self.key}]))

    def packing(self, foreign_key: tuple[Path, ...] | None, pack: PackChanges) -> PackLines:
        """What makes envelopes of them."""
        return PackLines(self, foreign_key, pack)

    def changes(self, lines: pa.Array, foreign_key: Sequence[Path] | None) -> pa.RecordBatch:
        """The lines (``string``) as what ``PackChanges`` takes; ``foreign_key``: the fields that it is made of."""
        rows = read_rows(lines, pa.struct(list(self.schema)))
        count = len(rows)
        row = [at(rows, (name,)) for name in self.row]
        fields = [self.schema.field(name) for name in self.row]
        return pa.record_batch(
            {
                "key": struct_of({name: at(rows, (name,)) for name in self.key}),
                "row": pa.StructArray.from_arrays(row, fields=fields),
                "deleted": self.deleted(rows) if self.deleted is not None else pa.repeat(pa.scalar(False), count),
                "version": struct_of({f"v{place}": at(rows, path) for place, path in enumerate(self.version)}),
                "source": pa.repeat(pa.scalar(self.source), count),
                "ts": pc.cast(at(rows, self.timestamp), pa.int64()) if self.timestamp else pa.nulls(count, pa.int64()),
                "problem": pa.nulls(count, pa.string()),
                "foreign_key": pa.nulls(count)
                if foreign_key is None
                else struct_of({f"k{place}": at(rows, path) for place, path in enumerate(foreign_key)}),
            }
        )


@dataclass(frozen=True)
class PackLines:
    """Lines → envelopes of ``CHANGE`` by key; blank ones are left out."""

    lines: JsonLines
    foreign_key: tuple[Path, ...] | None
    pack: PackChanges

    def __call__(self, batches: Batches) -> Batches:
        return self.pack(self._changes(batches))

    def _changes(self, batches: Batches) -> Batches:
        for batch in batches:
            column = batch.column(0)
            yield self.lines.changes(column.filter(pc.greater(pc.binary_length(column), 0)), self.foreign_key)


def at(rows: pa.StructArray, path: Path) -> pa.Array:
    """The field at the end of the path; null where any on the way is."""
    return pc.struct_field(rows, list(path))


def kind_at(schema: pa.Schema, path: Path) -> pa.DataType:
    """The type of the field at the end of the path."""
    return at(_none(schema), path).type


def _none(schema: pa.Schema) -> pa.StructArray:
    return pa.array([], pa.struct(list(schema)))


def struct_of(columns: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))
