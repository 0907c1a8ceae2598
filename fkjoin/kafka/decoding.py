"""Protocol of formats, and columns over a record that a reader fills."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from fkjoin.codec.json_read import parsable
from fkjoin.errors import TopologyError
from fkjoin.sessions.settings import time_zone
from fkjoin.spark.on_arrow import on_arrow
from fkjoin.spark.schemas import arrow_schema, nullable
from fkjoin.spark.topic_records import Reader


class Decoded(NamedTuple):
    """Columns that a format makes of the bytes of a record.

    Attributes
    ----------
    row : Column
        The row as a struct, whose fields are the table's columns. Null if the record deletes its
        key, or cannot be read.
    deleted : Column
        Whether the record deletes its key.
    problem : Column
        A text that says why the record cannot be read; null if it can be read. The text makes the
        record a dead letter.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> row = F.struct(data.cast("string").alias("text"))
    >>> decoded = Decoded(row, data.isNull(), F.lit(None).cast("string"))
    """

    row: Column
    deleted: Column
    problem: Column


class Format(Protocol):
    """Protocol of formats of a record's key or value; any object with ``decode`` is a format.

    A format that also writes has a method ``encode(row, schema)``. It makes a binary column of a
    struct column and its ``StructType``. Both methods return Spark expressions, which must not
    throw: ``problem`` says what is wrong with the bytes.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pyspark.sql import functions as F
    >>> from fkjoin.kafka import Decoded
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     one: str
    ...     other: str
    ...
    ...     def decode(self, data):
    ...         parts = F.split(data.cast("string"), "=")
    ...         first, second = F.get(parts, 0), F.get(parts, 1)
    ...         row = F.struct(first.alias(self.one), second.alias(self.other))
    ...         good = F.size(parts) == 2
    ...         problem = F.when(data.isNotNull() & ~good, F.lit("not ONE=OTHER"))
    ...         return Decoded(F.when(good, row), data.isNull(), problem)
    ...
    ...     def encode(self, row, schema):
    ...         columns = [row[name] for name in schema.names]
    ...         return F.concat_ws("=", *columns).cast("binary")
    """

    def decode(self, data: Column) -> Decoded:
        """Read the bytes of a record's key or value.

        Parameters
        ----------
        data : Column
            A binary column.

        Returns
        -------
        Decoded
            Where ``data`` is null, ``deleted`` is true and ``row`` null.
        """


def decoded(
    read: Reader, kind: StructType, data: Column, text: str | None = None, *, whatever: bool = False
) -> Decoded:
    """Decode the column with a reader of rows of that type; ``text``: a column more.

    ``whatever``: a row also of what has a problem; what does not fit is null in it.
    """
    row = kind if text is None else StructType([*kind, StructField(text, StringType())])
    parts = StructType([StructField("row", nullable(row)), StructField("deleted", BooleanType())])
    parts = parts.add("problem", StringType())

    def decode(records: pa.Array) -> pa.Array:
        rows, deleted, problem = read(records)
        return pa.StructArray.from_arrays([rows, pa.array(deleted), problem], names=parts.names)

    column = on_arrow(decode, parts, data)
    deleted, problem = column.getField("deleted"), column.getField("problem")
    usable = ~deleted if whatever else ~deleted & problem.isNull()
    return Decoded(F.when(usable, column.getField("row")), deleted, problem)


def zone() -> str:
    """Return the time zone of clocks that name none."""
    session = SparkSession.getActiveSession()
    return "UTC" if session is None else time_zone(session)


def shown(schema: StructType) -> str:
    """Write a type for a message, in short."""
    return schema.simpleString()[:200]


def fields_of(kind: StructType, argument: str) -> pa.Schema:
    """The fields for Arrow; ``TopologyError`` if they cannot be read from JSON."""
    fields = arrow_schema(argument, kind)
    if not parsable(pa.struct(list(fields))):
        raise TopologyError(
            f"{argument}: {shown(kind)} cannot be read from JSON: "
            "it contains a name twice, or a map whose keys are not texts"
        )
    return fields
