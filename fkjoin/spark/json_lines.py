"""JSON lines → packed changes, without rows in the JVM, where a table's columns are plain enough for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.json_text import read_rows
from fkjoin.spark.packing import Batches, Pack
from fkjoin.vectors import Vector

_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
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
class JsonLines:
    """What the columns of a table are, in terms of the fields of its lines."""

    schema: pa.Schema
    key: tuple[str, ...]
    version: tuple[Path, ...]
    deleted: Vector | None
    timestamp: Path | None
    row: tuple[str, ...]
    source: bytes

    def packing(self, pack: Pack) -> PackLines:
        """What makes envelopes of them."""
        return PackLines(self, pack)

    def changes(self, lines: pa.Array) -> pa.RecordBatch:
        """The lines (``string``) as what ``PackChanges`` takes."""
        rows = read_rows(lines, pa.struct(list(self.schema)))
        count = len(rows)
        row = [at(rows, (name,)) for name in self.row]
        fields = [self.schema.field(name) for name in self.row]
        return pa.record_batch(
            {
                "key": struct_of({name: at(rows, (name,)) for name in self.key}),
                "row": pa.StructArray.from_arrays(row, fields=fields),
                "deleted": self._deleted(rows),
                "version": struct_of({f"v{place}": at(rows, path) for place, path in enumerate(self.version)}),
                "source": pa.repeat(pa.scalar(self.source), count),
                "ts": pc.cast(at(rows, self.timestamp), pa.int64()) if self.timestamp else pa.nulls(count, pa.int64()),
                "problem": pa.nulls(count, pa.string()),
            }
        )

    def _deleted(self, rows: pa.StructArray) -> pa.BooleanArray:
        if self.deleted is None:
            return pa.repeat(pa.scalar(False), len(rows))
        read = {name.lower(): at(rows, (name,)) for name in self.schema.names if name.lower() in self.deleted.reads}
        return self.deleted(read, len(rows))


@dataclass(frozen=True)
class PackLines:
    """Lines → envelopes of ``CHANGE`` by key; blank ones are left out."""

    lines: JsonLines
    pack: Pack

    def __call__(self, batches: Batches) -> Batches:
        return self.pack(self._changes(batches))

    def _changes(self, batches: Batches) -> Batches:
        for batch in batches:
            column = batch.column(0)
            yield self.lines.changes(column.filter(pc.greater(pc.binary_length(column), 0)))


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
