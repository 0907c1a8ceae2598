"""Parts of expressions over a table's columns, as Spark understands them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from fkjoin.codec.rows import Path
from fkjoin.sessions.access import access
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.spark_api import listed


def texts_of(expression: Any, row: pa.Schema, spark: SparkSession) -> tuple[str | Path, ...] | None:
    """The texts, and fields of text, that an expression has one after the other (``concat``).

    None if it is more than that.
    """
    analyzed = _analyzed([expression], row, spark)
    if analyzed is None:
        return None
    texts: list[str | Path] = []
    for node in _concatenated(unnamed(analyzed[0])):
        path = field_of(node, row)
        if node.dataType().typeName() != "string" or (
            path is None and node.getClass().getSimpleName() != "Literal"
        ):
            return None
        texts.append(node.value().toString() if path is None else path)
    return tuple(texts)


def _concatenated(node: Any) -> Iterator[Any]:
    if node.getClass().getSimpleName() != "Concat":
        yield node
        return
    for part in listed(node.children()):
        yield from _concatenated(part)


def unnamed(expression: Any) -> Any:
    """An analyzed expression without its alias."""
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _analyzed(expressions: list[Any], row: pa.Schema, spark: SparkSession) -> list[Any] | None:
    """The expressions as Spark understands them.

    None if it cannot be asked, or does not understand them: evaluation says what is wrong.
    """
    columns = [_as_column(expression) for expression in expressions]
    try:
        empty = spark.createDataFrame([], spark_schema(row))
        return access(spark).analyzed(empty.select(*columns))
    except AnalysisException:
        return None


def _as_column(expression: str | Column) -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def field_of(node: Any, row: pa.Schema) -> Path | None:
    """The path of the column of ``row`` that an analyzed expression is, or of the field in one.

    None if it is more than that.
    """
    below: list[str] = []
    while node.getClass().getSimpleName() == "GetStructField":
        below.insert(0, node.child().dataType().apply(node.ordinal()).name())
        node = node.child()
    if node.getClass().getSimpleName() != "AttributeReference":
        return None
    # Spark calls columns as the user has written them.
    named = {name.lower(): name for name in row.names}
    name = named.get(node.name().lower())
    return None if name is None else (name, *below)


def paths_in(node: Any, row: pa.Schema) -> Iterator[Path]:
    """Find what an analyzed expression reads of the columns of ``row``."""
    if (path := field_of(node, row)) is not None:
        yield path
        return
    for child in listed(node.children()):
        yield from paths_in(child, row)
