"""Spark's expressions as those that workers evaluate.

Spark parses and analyzes an expression: it finds the columns, inserts the casts, and says the type
of every part.  The tree that comes out is translated into parts of ``codec.expressions``.  Over the
columns of rows, one with a part that has no counterpart there is left to Spark.  So is one with
something that can raise where Spark may not evaluate it: after a false ``and``, in ``if`` and
``coalesce``.  Workers evaluate all parts of columns there.  An adder or subtractor that is
evaluated row by row cannot be left to Spark, and is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    StringType,
    StructType,
)

from fkjoin.codec.expressions import OPERATIONS, Part
from fkjoin.codec.rows import Path
from fkjoin.errors import TopologyError
from fkjoin.spark.schemas import arrow_schema
from fkjoin.spark.spark_api import analyzed, listed

ANSI = "spark.sql.ansi.enabled"

_REPLACED = ("Nvl", "Nvl2", "ArrayAppend", "ArrayPrepend", "ArraySize", "Between")
"""Kinds that Spark itself writes in terms of others."""

_EPOCH = datetime.date(1970, 1, 1)
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def vector_of(node: Any, names: Iterable[str], spark: SparkSession) -> Part | None:
    """An analyzed expression over the columns ``names``, for Arrow.

    None if Spark has to evaluate it.
    """
    known = set(names)
    if len({name.lower() for name in known}) < len(known):
        return None
    try:
        part = _part(node, {}, _by_column)
    except _OnlySparkError:
        return None
    if part.can_raise and spark.conf.get(ANSI) != "true":
        return None
    return part if part.reads <= {name.lower() for name in known} else None


def scalar_of(argument: str, column: Column, rows: DataFrame) -> Part:
    """The expression over ``rows``, for one row after the other.

    ``TopologyError`` if a part of it has no counterpart.
    """
    try:
        return _part(analyzed(rows.select(column)).expressions().head(), {}, _by_row)
    except _OnlySparkError as error:
        raise TopologyError(f"{argument}: {error}") from error


def moved(part: Part, places: Mapping[str, Path], columns: pa.Schema) -> Part | None:
    """The expression over other columns; None where it reads a column that is a whole row there.

    ``places``: where the columns that it reads are, by lower-case name.
    """
    path = _path(part)
    if path is not None:
        column = (*places[path[0]], *path[1:])
        return at(column, columns) if column else None
    children = [moved(child, places, columns) for child in part.children]
    known = tuple(child for child in children if child is not None)
    return replace(part, children=known) if len(known) == len(children) else None


def _path(part: Part) -> Path | None:
    """The column that a part is, or the field in one; None if it is more."""
    if part.kind == "AttributeReference":
        return (part.argument,)
    if part.kind != "GetStructField":
        return None
    above = _path(part.children[0])
    return None if above is None else (*above, part.argument)


def at(path: Path, columns: pa.Schema) -> Part | None:
    """The column at the path, or the field in one.

    None where two columns have one name to Spark.
    """
    if len({name.lower() for name in columns.names}) < len(columns.names):
        return None
    kind = columns.field(path[0]).type
    part = Part("AttributeReference", kind, argument=path[0].lower())
    for name in path[1:]:
        kind = kind.field(name).type
        part = Part("GetStructField", kind, (part,), name)
    return part


class _OnlySparkError(Exception):
    """A part that has no counterpart here."""


def _by_column(part: Part) -> bool:
    operation = OPERATIONS[part.kind]
    return (
        operation.column is not None
        and operation.takes(part)
        and not (operation.lazy and part.can_raise)
    )


def _by_row(part: Part) -> bool:
    numbers = part.kind != "Cast" or all(map(_is_number, (part.type, part.children[0].type)))
    return OPERATIONS[part.kind].row is not None and numbers


def _is_number(kind: pa.DataType) -> bool:
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    return any(test(kind) for test in tests)


def _part(node: Any, named: dict[str, Part], counterpart: Callable[[Part], bool]) -> Part:
    """Translate a part.

    ``named``: what stands for the parts that are there more than once, as in ``between``.
    """
    kind = node.getClass().getSimpleName()
    if kind in ("Alias", "ExprAlias"):
        return _part(node.child(), named, counterpart)
    if kind in _REPLACED:
        return _part(node.replacement(), named, counterpart)
    if kind == "With":
        named = named | {
            part.id().toString(): _part(part.child(), named, counterpart)
            for part in listed(node.defs())
        }
        return _part(node.child(), named, counterpart)
    if kind == "CommonExpressionRef":
        return named[node.id().toString()]
    if kind == "Literal" and node.value() is None:
        return Part(kind, pa.null())
    spark = _type(node)
    try:
        arrow = arrow_schema("it", StructType().add("it", spark)).field(0).type
    except TopologyError as error:
        raise _lacking(node) from error
    if kind == "Literal":
        return _literal(_constant(node, spark), arrow)
    if kind == "AttributeReference":
        return Part(kind, arrow, argument=node.name().lower())
    nodes = list(listed(node.children()))
    children = tuple(_part(child, named, counterpart) for child in nodes)
    if kind == "GetStructField":
        return Part(kind, arrow, children, node.child().dataType().apply(node.ordinal()).name())
    part = Part(kind, arrow, children)
    if kind == "Like" and str(node.escapeChar()) != "\\":
        raise _lacking(node)
    if kind == "Cast" and node.evalMode().toString() == "TRY":
        raise _lacking(node)
    same = kind == "Cast" and arrow == children[0].type
    if same and not isinstance(spark, StringType):
        # Arrow has one type for several of Spark's, such as types of intervals.
        same = spark.simpleString() == _type(nodes[0]).simpleString()
    if same:
        return children[0]
    if kind == "Cast" and (constant := _recast(children[0], arrow)) is not None:
        return constant
    if kind not in OPERATIONS or not counterpart(part):
        raise _lacking(node)
    collated = [] if kind == "Cast" else [child for child in nodes if _is_collated(_type(child))]
    if collated:
        raise _OnlySparkError(
            f"{collated[0].sql()} is {_type(collated[0]).simpleString()}, and is compared byte by "
            "byte here; cast it to string"
        )
    return part


def _lacking(node: Any) -> _OnlySparkError:
    return _OnlySparkError(
        f"{node.sql()} cannot be evaluated outside of the JVM ({node.getClass().getSimpleName()}); "
        "give a Python callable, or put it into group_by(value=…)"
    )


def _type(node: Any) -> DataType:
    """The type of a part of an analyzed expression."""
    field = {
        "name": "it",
        "type": json.loads(node.dataType().json()),
        "nullable": True,
        "metadata": {},
    }
    return StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType


def _is_collated(kind: DataType) -> bool:
    """Tell whether texts in the type are not compared by their bytes."""
    return "string collate " in kind.simpleString()


def _literal(value: Any, kind: pa.DataType) -> Part:
    return Part("Literal", kind, argument=pa.scalar(value, kind).as_py())


def _constant(node: Any, spark: DataType) -> Any:
    """The value of a constant in an analyzed expression."""
    text = str(node.value())
    if isinstance(spark, BooleanType):
        return text.lower() == "true"
    if isinstance(spark, DateType):
        return _EPOCH + datetime.timedelta(days=node.value())
    if isinstance(spark, StringType):
        return text
    for kind, number in ((IntegralType, int), (DecimalType, Decimal), (FractionalType, float)):
        if isinstance(spark, kind):
            return number(text)
    raise _OnlySparkError(
        f"a constant of type {spark.simpleString()} cannot be used here; give a Python callable"
    )


def _recast(child: Part, kind: pa.DataType) -> Part | None:
    """A constant as one of another type; a floating one is rounded.

    None if it is not a constant, or the other type lacks its value.
    """
    if child.kind != "Literal":
        return None
    value = child.argument
    if value is None:
        return Part("Literal", kind)
    exact = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if kind == pa.date32() and isinstance(value, str) and _ISO_DATE.fullmatch(value):
        with contextlib.suppress(ValueError):
            return _literal(datetime.date.fromisoformat(value), kind)
    if pa.types.is_floating(kind) and (exact or isinstance(value, float)):
        return _literal(float(value), kind)
    if exact and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        with contextlib.suppress(pa.ArrowException, ArithmeticError):
            fitting = _literal(Decimal(value) if pa.types.is_decimal(kind) else value, kind)
            if fitting.argument == value:
                return fitting
    return None
