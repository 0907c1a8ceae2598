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

from fkjoin import fk_join
from fkjoin.spark.returned import as_type
from fkjoin.testing import Driver
from tests.support.plans.topologies import Sources

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


def test_rows_are_set_aside_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    sources = Sources(spark, tmp_path, {})
    left, right = sources.files("a", "id", "id string"), sources.files("b", "c, d", "c int, d string")
    returned = {
        "listed": [1, "x"],
        "nothing": None,
        "text": "xy",
        "short": (1,),
        "long": (1, "x", 2),
        "cast": ("text", "x"),
        "named": {"c": 1, "d": "x"},
    }

    def extractor(key: Any, row: Any) -> Any:
        return returned.get(key, (1, "x"))

    def joiner(left: Any, right: Any) -> int:
        return "text" if left["id"] == "joiner" else 7  # type: ignore[return-value]

    driver = Driver(fk_join(left, right, extractor, "inner", joiner, name="joined"))
    driver.input("b").change((1, "x"), {})
    for name in ("good", *returned, "joiner"):
        driver.input("a").change(name, {})
    driver.run()
    assert driver.table == {"good": {"value": 7}, "listed": {"value": 7}}
    reasons = {}
    for letter in driver.dead_letters:
        reasons[json.loads(letter["key"] or letter["value"])["id"]] = letter["reason"]
    assert reasons.pop("joiner") == "joiner: TypeError: 'text' is not of type bigint"
    assert reasons.keys() == {"text", "short", "long", "cast", "named"}
    assert all(reason.startswith("extractor: TypeError: ") for reason in reasons.values())
