"""A table's changes as records of a topic, and dead letters as records or files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from fkjoin.analysis.bound import texts_of
from fkjoin.analysis.columns import resolve_column
from fkjoin.errors import TopologyError
from fkjoin.kafka.decoding import Encodes
from fkjoin.kafka.formats import Bytes, Format, Json, String, as_format, writer
from fkjoin.kafka.positions import HEADER, OriginsOf, RootsOf
from fkjoin.spark.names import quoted
from fkjoin.spark.schemas import Expression, arrow_schema, spark_schema
from fkjoin.spark.topic_values import POSITIONS, MakeRecords, Writer, WriteTexts
from fkjoin.spark.unpacking import UnpackResults

_HEADERS = "array<struct<key: string, value: binary>>"


def _key_format(key_as: Format | str | None, schema: StructType) -> Format:
    """Choose the format of keys: by default text as text, bytes as bytes, anything else as JSON."""
    if key_as is not None:
        return as_format("key", key_as, "key")
    if len(schema) == 1 and isinstance(schema[0].dataType, StringType):
        return String()
    return Bytes() if len(schema) == 1 and isinstance(schema[0].dataType, BinaryType) else Json("")


def records(
    changes: DataFrame,
    key: tuple[str, ...],
    row: tuple[str, ...],
    *,
    key_as: Format | str | None,
    value_as: Format | str | Column | None,
    headers: Expression | None,
    appends: bool = False,
) -> DataFrame:
    """``key``, ``value`` (null in a delete) and perhaps ``headers`` of the records for ``changes``.

    ``appends``: they are events, whose key is an expression over their columns, or null.  A column
    ``POSITIONS`` of ``changes`` becomes a header.
    """
    if appends:
        gone, record_key = F.lit(False), _key_of_events(changes, key_as)
    else:
        whole_key, key_type = _struct(changes, key)
        record_key = _encode("key", _key_format(key_as, key_type), whole_key, key_type)
        gone = F.col("_operation") == "delete"
    form = _value_format(value_as)
    if form is not None:
        whole_row, row_type = _struct(changes, row)
        value = _encode("value", form, whole_row, row_type)
    else:
        assert isinstance(value_as, str | Column)
        value = resolve_column("value", value_as, changes, [], "the table").cast("binary")
    columns, both = [record_key.alias("key"), F.when(~gone, value).alias("value")], None
    if headers is not None:
        both = resolve_column("headers", headers, changes, changes.columns, "the table")
    if POSITIONS in changes.columns:
        own = _of_positions()
        both = own if both is None else F.concat(F.coalesce(both, F.array().cast(_HEADERS)), own)
    if both is not None:
        columns.append(both.alias("headers"))
    return changes.select(*columns)


def packed_records(
    unpack: UnpackResults,
    spark: SparkSession,
    key_type: StructType,
    *,
    row_type: StructType,
    key_as: Format | str | None,
    value_as: Format | str | Column | None,
    positions: RootsOf | OriginsOf | None,
) -> Callable[[DataFrame], DataFrame] | None:
    """Find the function by which workers make ``records`` of encoded results; None for none.

    ``row_type``: type of the columns that are not the key's.
    """
    key = writer(_key_format(key_as, key_type), key_type, exact=True)
    form = _value_format(value_as)
    whole = StructType([*key_type, *row_type])
    value = writer(form, row_type) if form is not None else _texts(value_as, whole, spark)
    if key is None or value is None:
        return None
    make = MakeRecords(unpack, key, value, positions)
    schema = spark_schema(make.schema)

    def records_of(results: DataFrame) -> DataFrame:
        frame = results.mapInArrow(make, schema)
        if positions is None:
            return frame
        return frame.select("key", "value", _of_positions().alias("headers"))

    return records_of


def _value_format(value_as: Format | str | Column | None) -> Format | None:
    """None: it is an expression."""
    if value_as is None:
        return Json("")
    if isinstance(value_as, str) and value_as not in ("string", "bytes"):
        return None
    return None if isinstance(value_as, Column) else as_format("value", value_as, "value")


def _texts(expression: Any, columns: StructType, spark: SparkSession) -> Writer | None:
    texts = texts_of(expression, arrow_schema("value", columns), spark)
    return None if texts is None else WriteTexts(texts)


def _of_positions() -> Column:
    """The headers that say where a record came from."""
    value = F.col(POSITIONS).cast("binary").alias("value")
    return F.array(F.struct(F.lit(HEADER).alias("key"), value))


def _key_of_events(events: DataFrame, key_as: Format | str | None) -> Column:
    """The key of events' records."""
    if key_as is None:
        return F.lit(None).cast("binary")
    if not isinstance(key_as, str):
        raise TopologyError(
            f"key: events have no key that a {type(key_as).__name__} could write; "
            "give an SQL text over their columns"
        )
    return resolve_column("key", key_as, events, events.columns, "the events").cast("binary")


def _struct(frame: DataFrame, names: tuple[str, ...]) -> tuple[Column, StructType]:
    columns = [F.col(quoted(name)) for name in names]
    return F.struct(*columns), frame.select(*columns).schema


def _encode(argument: str, form: Format, row: Column, schema: StructType) -> Column:
    if not isinstance(form, Encodes):
        raise TopologyError(
            f"{argument}: {type(form).__name__} is a format to read only; "
            "write String, Bytes, Json or Registry"
        )
    return form.encode(row, schema)
