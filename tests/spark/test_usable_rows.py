"""Rows on which an expression throws are found, and the others are as without them; no Spark.

Of topologies: tests/lowering/test_rows_that_throw.py; rows that are not there: tests/lowering/test_absent_rows.py.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.codec.expressions import Part
from fkjoin.codec.vectors import Columns, Where, throwing
from fkjoin.spark.stepped import Stepped
from tests.support.stepped import Reading

MOST = 2**63 - 1
LONG = pa.int64()
BATCH = pa.schema(
    {
        "key": pa.struct({"id": pa.string()}),
        "row": pa.struct(dict.fromkeys("fmk", LONG)),
        "deleted": pa.bool_(),
        "problem": pa.string(),
    }
)


@pytest.mark.parametrize("bad", [[], [0], [6], [2, 3], list(range(7))])
def test_rows_that_throw_are_found(bad: list[int]) -> None:
    def evaluate(first: int, count: int) -> None:
        if any(first <= place < first + count for place in bad):
            raise ZeroDivisionError("no")

    assert sorted(throwing(evaluate, 7)) == bad
    assert throwing(evaluate, 0) == {}


def test_what_is_no_error_of_arithmetic_is_thrown_on() -> None:
    def evaluate(first: int, count: int) -> None:
        raise KeyError(first)

    with pytest.raises(KeyError):
        throwing(evaluate, 2)


def named(name: str) -> Part:
    return Part("AttributeReference", LONG, argument=name)


def more(name: str) -> Part:
    return Part("Add", LONG, (named(name), Part("Literal", LONG, argument=1)))


def stepped(rows: list[dict[str, int]]) -> list[dict[str, Any]]:
    is_positive = Part("GreaterThan", pa.bool_(), (more("f"), Part("Literal", LONG, argument=0)))
    columns = Columns((("m", more("m")), ("k", named("k"))), "map_values of it")
    by = Columns((("k0", more("k")),), "extractor of it")
    steps = Where(is_positive, "filter of it"), columns
    reading: Any = Reading()
    packing: Any = Stepped(reading, steps).packing(lambda batches: batches, by)
    items = [{"key": {"id": "o"}, "row": row, "deleted": False} for row in rows]
    batches = packing(iter([pa.RecordBatch.from_pylist(items, BATCH)]))
    return pa.Table.from_batches(batches).to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_throw_have_a_problem_and_the_others_are_as_without_them(seed: int) -> None:
    rng = random.Random(seed)
    numbers = [MOST, *range(-2, 9), *range(-2, 9)]
    rows = [{name: rng.choice(numbers) for name in "fmk"} for _ in range(50)]
    passes = [row for row in rows if row["f"] < MOST]
    good = [row for row in passes if row["f"] < 0 or max(row["m"], row["k"]) < MOST]
    results = stepped(rows)
    assert len(results) == 50
    usable = [row for row in results if row["problem"] is None]
    assert usable == [row for one in good for row in stepped([one])]
    assert 0 < len(usable) < 50
