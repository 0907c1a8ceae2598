"""Expressions for rows and for columns: what Spark leaves out, and decimals of any length."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.codec.expressions import Part

NUMBER, WHOLE, LONG = pa.float64(), pa.int64(), pa.decimal128(38, 2)


def named(name: str, of: pa.DataType = NUMBER) -> Part:
    return Part("AttributeReference", of, argument=name)


QUOTIENT = Part("Divide", NUMBER, (named("a"), named("b")))


@pytest.mark.parametrize(
    ("part", "row"),
    [
        (Part("Add", NUMBER, (named("x"), QUOTIENT)), {"x": None, "a": 1.0, "b": 0.0}),
        (Part("Divide", NUMBER, (QUOTIENT, named("x"))), {"x": None, "a": 1.0, "b": 0.0}),
        (Part("LessThan", pa.bool_(), (named("x"), QUOTIENT)), {"x": None, "a": 1.0, "b": 0.0}),
    ],
)
def test_beside_a_null_nothing_is_evaluated_that_could_raise(part: Part, row: dict[str, Any]) -> None:
    assert part.of_row(row) is None
    good = {"x": 2.0, "a": 6.0, "b": 3.0}
    columns = {name: pa.array([row[name], good[name]], NUMBER) for name in row}
    found = part(columns, 2)
    assert found.to_pylist() == [None, part.of_row(good)]
    with pytest.raises(ZeroDivisionError):
        part.of_row({**row, "x": 1.0})
    with pytest.raises(ZeroDivisionError):
        part({name: pa.array([value or 1.0 if name == "x" else value], NUMBER) for name, value in row.items()}, 1)


def test_decimals_keep_all_their_digits() -> None:
    long = Decimal("-123456789012345678901234567890123456.78")
    assert Part("UnaryMinus", LONG, (named("d", LONG),)).of_row({"d": long}) == Decimal(str(long)[1:])
    assert Part("Abs", LONG, (named("d", LONG),)).of_row({"d": long}) == Decimal(str(long)[1:])


@pytest.mark.parametrize(("left", "right", "whole"), [("9.0", "1.5", 6), ("7.5", "0.5", 15), ("-7.5", "2", -3)])
def test_a_whole_quotient_of_decimals(left: str, right: str, whole: int) -> None:
    part = Part("IntegralDivide", WHOLE, (named("a", LONG), named("b", LONG)))
    assert part.of_row({"a": Decimal(left), "b": Decimal(right)}) == whole
