"""Rows that workers make by expressions, where some of the rows cannot be used; no Spark.

Of topologies: tests/lowering/test_rows_that_throw.py; rows that are not there: tests/lowering/test_absent_rows.py.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.expressions import Part
from fkjoin.codec.messages import ANSWER, column, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.codec.vectors import Columns, Where, throwing
from fkjoin.spark.stepped import Stepped
from fkjoin.stages import Counters, counters
from fkjoin.stages.answer_rows import AnswerRows, CarryRows, ContributeRows, Joined, RowMaker, usable
from fkjoin.stages.contribute import Fields
from tests.support.stepped import Reading

MOST = 2**63 - 1
KEY = pa.schema([("id", pa.string())])
ROW = pa.schema([(name, pa.int64()) for name in ("f", "m", "k")])
RATE = pa.schema([("rate", pa.int64())])


def more(child: Part) -> Part:
    return Part("Add", pa.int64(), (child, Part("Literal", pa.int64(), argument=1)))


def named(name: str) -> Part:
    return Part("AttributeReference", pa.int64(), argument=name)


def of_left(name: str) -> Part:
    return Part("GetStructField", pa.int64(), (Part("AttributeReference", pa.struct(list(ROW)), argument="left"),), name)


STEPS = (
    Where(Part("GreaterThan", pa.bool_(), (more(named("f")), Part("Literal", pa.int64(), argument=0))), "filter of it"),
    Columns((("m", more(named("m"))), ("k", named("k"))), "map_values of it"),
)


def rows(rng: random.Random, count: int) -> list[dict[str, int]]:
    return [{name: MOST if rng.random() < 0.05 else rng.randrange(-2, 9) for name in ROW.names} for _ in range(count)]


def good(row: dict[str, int]) -> bool:
    return row["f"] < MOST and (row["f"] + 1 <= 0 or max(row["m"], row["k"]) < MOST)


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


def batch(some: list[dict[str, int]]) -> pa.RecordBatch:
    count = len(some)
    key = pa.array([{"id": f"o{place}"} for place in range(count)], pa.struct(list(KEY)))
    deleted = pa.array([False] * count)
    return pa.record_batch(
        {"key": key, "row": pa.array(some, pa.struct(list(ROW))), "deleted": deleted, "problem": pa.nulls(count, pa.string())}
    )


def stepped(some: list[dict[str, int]]) -> list[dict[str, object]]:
    by = Columns((("k0", more(named("k"))),), "extractor of it")
    packing = Stepped(Reading(), STEPS).packing(lambda batches: batches, by)  # type: ignore[arg-type]
    made = packing(iter([batch(some)]))
    return [row for one in made for row in one.to_pylist()]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_throw_have_a_problem_and_the_others_are_as_without_them(seed: int) -> None:
    some = rows(random.Random(seed), 50)
    found = stepped(some)
    usable_rows = [row for row in found if row["problem"] is None]
    assert len(found) == 50
    assert len(usable_rows) == sum(map(good, some))
    wanted = []
    for row in filter(good, some):
        wanted += stepped([row])
    assert [row["row"] for row in usable_rows] == [row["row"] for row in wanted]
    assert [row["foreign_key"] for row in usable_rows] == [row["foreign_key"] for row in wanted]


def answers(some: list[dict[str, int]]) -> pa.Table:
    count = len(some)
    key = KeyCodec(KEY).encode([pa.array([f"o{place}" for place in range(count)])], count)
    left = RowCodec(ROW).encode([pa.array([row[name] for row in some], pa.int64()) for name in ROW.names], count)
    right = RowCodec(RATE).encode([pa.array([1] * count, pa.int64())], count)
    version = pa.array([versions.absent(2)] * count, BYTES)
    made = table(ANSWER, key, version, left, right, pa.array([0] * count, pa.int64()))
    assert made.schema.equals(ANSWER)
    return made


JOINER = Columns(
    (("f", of_left("f")), ("m", of_left("m")), ("k", more(Part("Add", pa.int64(), (of_left("k"), of_left("k")))))),
    "joiner of it",
)


def makers() -> list[Joined | ContributeRows | CarryRows]:
    fields = Fields(KEY, ROW, RATE, "inner")
    made = AnswerRows(fields, RowMaker(JOINER, STEPS), fail=False)
    schema = pa.schema([("m", pa.int64()), ("k", pa.int64())])
    one = Columns((("k0", more(named("k"))),), "extractor of it")
    return [
        Joined(made, schema),
        ContributeRows(made, one, Columns((("m", named("m")),), "group_by of it")),
        CarryRows(made, one, schema),
    ]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("seed", range(3))
def test_answers_on_which_an_expression_throws_are_left_out_and_counted(kind: int, seed: int) -> None:
    make = makers()[kind]
    some = rows(random.Random(seed), 40)
    count = Counters()
    found = usable(make, answers(some), count, "it")
    left = [place for place, row in enumerate(some) if row["k"] < MOST and good(row)]
    assert count[counters.DEAD_LETTERS] == 40 - len(left)
    (reason,) = (name for name in count if name.startswith(counters.REASON))
    assert "of it: overflow of int64" in reason, "the expression, and the commonest of what it throws"
    assert found.equals(make(answers(some).take(left).combine_chunks()))
    assert column(found, "key").to_pylist() == column(answers(some), "key").take(pa.array(left)).to_pylist()
