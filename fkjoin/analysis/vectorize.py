"""Spark's expressions as expressions over columns of Arrow.

Spark parses and analyzes an expression, as for ``expressions``; one with a part that has no counterpart in ``codec.vectors``
is left to Spark.  Spark does not evaluate what it does not need (after a false ``and``, in ``if`` and ``coalesce``), and there
everything is evaluated: what can raise is left to Spark in such places.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, DateType, StringType, StructType

from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import KERNELS, LAZY, Vector
from fkjoin.errors import TopologyError
from fkjoin.spark.scalars import constant, replaced, type_of
from fkjoin.spark.schemas import arrow_schema

ANSI = "spark.sql.ansi.enabled"

_EPOCH = datetime.date(1970, 1, 1)
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def vector_of(node: Any, names: Iterable[str], spark: SparkSession) -> Vector | None:
    """An analyzed expression over the columns ``names``, for Arrow; None if Spark has to evaluate it."""
    known = set(names)
    if len({name.lower() for name in known}) < len(known):
        return None
    try:
        made = _vector(node, {})
    except (_OnlySparkError, TopologyError):
        return None
    if made.can_raise and spark.conf.get(ANSI) != "true":
        return None
    return made if made.reads <= {name.lower() for name in known} else None


def at(path: Path, columns: pa.Schema) -> Vector | None:
    """The column at the path, or the field in one; None where two columns have one name to Spark."""
    if len({name.lower() for name in columns.names}) < len(columns.names):
        return None
    kind = columns.field(path[0]).type
    made = Vector("AttributeReference", kind, given=path[0].lower())
    for name in path[1:]:
        kind = kind.field(name).type
        made = Vector("GetStructField", kind, (made,), name)
    return made


class _OnlySparkError(Exception):
    """A part that has no counterpart here."""


def _vector(node: Any, named: dict[str, Vector]) -> Vector:
    """``named``: what stands for the parts that are there more than once, as in ``between``."""
    kind = node.getClass().getSimpleName()
    if kind in ("Alias", "ExprAlias"):
        return _vector(node.child(), named)
    instead = node.replacement() if kind == "Between" else replaced(node)
    if instead is not None:
        return _vector(instead, named)
    if kind == "With":
        defined = node.defs()
        parts = [defined.apply(place) for place in range(defined.size())]
        return _vector(node.child(), named | {part.id().toString(): _vector(part.child(), named) for part in parts})
    if kind == "CommonExpressionRef":
        return named[node.id().toString()]
    if kind == "Literal" and node.value() is None:
        return Vector(kind, pa.null())
    spark = type_of(node)
    of = arrow_schema("it", StructType().add("it", spark)).field(0).type
    if kind == "Literal":
        return Vector(kind, of, given=_given(node, spark))
    if kind == "AttributeReference":
        return Vector(kind, of, given=node.name().lower())
    listed = node.children()
    children = tuple(_vector(listed.apply(place), named) for place in range(listed.size()))
    if kind == "GetStructField":
        return Vector(kind, of, children, node.child().dataType().apply(node.ordinal()).name())
    if kind == "Cast":
        return _cast(children[0], spark, of)
    takes: Callable[..., bool] = _TAKES.get(kind, _anything)
    if kind not in KERNELS or not takes(of, *children) or not all(map(_is_plain, _types(node))):
        raise _OnlySparkError
    made = Vector(kind, of, children)
    if kind in LAZY and made.can_raise:
        raise _OnlySparkError
    return made


def _given(node: Any, spark: DataType) -> Any:
    return _EPOCH + datetime.timedelta(days=node.value()) if isinstance(spark, DateType) else constant("it", node, spark)


def _cast(child: Vector, spark: DataType, of: pa.DataType) -> Vector:
    """What cannot fail: to a type with room for all values; constants as what they are there."""
    before = child.of
    if before == of:
        return child
    if child.kind == "Literal":
        return Vector("Literal", of, given=_constant(child, of))
    whole, decimal = pa.types.is_integer(before), pa.types.is_decimal(before) and pa.types.is_decimal(of)
    wider = whole and pa.types.is_integer(of) and of.bit_width > before.bit_width
    longer = decimal and of.scale >= before.scale and of.precision - of.scale >= before.precision - before.scale
    if wider or longer or (pa.types.is_floating(of) and (whole or before == pa.float32())):
        return Vector("Cast", of, (child,))
    raise _OnlySparkError


def _constant(child: Vector, of: pa.DataType) -> Any:
    """A constant's value as another type."""
    given, exact = child.given, isinstance(child.given, int | Decimal) and not isinstance(child.given, bool)
    if given is None:
        return None
    if of == pa.date32() and isinstance(given, str) and _ISO_DATE.fullmatch(given):
        with contextlib.suppress(ValueError):
            return datetime.date.fromisoformat(given)
    if pa.types.is_floating(of) and (exact or isinstance(given, float)):
        return float(given)
    if exact and (pa.types.is_integer(of) or pa.types.is_decimal(of)):
        with contextlib.suppress(pa.ArrowException, ArithmeticError):
            fitting = pa.scalar(Decimal(given), of).as_py() if pa.types.is_decimal(of) else pa.scalar(given, of).as_py()
            if fitting == given:
                return fitting
    raise _OnlySparkError


def _types(node: Any) -> list[DataType]:
    """Of the parts that a part is made of."""
    listed = node.children()
    return [type_of(listed.apply(place)) for place in range(listed.size())]


def _is_plain(kind: DataType) -> bool:
    """Whether values are compared by their bytes: a text with a collation is not."""
    return not isinstance(kind, StringType) or kind == StringType()


def _comparable(of: pa.DataType, *children: Vector) -> bool:
    kinds = {child.of for child in children}
    (kind,) = kinds if len(kinds) == 1 else (pa.null(),)
    tests = "is_integer", "is_floating", "is_boolean", "is_string", "is_date32", "is_timestamp", "is_decimal"
    return any(getattr(pa.types, test)(kind) for test in tests)


def _listed(of: pa.DataType, *children: Vector) -> bool:
    constants = all(child.kind == "Literal" and child.given is not None for child in children[1:])
    return constants and _comparable(of, *children) and not pa.types.is_floating(children[0].of)


def _number(of: pa.DataType, *children: Vector) -> bool:
    return pa.types.is_floating(of) or pa.types.is_integer(of)


def _floating(of: pa.DataType, *children: Vector) -> bool:
    return pa.types.is_floating(of)


def _pattern(of: pa.DataType, *children: Vector) -> bool:
    value, pattern = children
    return _text(value.of) and pattern.kind == "Literal" and isinstance(pattern.given, str) and "\\" not in pattern.given


def _text(of: pa.DataType, *children: Vector) -> bool:
    return pa.types.is_string(of)


def _anything(of: pa.DataType, *children: Vector) -> bool:
    return True


_TAKES: dict[str, Callable[..., bool]] = {
    **dict.fromkeys(("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"), _comparable),
    "EqualNullSafe": _comparable,
    "In": _listed,
    **dict.fromkeys(("Add", "Subtract", "Multiply"), _number),
    **dict.fromkeys(("Divide", "UnaryMinus"), _floating),
    "Like": _pattern,
    "Concat": _text,
}
"""Of which types parts have a counterpart; others of all."""
