"""A client of Spark Connect knows Columns by their names, without a server."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("grpc")

from pyspark.sql.connect import functions as F
from pyspark.sql.types import LongType

from fkjoin.sessions.access import Connect

CLIENT: Any = Connect(None)  # type: ignore[arg-type]


def names(column: Any) -> list[str] | None:
    text = CLIENT.text(column)
    return None if text is None else sorted(text.split(" , "))


def test_a_column_that_is_a_name_is_known() -> None:
    assert CLIENT.named(F.col("left.amount")) == "left.amount"
    assert CLIENT.named(F.col("amount") + 1) is None
    assert CLIENT.named(F.expr("amount")) is None


def test_all_that_a_column_names_is_found() -> None:
    a, b, c = map(F.col, ("a", "b.c", "`d e`"))
    assert names(F.when(a > 1, b.cast("string")).otherwise(F.upper(c)).alias("it")) == ["`d e`", "a", "b.c"]
    assert names(F.transform(a, lambda item: item + F.expr("b * 2"))) == ["a", "b * 2"]
    assert names(a["key"][b]) == ["a", "b.c"]
    assert names(F.udf(lambda x: x, LongType())(a)) == ["a"]
    assert names(F.call_function("coalesce", a, F.lit(1))) == ["a"]


@pytest.mark.parametrize("column", [F.col("*"), F.struct(F.col("*")), F.col("a").withField("b", F.lit(1))])
def test_of_other_columns_nothing_is_known(column: Any) -> None:
    assert CLIENT.text(column) is None
