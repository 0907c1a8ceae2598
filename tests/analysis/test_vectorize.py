"""Expressions over Arrow are what Spark makes of them."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.analysis.vectorize import ANSI
from fkjoin.codec.vectors import Where, taken
from fkjoin.spark.schemas import arrow_schema
from tests.support.bound import vector, vectors
from tests.support.sampling import examples

VALUES: dict[str, tuple[str, list[Any]]] = {
    "i": ("int", [0, 1, -1, 2**31 - 1]),
    "j": ("int", [0, 1, 5]),
    "k": ("smallint", [1, 7]),
    "n": ("bigint", [0, 1, 50, 2**63 - 1]),
    "x": ("double", [0.0, -0.0, math.nan, 1.5, math.inf, -1.0]),
    "y": ("double", [0.0, -0.0, math.nan, 1.5]),
    "f": ("float", [0.1, math.nan, 1.5]),
    "s": ("string", ["", "a", "ab", "a\nb", "é", "z"]),
    "t": ("string", ["a", "b", "é"]),
    "b": ("boolean", [True, False]),
    "c": ("boolean", [True, False]),
    "d": ("date", [datetime.date(2026, 1, 1), datetime.date(1960, 2, 3)]),
    "e": ("date", [datetime.date(2026, 1, 1)]),
    "at": ("timestamp", [datetime.datetime(2026, 1, 1, 1, 2)]),
    "p": ("decimal(10,2)", [Decimal("1.10"), Decimal("-2")]),
    "q": ("decimal(10,2)", [Decimal("1.10")]),
    "st": ("struct<a: bigint, inner: struct<z: string>>", [(None, None), (5, ("u",)), (1, None)]),
}

EVALUATED = """
i = j | i < n | n >= 50 | x >= 50 | x > 0.5 | x = y | x < y | x <= y | x > y | x >= y | x <=> y | x <> y | f < x | f = 0.1
f <=> f | s = 'a' | s < t | s <=> t | s >= 'é' | s in ('a','b') | s not in ('a') | i in (1, 5) | n in (1, 50) | k in (1)
p in (1, 1.1) | b and c | b or c | not b | b = c | b is null | x is not null | d = e | d >= '2026-01-01'
d < date'2000-01-01' | at = at
d between date'2026-01-01' and d | n between 1 and 50 | i between 0 and k | p >= q | p > 1 | p = 1.10 | p < 1.105
st.a > 2 | st.inner.z = 'u' | st.inner is null | st is null | s | st | st.inner | true | 'text' | case when b then s end
coalesce(i, j) | coalesce(s, t, 'z') | nvl(i, 0) | if(b, i, j) | if(b, null, s) | case when b then s when c then t end
case when x > 1 then 1.5D else y end | concat(s, '-', t) | s || t | s like 'a%' | s like '%b' | s like '_' | s not like 'a_'
x + y | x * 2 | x - f | f * 2.0F | -x | -f | k < 5 | cast(i as bigint) | cast(n as double) | cast(f as double) = f | x = 1
cast(n as double) = x | coalesce(b, false) and x > 1 | i is null or j > 0 | i * 1L | i + 1 > 0 and b
"""
"""One after the other, with ``|`` between them."""

LEFT_TO_SPARK = """
upper(s) | cast(s as int) | x % 2 | array(i) | current_date() > d | st = st | p * 2 | b and i + 1 > 0 | if(b, i + 1, 0)
coalesce(1 / x, y) | s like 'a\\\\%' | x in (1.0D) | cast(x as int) | i <> 3.5 | sum(i) over ()
s collate UNICODE_CI = 'A' | abs(x) | cast(n as int) | cast(p as decimal(4,2)) | cast(p as decimal(11,1))
"""


def listed(texts: str) -> list[str]:
    return [text.strip().replace("⎮", "|") for text in texts.replace("||", "⎮⎮").replace("\n", "|").split("|") if text.strip()]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    rng = random.Random(5)
    made = [[rng.choice([None, *some]) for _, some in VALUES.values()] for _ in range(300)]
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    kept = spark.createDataFrame(made, schema).coalesce(1).cache()
    yield kept
    kept.unpersist()


def columns(rows: DataFrame) -> tuple[dict[str, pa.Array], int]:
    found = rows.toArrow()
    schema = arrow_schema("rows", rows.schema)
    return {field.name: found.column(field.name).combine_chunks().cast(field.type) for field in schema}, len(found)


def comparable(value: Any) -> Any:
    """Zeros with their signs, and what is no number as a text."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    return value


def assert_same(rows: DataFrame, texts: list[str]) -> None:
    names = rows.columns
    wanted = rows.select(*[F.expr(text).alias(f"e{place}") for place, text in enumerate(texts)]).toArrow()
    have, count = columns(rows)
    for place, text in enumerate(texts):
        made = vector(F.expr(text), rows, names)
        assert made is not None, text
        found = made(have, count)
        assert found.type == made.type, text
        expected = [comparable(value) for value in wanted.column(place).to_pylist()]
        assert [comparable(value) for value in found.to_pylist()] == expected, text


