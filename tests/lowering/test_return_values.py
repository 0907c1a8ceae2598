"""Functions that return what is not of their type, or too few columns: they follow ``on_error``, as what throws does."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, DateType, DecimalType, DoubleType, LongType, StringType, StructType

from fkjoin import FkJoinError, Table, fk_join
from fkjoin.analysis.extractor import _extracting
from fkjoin.analysis.joiner import _called, _catching, _in_short
from fkjoin.spark.returned import as_type
from fkjoin.testing import Driver

PAIR = StructType().add("a", LongType()).add("b", StringType())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, LongType()),
        (3.0, LongType()),
        (np.int64(3), LongType()),
        (3, DoubleType()),
        (3, StringType()),
        (Decimal("1.5"), DecimalType(10, 2)),
        (datetime.date(2026, 1, 1), DateType()),
        ((1, None), PAIR),
        (None, PAIR),
    ],
)
def test_what_spark_takes_is_taken(value: Any, kind: DataType) -> None:
    assert as_type(value, kind) is value


def test_what_arrow_casts_is_cast() -> None:
    assert as_type(Decimal("1.5"), DoubleType()) == 1.5
    assert as_type("7", LongType()) == 7
    assert as_type(("7", "b"), PAIR) == (7, "b")


@pytest.mark.parametrize(
    ("value", "kind"),
    [("text", LongType()), (True, LongType()), (2**63, LongType()), ("soon", DateType()), ((1,), PAIR), (5, PAIR)],
)
def test_the_rest_is_told(value: Any, kind: DataType) -> None:
    with pytest.raises(TypeError, match=f"is not of type {kind.simpleString()}"):
        as_type(value, kind)


@pytest.mark.parametrize("found", ["xy", (1,), (1, "b", 2), ("text", "b"), {"a": 1, "b": "b"}])
def test_an_extractor_of_two_columns(found: Any) -> None:
    made = _extracting(lambda key, row: found, PAIR, "orders", fail=False)(None, "o1", {})
    assert made[:2] == (None, None)
    assert made[2].startswith("extractor: TypeError: ")
    with pytest.raises(FkJoinError, match="extractor of orders, key o1: TypeError: "):
        _extracting(lambda key, row: found, PAIR, "orders", fail=True)(None, "o1", {})
    assert _extracting(lambda key, row: [1, "b"], PAIR, "orders", fail=True)(None, "o1", {}) == (1, "b", None)
    assert _extracting(lambda key, row: None, PAIR, "orders", fail=True)(None, "o1", {}) == (None, None, None)


def test_a_joiner() -> None:
    def joiner(left: Any, right: Any) -> int:
        return left  # type: ignore[no-any-return]

    join = _catching(_called(joiner), _in_short)
    assert join(True, 1, None) == (1, None)
    assert join(True, "text", None) == (None, "TypeError: 'text' is not of type bigint")


def test_rows_are_set_aside_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    about: Any = {"format": "json", "version": "lsn"}
    left = Table.from_files(spark, tmp_path / "a", key="id", schema="id string, lsn int", **about)
    right = Table.from_files(spark, tmp_path / "b", key=["c", "d"], schema="c int, d string, lsn int", **about)

    def extractor(key: Any, row: Any) -> Any:
        return {"short": (1,), "text": ("text", "x")}.get(key, (1, "x"))

    def joiner(left: Any, right: Any) -> int:
        return "text" if left["id"] == "joiner" else 7  # type: ignore[return-value]

    driver = Driver(fk_join(left, right, extractor, "inner", joiner, name="joined"))
    driver.input("b").change((1, "x"), {})
    for name in ("good", "short", "text", "joiner"):
        driver.input("a").change(name, {})
    driver.run()
    assert driver.table == {"good": {"value": 7}}
    found = {json.loads(letter["key"] or letter["value"])["id"]: letter["reason"] for letter in driver.dead_letters}
    assert found.keys() == {"short", "text", "joiner"}
    assert found["joiner"] == "joiner: TypeError: 'text' is not of type bigint"
