"""Adders and subtractors as Spark expressions: outside of the JVM they return what Spark returns."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import TopologyError
from fkjoin.analysis.vectorize import scalar_of
from tests.support.orders import tables
from tests.support.sessions import conf

pytestmark = pytest.mark.usefixtures("small_tables")

COLUMNS = (
    "a bigint, b int, x double, d decimal(10,2), t string, ok boolean, l array<string>, s struct<n: int, m: string>, "
    "n array<double>"
)
VALUES: dict[str, list[Any]] = {
    "a": [None, 0, 7, -7, (1 << 62)],
    "b": [None, 2, -3],
    "x": [None, 0.5, 0.1, -2.0, math.nan, math.inf],
    "d": [None, Decimal("1.25"), Decimal("-0.05")],
    "t": [None, "", "b"],
    "ok": [None, True, False],
    "l": [None, [], ["b", "a", "b"], [None, "a"]],
    "s": [None, (1, "m"), (None, None)],
    "n": [None, [], [math.nan, 0.1, math.nan], [None, 0.5, -2.0, None]],
}
EXPRESSIONS = [
    "a + b",
    "a * 1.5D + x",
    "x / 2",
    "a / b",
    "a div b",
    "a % b",
    "-a",
    "abs(b)",
    "d * d",
    "d / 3",
    "cast(d as int) + a",
    "cast(b as decimal(10,3)) - d",
    "cast(ok as int)",
    "if(a > b, a, b)",
    "case when ok then 'yes' when a = 7 then t else concat(t, '!') end",
    "ifnull(t, 'none')",
    "greatest(a, b, 1)",
    "least(x, 1.0D)",
    "x = x and not ok",
    "a <=> b or t <> 'b'",
    "a is null and t is not null",
    "t >= 'a' and x <= x",
    "array_except(l, array('b'))",
    "array_intersect(l, array('a', 'a'))",
    "array_remove(l, 'b')",
    "concat(l, array('z'))",
    "size(l) + length(t)",
    "concat(s.m, t)",
    "A + S.N",
    "a <> 0 and 7 / a > 1",
    "b is null or b = 2 or 7 % (b - 2) = 0",
    "x = 0.1F or cast(x as float) = 0.1F",
    "cast(a + 68719476737 as float)",
    "x % 3D",
    "cast(x as decimal(10, 2))",
    "array_union(n, array(x))",
    "array_intersect(n, array(x, x))",
    "array_distinct(n)",
    "array_remove(n, x)",
    "array_contains(n, x)",
    "n = array(x, 0.1D, x)",
    "n < array(x)",
    "n >= array(0.5D) or n <=> n",
]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def test_an_expression_returns_what_spark_returns(spark: SparkSession) -> None:
    """Rows combine values, nulls and not-a-numbers, none of which make Spark raise."""
    rows = [dict(zip(VALUES, row, strict=True)) for row in itertools.product(*VALUES.values())][::227]
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], COLUMNS).coalesce(1)
    columns = [F.expr(text).alias(f"c{place}") for place, text in enumerate(EXPRESSIONS)]
    parts = [scalar_of("adder", column, frame) for column in columns]
    other = {"spark.sql.ansi.enabled": "false", "spark.sql.legacy.sizeOfNull": "false"}
    with conf(spark, other):
        wanted = frame.select(*columns).collect()
    for row, values in zip(rows, wanted, strict=True):
        for text, part, value in zip(EXPRESSIONS, parts, values, strict=True):
            assert same(part.of_row(row), value), (text, row, part.of_row(row), value)


@pytest.mark.parametrize(
    ("text", "says", "way", "gives"),
    [
        ("a div 0", "division by zero; write if", "if(0 = 0, null, a div 0)", None),
        ("(a + 1) / (b - b)", "division by zero; write if", "if(b - b = 0, null, (a + 1) / (b - b))", None),
        ("b % 0", "division by zero; write if", "if(0 = 0, null, b % 0)", None),
        ("cast(a * 4 as int)", "", "cast(a * 4 as bigint)", 1 << 62),
        ("a * 92233", "does not fit into bigint", "cast(a as decimal(38, 0)) * 92233", (1 << 60) * 92233),
    ],
)
def test_where_spark_raises_it_raises(spark: SparkSession, text: str, says: str, way: str, gives: Any) -> None:
    frame = spark.createDataFrame([(3, 5)], "a bigint, b int")
    part = scalar_of("adder", F.expr(text), frame)
    with pytest.raises(ArithmeticError, match=says):
        part.of_row({"a": 1 << 60, "b": 5})
    assert scalar_of("adder", F.expr(way), frame).of_row({"a": 1 << 60, "b": 5}) == gives


COLLATED = "adder: u is string collate UTF8_LCASE, and is compared byte by byte here; cast it to"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rand()", r"adder: rand\(.*\) cannot be evaluated outside of the JVM \(Rand\); give"),
        ("try_cast(a as int)", r"cannot be evaluated outside of the JVM \(Cast\)"),
        ("cast(t as bigint)", r"cannot be evaluated outside of the JVM \(Cast\)"),
        ("v > interval '1' day", "adder: a constant of type interval day cannot be used here"),
        ("u = 'A'", COLLATED),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(spark: SparkSession, text: str, says: str) -> None:
    others = "v interval day to second, u string collate UTF8_LCASE"
    frame = spark.createDataFrame([], f"{COLUMNS}, {others}")
    with pytest.raises(TopologyError, match=says):
        scalar_of("adder", F.expr(text), frame)
    compared = scalar_of("adder", F.expr("cast(u as string) = 'A'"), frame)
    assert compared.of_row({"u": "A"}) is True


def test_expressions_as_adder_and_subtractor(spark: SparkSession, tmp_path: Path) -> None:
    """A query of them is in tests/lowering/test_interpreters.py: aggregate_by_expressions."""
    orders, _ = tables(spark, tmp_path)
    grouped = orders.group_by("customer_id", value=["order_id", "items"], name="ids")
    subtractor = F.expr("array_except(Aggregate, array(ORDER_ID))")
    ids = grouped.aggregate([], "array_union(aggregate, array(order_id))", subtractor, returns="array<string>")
    assert ids.columns == ["customer_id", "value"]
    for text in ("aggregate + rand()", "if(interval '1' day > interval '2' day, aggregate, 0.0)"):
        with pytest.raises(TopologyError, match="adder: .*; give a Python callable"):
            grouped.aggregate(0.0, text, "aggregate")
    assert grouped.aggregate(0.0, lambda _, ids, total: total, lambda _, ids, total: total).columns == ids.columns
    drawn = orders.group_by("customer_id", value="rand() as r").aggregate(0.0, "aggregate + r", "aggregate - r")
    assert drawn.columns == ids.columns, "what Spark evaluates"
    with pytest.raises(TopologyError, match="adder: in 'aggregate \\+ itms', .* has no column 'itms'"):
        grouped.aggregate(0, "aggregate + itms", "aggregate - items")
    with pytest.raises(TopologyError, match="subtractor: a column is called 'aggregate', as the aggregate is"):
        orders.group_by("op", value=F.col("items").alias("aggregate")).aggregate(0, max, "aggregate - items")
