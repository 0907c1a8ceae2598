"""Iceberg's types as Arrow's, and the columns that a table gets on request.

The package pyiceberg has texts, bytes and lists with 64-bit offsets; fkjoin's batches have 32-bit
ones, which are the same values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction

from fkjoin.sinks.column_types import addable, fits

_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_TIMES = (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))
_MADE = {pa.int8(): pa.int32(), pa.int16(): pa.int32(), **dict.fromkeys(_TIMES, pa.time64("us"))}


def columns_of(schema: Schema) -> pa.Schema:
    """Return the columns of a table as Arrow's, in their order."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([_with(field, _PLAIN) for field in columns])


def made_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table is made with.

    Iceberg has whole numbers of 32 and 64 bits, and times in microseconds.
    """
    return pa.schema([_with(field, _MADE) for field in schema])


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


def _with(field: pa.Field, others: Mapping[pa.DataType, pa.DataType]) -> pa.Field:
    """The field with other types, also of what is in it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with(inner, others) for inner in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_with(kind.value_field, others))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with(kind.key_field, others), _with(kind.item_field, others))
    return field.with_type(others.get(kind, kind))
