"""Rows of an Iceberg table's files, without the rows of some keys: copy on write.

A file whose statistics exclude the keys is not read; of another one the key's columns are; and only
a file that has one of the keys is read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.io.pyarrow
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.types import ListType, MapType

from fkjoin.codec.arrays import Bytes
from fkjoin.codec.rows import RowCodec


class _Projection(pyiceberg.io.pyarrow.ArrowProjectionVisitor):
    """pyiceberg's projection, which both reads and writes rows, with nulls.

    pyiceberg 0.12 makes an empty list of a null where the items are structs, and so with maps.
    """

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


# pyiceberg has no other way in.
pyiceberg.io.pyarrow.ArrowProjectionVisitor = _Projection  # type: ignore[misc]


def _with_nulls(projected: pa.Array | None, array: pa.Array | None) -> pa.Array | None:
    if projected is None or array is None or projected.null_count == array.null_count:
        return projected
    nullable = pc.if_else(array.is_valid(), projected, pa.scalar(None, projected.type))
    return nullable.cast(projected.type)  # whose fields have their numbers


@dataclass
class Rewrite:
    """A table's rows, with a batch's rows in the place of others.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table as it is.
    schema : pyarrow.Schema
        Its columns.
    upserts, deletes : pyarrow.Table
        Rows and keys, with the types of the columns; the key's columns are the columns of
        ``deletes``.
    everything : bool
        Whether all other rows go, too.
    """

    table: Table
    schema: pa.Schema
    upserts: pa.Table
    deletes: pa.Table
    everything: bool = False

    def __post_init__(self) -> None:
        self._key = self.deletes.column_names
        self._codec = RowCodec(self._columns(self._key), canonical=True)
        self._others = [name for name in self.schema.names if name not in self.upserts.column_names]
        """Columns that the batch has not, and that a row keeps."""
        self._keys = pa.concat_tables([self.upserts.select(self._key), self.deletes])
        self._wanted = self._encoded(self._keys)

    def tasks(self) -> list[FileScanTask]:
        """Return the files that have rows which change or go."""
        if self.everything:
            return list(self.table.scan().plan_files())
        keys, tasks = self._scan(self._key), self.table.scan(self._near()).plan_files()
        return [task for task in tasks if self._changes(self._read(keys, task))]

    def portions(self, tasks: Sequence[FileScanTask]) -> Iterator[pa.Table]:
        """Return the rows to write, each time as many as a file is to have."""
        name = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES
        default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        limit = int(self.table.properties.get(name, default))
        rows = list[pa.Table]()
        for some in self._rows(tasks):
            rows.append(some)
            if sum(part.nbytes for part in rows) >= limit:
                yield pa.concat_tables(rows)
                rows = []
        if any(map(len, rows)):
            yield pa.concat_tables(rows)

    def _rows(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.Table]:
        whole, replaced = self._scan(self.schema.names), list[pa.Table]()
        for task in tasks:
            for rows in self._read(whole, task):
                hits = self._hits(rows)
                if self._others:
                    replaced.append(rows.filter(hits).select([*self._key, *self._others]))
                if not self.everything:
                    yield rows.filter(pc.invert(hits))
        yield self._new(replaced)

    def _new(self, replaced: Sequence[pa.Table]) -> pa.Table:
        """Return the batch's rows with all columns of the table."""
        rows, before = self.upserts, self._columns([*self._key, *self._others]).empty_table()
        if self._others:
            before = pa.concat_tables([before, *replaced]).combine_chunks()
            keys = self._encoded(before.select(self._key))
            places = pc.index_in(self._encoded(rows.select(self._key)), value_set=keys)
        for name in self._others:
            rows = rows.append_column(name, before[name].take(places))
        return rows.select(self.schema.names).cast(self.schema)

    def _columns(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    def _near(self) -> BooleanExpression:
        """Return a condition that the statistics of files with one of the keys meet."""
        condition: BooleanExpression = AlwaysTrue()
        for name in self._key:
            values = self._keys[name]
            has_ends = pa.types.is_integer(values.type) or pa.types.is_string(values.type)
            if has_ends and len(values) and not values.null_count:
                ends = pc.min_max(values).as_py()
                least = GreaterThanOrEqual(term=Reference(name), value=ends["min"])
                most = LessThanOrEqual(term=Reference(name), value=ends["max"])
                condition = And(condition, least, most)
        return condition

    def _scan(self, names: Sequence[str]) -> ArrowScan:
        columns = self.table.schema().select(*names)
        return ArrowScan(self.table.metadata, self.table.io, columns, AlwaysTrue())

    def _read(self, scan: ArrowScan, task: FileScanTask) -> Iterator[pa.Table]:
        """Return a file's rows with the types of the columns, a part at a time."""
        for batch in scan.to_record_batches([task]):
            yield pa.Table.from_batches([batch]).cast(self._columns(batch.schema.names))

    def _changes(self, parts: Iterable[pa.Table]) -> bool:
        """Tell whether the batch has one of a file's keys."""
        return sum(pc.sum(self._hits(rows)).as_py() or 0 for rows in parts) > 0

    def _hits(self, rows: pa.Table) -> pa.Array:
        """Tell for each row whether the batch has its key."""
        return pc.is_in(self._encoded(rows.select(self._key)), value_set=self._wanted)

    def _encoded(self, keys: pa.Table) -> Bytes:
        columns = [column.combine_chunks() for column in keys.columns]
        return self._codec.encode(columns, keys.num_rows)
