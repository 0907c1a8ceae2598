"""Iceberg's types as Arrow's, and the columns that a table gets on request.

The package pyiceberg has texts, bytes and lists with 64-bit offsets; fkjoin's batches have 32-bit
ones, which are the same values.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction

from fkjoin.sinks.column_types import addable, fits


def columns_of(schema: Schema) -> pa.Schema:
    """Return the columns of a table as Arrow's, in their order."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([_plain(field) for field in columns])


def made_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table is made with.

    Iceberg has whole numbers of 32 and 64 bits, and times in microseconds.
    """
    return pa.schema([pa.field(field.name, _made(field.type)) for field in schema])


def evolved(table: Table, schema: pa.Schema) -> Transaction:
    """Stage the columns that the table lacks, and wider types of those that cannot hold all values.

    Nothing is committed.  What Iceberg cannot widen stays as it is.
    """
    transaction, existing = table.transaction(), columns_of(table.schema())
    wanted = made_of(schema)
    shared = [field for field in wanted if field.name in existing.names]
    narrow = [field for field in shared if not fits(field.type, existing.field(field.name).type)]
    for field in (*addable(existing, wanted), *narrow):
        with (
            contextlib.suppress(ResolveError, ValidationError, ValueError),
            transaction.update_schema() as update,
        ):
            update.union_by_name(pa.schema([field]), table.format_version)
    return transaction


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _kind(field.type), field.nullable)


def _kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    return kind


def _made(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.int8(), pa.int16()):
        return pa.int32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _made(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_made(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_made(kind.key_type), _made(kind.item_type))
    return kind
