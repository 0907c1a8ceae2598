"""JSON lines → packed changes, without rows in the JVM, where columns are plain enough for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bools
from fkjoin.codec.expressions import Part
from fkjoin.codec.json_read import PLAIN, Reading, read_objects, read_together
from fkjoin.codec.rows import Path
from fkjoin.errors import FormatError, set_aside
from fkjoin.spark.line_places import line_place
from fkjoin.spark.packing import Batches, Pack, PackRead

_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
BLANKS = " \t\r\n"
"""A line of nothing else is none."""
NOT_TEXT = "not UTF-8"
_SHOWN = 200


def not_an_object(label: str) -> str:
    """Say what is wrong with a line that is not a JSON object of such columns."""
    return f"not JSON that fits {label}"


def no_version(name: str) -> str:
    """Say what is wrong with a row whose version is null, or a part of it."""
    return f"no version: {name} is null"


def plain_path(expression: Any, schema: pa.Schema) -> Path | None:
    """The fields that lead to what ``expression`` names.

    None if it is not the plain name of a column or of a field in one.
    """
    if not isinstance(expression, str):
        return None
    if expression in schema.names:
        return (expression,)
    path = tuple(expression.split(".")) if _PATH.fullmatch(expression) else ()
    kind: Any = pa.struct(list(schema))
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return path or None


def plain_paths(expressions: Sequence[Any], schema: pa.Schema) -> tuple[Path, ...] | None:
    """Return the plain path of each; None if one of them is more than a name."""
    paths = tuple(path for item in expressions if (path := plain_path(item, schema)) is not None)
    return paths if len(paths) == len(expressions) else None


@dataclass(frozen=True)
class JsonLines:
    """Columns of a table, in terms of the fields of its lines."""

    schema: pa.Schema
    key: tuple[str, ...]
    version: tuple[Path, ...]
    deleted: Part | None
    timestamp: Path | None
    row: tuple[str, ...]
    source: bytes
    versions: tuple[str, ...]
    """The texts of the versions' parts."""
    label: str
    """The columns, for people."""
    how: Reading = PLAIN
    fails: str | None = None
    """The table, where a line that cannot be used is an error."""
    files: str | None = None
    """Pattern of the files, if they are this machine's."""

    def packing(self, pack: Pack) -> PackRead:
        """Make the function that turns them into envelopes; blank lines are left out."""
        return PackRead(self, pack)

    def changes(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        """The lines, one column of ``string``, as what ``PackChanges`` takes."""
        lines, rows, problem = read_lines(lines, self.schema, self.label, self.how)
        count = len(rows)
        row = {name: field_at(rows, (name,)) for name in self.row}
        key = {name: field_at(rows, (name,)) for name in self.key}
        version = [field_at(rows, path) for path in self.version]
        problem = _without_version(
            problem, key.values(), dict(zip(self.versions, version, strict=True))
        )
        if self.fails is not None and problem.null_count < count:
            self._raise(lines.column(0), problem)
        return pa.record_batch(
            {
                "key": struct_of(key),
                "row": struct_of(row),
                "deleted": self._deleted(rows),
                "version": struct_of({f"v{number}": part for number, part in enumerate(version)}),
                "source": pa.repeat(pa.scalar(self.source), count),
                "ts": pc.cast(field_at(rows, self.timestamp), pa.int64())
                if self.timestamp
                else pa.nulls(count, pa.int64()),
                "problem": problem,
            }
        )

    def _raise(self, lines: pa.Array, problem: pa.StringArray) -> None:
        row = pc.index(pc.is_valid(problem), True).as_py()
        line = lines.cast(pa.binary())[row].as_py()
        where = None if self.files is None else line_place(line, self.files)
        position = "" if where is None else f": {where}"
        text = line.decode(errors="replace")[:_SHOWN]
        raise FormatError(
            f"table {self.fails}{position}: {problem[row]}: {text}{set_aside('lines')}"
        )

    def _deleted(self, rows: pa.StructArray) -> pa.BooleanArray:
        if self.deleted is None:
            return pa.repeat(pa.scalar(False), len(rows))
        names = [name for name in self.schema.names if name.lower() in self.deleted.reads]
        read = {name.lower(): field_at(rows, (name,)) for name in names}
        return self.deleted(read, len(rows))


@dataclass(frozen=True)
class ReadLines:
    """Lines and columns more → their fields, those columns, and three columns about the lines.

    The three say where a line is, what is wrong with it, and which bytes it has.  They have names
    that no field has.
    """

    schema: pa.Schema
    label: str
    more: tuple[str, ...]
    file: str
    problem: str
    line: str
    how: Reading = PLAIN

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            lines, rows, problem = read_lines(batch, self.schema, self.label, self.how)
            columns = {name: field_at(rows, (name,)) for name in self.schema.names}
            columns |= {name: lines.column(name) for name in self.more}
            columns |= {
                self.problem: problem,
                self.file: lines.column(self.file),
                self.line: lines.column(0).cast(pa.binary()),
            }
            yield pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def read_lines(
    lines: pa.RecordBatch, schema: pa.Schema, label: str, how: Reading
) -> tuple[pa.RecordBatch, pa.StructArray, pa.StringArray]:
    """Read a batch whose first column is JSON lines; blank ones are left out.

    Returns the batch, the rows of its lines, and what is wrong with each line.  The row of a line
    with which something is wrong is null.
    """
    lines = lines.filter(pc.greater(pc.binary_length(lines.column(0)), 0))
    texts, kind = lines.column(0), pa.struct(list(schema))
    rows = read_together(texts, kind, how)
    if rows is not None:
        return lines, rows, pa.nulls(len(rows), pa.string())
    rows, fit, advice = read_objects(texts, kind, how)
    problem, filled = _problems(texts.cast(pa.binary()), fit, label, advice)
    rows = pc.if_else(pc.is_null(problem), rows, pa.scalar(None, kind))
    return lines.filter(filled), rows.filter(filled), problem.filter(filled)


def _problems(
    lines: pa.BinaryArray, fit: Bools, label: str, advice: Mapping[int, str]
) -> tuple[pa.StringArray, pa.BooleanArray]:
    """Say what is wrong with each line, and which are not blank."""
    problems, filled = np.full(len(lines), None, object), np.ones(len(lines), bool)
    _, good = as_text(lines)
    for row in np.flatnonzero(~(fit & good)):
        line = lines[int(row)].as_py()
        filled[row] = bool(line.strip(BLANKS.encode()))
        problems[row] = advice.get(int(row), not_an_object(label)) if good[row] else NOT_TEXT
    return pa.array(problems, pa.string()), pa.array(filled)


def as_text(data: pa.BinaryArray) -> tuple[pa.StringArray, Bools]:
    """Decode bytes into text, null where they are not UTF-8; and tell where they are."""
    try:
        return data.cast(pa.string()), np.ones(len(data), bool)
    except pa.ArrowInvalid:
        good = np.array([item is None or _is_text(item) for item in data.to_pylist()], bool)
        return pc.if_else(pa.array(good), data, None).cast(pa.string()), good


def _is_text(item: bytes) -> bool:
    try:
        item.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_version(
    problem: pa.StringArray, key: Collection[pa.Array], version: Mapping[str, pa.Array]
) -> pa.StringArray:
    """Say what is wrong with rows, and that there is no version where there is a key."""
    for name, part in version.items():
        if part.null_count:
            keyed = functools.reduce(pc.and_, map(pc.is_valid, key))
            lacking = pc.and_(pc.is_null(part), keyed)
            problem = pc.coalesce(problem, pc.if_else(lacking, no_version(name), None))
    return problem


def field_at(rows: pa.StructArray, path: Path) -> pa.Array:
    """The field at the end of the path; null where any on the way is."""
    return pc.struct_field(rows, list(path))


def kind_at(schema: pa.Schema, path: Path) -> pa.DataType:
    """The type of the field at the end of the path."""
    return field_at(pa.array([], pa.struct(list(schema))), path).type


def struct_of(columns: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))
