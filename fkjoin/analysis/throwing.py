"""Expressions of Spark's that can throw on a row, and the part of one that did.

A session makes null of what throws: see ``Access.tried``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.columns import said_once
from fkjoin.sessions.access import access
from fkjoin.spark.spark_api import listed

Tried: TypeAlias = Callable[[Column], Column]

_NEVER = {
    *(
        "Alias",
        "ExprAlias",
        "AttributeReference",
        "Literal",
        "GetStructField",
        "CreateNamedStruct",
        "CreateArray",
    ),
    *(
        "And",
        "Or",
        "Not",
        "IsNull",
        "IsNotNull",
        "IsNaN",
        "Coalesce",
        "Nvl",
        "Nvl2",
        "If",
        "CaseWhen",
        "In",
        "InSet",
    ),
    *(
        "EqualTo",
        "EqualNullSafe",
        "LessThan",
        "LessThanOrEqual",
        "GreaterThan",
        "GreaterThanOrEqual",
        "Between",
    ),
    *("With", "CommonExpressionDef", "CommonExpressionRef"),
    *(
        "Concat",
        "Upper",
        "Lower",
        "StringTrim",
        "StringTrimLeft",
        "StringTrimRight",
        "Length",
        "Substring",
    ),
    *("StartsWith", "EndsWith", "Contains", "UnixMicros"),
}
"""Kinds of parts that never do."""

_WORDS = {
    **dict.fromkeys(
        ("Divide", "IntegralDivide", "Remainder", "Pmod"),
        "division by zero, or a result that does not fit",
    ),
    **dict.fromkeys(
        ("Add", "Subtract", "Multiply", "UnaryMinus", "Abs"), "a result that does not fit"
    ),
    "Cast": "a value that cannot be cast",
    **dict.fromkeys(("GetArrayItem", "ElementAt", "Elt"), "no such element"),
}
"""Problems, by kind of the part that throws where nothing in it does."""


def cause(columns: Sequence[Column], nodes: Sequence[Any], rows: DataFrame) -> Column:
    """The smallest part of the columns that throws, and why; null where it cannot be told.

    ``nodes``: what Spark's analyzer made of the columns over ``rows``.

    It stands in a lambda, where Spark makes no code of it: it is seldom evaluated, and may be long.
    """
    # Lambdas cannot contain these.
    if any(node is None or "PythonUDF" in _kinds(node) for node in nodes):
        return F.lit(None).cast("string")
    tried = access(rows.sparkSession).tried
    reason = _first(
        tried, ((column, _why(tried, node)) for column, node in zip(columns, nodes, strict=True))
    )
    called = F.transform(F.array(F.lit(0)), lambda _: reason).getItem(0)
    try:
        with said_once():
            rows.select(called).schema  # noqa: B018  (analysis happens here)
    except (AnalysisException, ParseException):
        return F.lit(None).cast("string")
    return called


def can_throw(node: Any) -> bool:
    """Tell whether an analyzed expression may throw on a row."""
    children = list(listed(node.children()))
    if _kind(node) == "Cast" and not node.canUpCast(children[0].dataType(), node.dataType()):
        return True
    return _kind(node) not in {*_NEVER, "Cast"} or any(map(can_throw, children))


def _why(tried: Tried, node: Any) -> Column:
    """Find the smallest part that throws, in Spark's SQL, and why."""
    if _kind(node) in ("Alias", "ExprAlias"):
        return _why(tried, node.child())
    here = F.lit(f"{node.sql()}: {_WORDS.get(_kind(node), 'it throws')}")
    risky = [child for child in listed(node.children()) if can_throw(child)]
    below = _first(tried, ((F.expr(child.sql()), _why(tried, child)) for child in risky))
    return F.coalesce(below, here)


def _first(tried: Tried, reasons: Iterable[tuple[Column, Column]]) -> Column:
    """The reason of the first that throws, else null."""
    texts = (F.when(tried(F.struct(column.alias("it"))).isNull(), why) for column, why in reasons)
    return F.coalesce(*texts, F.lit(None).cast("string"))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _kinds(node: Any) -> set[str]:
    return {_kind(node)}.union(*map(_kinds, listed(node.children())))