def test_columns_are_those_of_spark(rows: DataFrame) -> None:
    assert_same(rows, [text for text in listed(EVALUATED) if "+ 1" not in text and "* 1L" not in text])
    small = rows.where("i < 1000")  # what is left does not fit else
    assert_same(small, [text for text in listed(EVALUATED) if "+ 1" in text or "* 1L" in text][:1])


ENDS = {
    "number": ["x", "y", "f", "cast(i as double)", "1.5D", "st.a", "n"],
    "text": ["s", "t", "st.inner.z", "'a'"],
    "truth": ["b", "c", "d = e", "s in ('a', 'é')", "p > q", "true"],
    "sign": ["+", "-", "*"],
    "link": ["and", "or"],
    "compared": ["=", "<>", "<", "<=", ">", ">=", "<=>"],
}
LONGER = {
    "number": """coalesce({number} * 1.0D, x * 1.0D) | if({truth}, x, y)
        (cast({number} as double) {sign} cast({number} as double))""",
    "text": "concat({text}, {text}) | case when {truth} then {text} else t end",
    "truth": """not ({truth}) | ({truth} {link} {truth}) | ({text} {compared} {text})
        ({text} is null) | ({text} is not null) | ({number} {compared} {number})""",
}
"""Parts of expressions, and expressions with parts in them."""


@pytest.mark.faults
def test_so_are_those_that_are_put_together_at_random(rows: DataFrame) -> None:
    rng = random.Random(7)

    def drawn(kind: str, depth: int) -> str:
        goes_on = kind in LONGER and depth > 0 and rng.random() < 0.7
        text = rng.choice(listed(LONGER[kind]) if goes_on else ENDS[kind])
        return re.sub(r"{(\w+)}", lambda part: drawn(part[1], depth - 1), text)

    texts = [drawn(rng.choice(["truth", "truth", "text"]), 3) for _ in range(examples(360))]
    known = [text for text in texts if vector(F.expr(text), rows, rows.columns) is not None]
    assert len(known) > len(texts) / 2, "others can raise, or Spark folds them into another type"
    assert_same(rows, known)


@pytest.mark.parametrize("text", ["i + 1", "n + n", "k * k * k * k * k * k * k", "i - (-1)", "x / 0.0D", "1 / y"])
def test_what_spark_refuses_is_refused(rows: DataFrame, text: str) -> None:
    made = vector(F.expr(text), rows, rows.columns)
    assert made is not None
    with pytest.raises(ArithmeticException):
        rows.select(F.expr(text)).collect()
    with pytest.raises(ArithmeticError):
        made(*columns(rows))
    rows.sparkSession.conf.set(ANSI, "false")
    try:
        assert vector(F.expr(text), rows, rows.columns) is None, "Spark does not refuse it then"
        assert vector(F.expr("x >= 1"), rows, rows.columns) is not None
    finally:
        rows.sparkSession.conf.set(ANSI, "true")


@pytest.mark.parametrize("text", listed(LEFT_TO_SPARK))
def test_other_parts_are_left_to_spark(rows: DataFrame, text: str) -> None:
    assert vector(F.expr(text), rows, rows.columns) is None


def test_texts_with_a_collation_are_left_to_spark(rows: DataFrame) -> None:
    collated = rows.select(F.expr("s collate UTF8_LCASE as u"), F.expr("t collate UTF8_LCASE as v"))
    for text in ("u = v", "u = 'A'", "u in ('A')", "u < v"):
        assert vector(F.expr(text), collated, collated.columns) is None, text
    assert vector(F.expr("u is null"), collated, collated.columns) is None


def test_a_column_that_is_not_the_tables_is_left_to_spark(rows: DataFrame) -> None:
    assert vector(F.col("x"), rows, ["y"]) is None
    assert vectors({"x": F.col("x"), "s": F.upper("s")}, rows, rows.columns) is None
    assert vector(F.col("X"), rows, rows.columns) is not None, "Spark's names have no case"
    assert vector(F.col("x"), rows, ["x", "X"]) is None, "which they can be told to have"


def test_a_row_that_is_left_out_is_not_looked_at_again(rows: DataFrame) -> None:
    """The second condition would raise for the rows that the first one leaves out."""
    have, _ = columns(rows)
    row = pa.StructArray.from_arrays([have["x"], have["i"]], ["x", "i"])
    texts = "x > 1", "1 / x > 0.5", "i < 5", "i + 2147483642 > 0"
    key = pa.StructArray.from_arrays([pc.fill_null(have["j"], 0)], ["j"])
    texts = (*texts, "1 / j >= 0")  # of the key, which is there when the row is gone
    wheres = [Where(found) for text in texts if (found := vector(F.expr(text), rows, rows.columns)) is not None]
    left, gone = taken(tuple(wheres), key, row, pc.equal(key.field("j"), 0))
    stays = [row.asDict() for row in rows.where("j <> 0 and x > 1").where("1 / x > 0.5 and i < 5").select("x", "i").collect()]
    assert [str(one) for one, out in zip(left.to_pylist(), gone.to_pylist(), strict=True) if not out] == list(map(str, stays))
    assert stays
    assert left.null_count == gone.true_count
