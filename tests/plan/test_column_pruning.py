"""Column pruning: which fields a joiner reads, and rows without the rest.  Results: tests/plan/test_optimizer.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.analysis.checks import is_function
from fkjoin.analysis.columns import without_stars
from fkjoin.analysis.joiner import BoundJoiner, bound_joiner
from fkjoin.codec.arrays import narrowed
from fkjoin.codec.rows import RowCodec
from fkjoin.lowering.answers import Kept, narrow, needed
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.unpacking import UnpackAnswers

INNER = pa.struct([("a", pa.int64()), ("b", pa.string()), ("deep", pa.struct([("x", pa.bool_()), ("y", pa.string())]))])
SCHEMA = pa.schema([("id", pa.string()), ("value", INNER), ("list", pa.list_(INNER)), ("n", pa.int32())])
PATHS = st.lists(
    st.sampled_from(
        [(), ("id",), ("value",), ("value", "a"), ("value", "b"), ("value", "deep"), ("value", "deep", "y"), ("list",), ("n",)]
    ),
    max_size=4,
)
INNERS = st.none() | st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(0, 9),
        "b": st.none() | st.text(max_size=3),
        "deep": st.none() | st.fixed_dictionaries({"x": st.none() | st.booleans(), "y": st.none() | st.text(max_size=2)}),
    }
)
ROWS = st.fixed_dictionaries(
    {"id": st.none() | st.text(max_size=3), "value": INNERS, "list": st.none() | st.lists(INNERS, max_size=2), "n": st.none()}
)


def picked(row: Any, kind: Any) -> Any:
    """The fields of a row that its type has, by plain Python."""
    if row is None or not isinstance(kind, pa.StructType):
        return row
    return {field.name: picked(row[field.name], field.type) for field in kind}


@given(paths=PATHS, rows=st.lists(st.none() | ROWS, max_size=6))
def test_a_narrowed_row_is_the_row_without_the_rest(paths: list[Any], rows: list[Any]) -> None:
    """Also after it was encoded, and of rows that are not there."""
    schema = narrow(SCHEMA, paths)
    whole = pa.array(rows, pa.struct(list(SCHEMA)))
    columns = narrowed(dict(zip(SCHEMA.names, whole.flatten(), strict=True)), schema)
    kind = pa.struct(list(schema))
    wanted = [picked(row or dict.fromkeys(SCHEMA.names), kind) for row in rows]
    again = RowCodec(schema).decode(RowCodec(schema).encode(columns, len(rows)))
    read = RowCodec(SCHEMA).narrowed(RowCodec(SCHEMA).encode(whole.flatten(), len(rows)), schema)
    for found in (columns, again, read):
        lists = {name: column.to_pylist() for name, column in zip(schema.names, found, strict=True)}
        assert [{name: lists[name][at] for name in lists} for at in range(len(rows))] == wanted


@given(paths=PATHS, rows=st.lists(ROWS, max_size=6))
def test_fields_of_encoded_rows_are_picked_one_by_one(paths: list[Any], rows: list[Any]) -> None:
    """Also one that another one is in."""
    wanted = [path for path in paths if path]
    columns = pa.array(rows, pa.struct(list(SCHEMA))).flatten()
    found = RowCodec(SCHEMA).pick(RowCodec(SCHEMA).encode(columns, len(rows)), wanted)

    def at(row: Any, path: Any) -> Any:
        return row if row is None or not path else at(row[path[0]], path[1:])

    assert [column.to_pylist() for column in found] == [[at(row, path) for row in rows] for path in wanted]


def test_a_schema_keeps_the_fields_that_are_named() -> None:
    assert narrow(SCHEMA, [("value", "deep", "y"), ("n",), ("value", "a")]) == pa.schema(
        [("value", pa.struct([("a", pa.int64()), ("deep", pa.struct([("y", pa.string())]))])), ("n", pa.int32())]
    )
    assert narrow(SCHEMA, [("value", "a"), ()]) == SCHEMA
    assert narrow(SCHEMA, []) == pa.schema([("n", pa.int32())]), "one small field, so that a row can be told from none"
    assert narrow(pa.schema([("a", pa.string())]), []) == pa.schema([("a", pa.string())])


def bound(spark: SparkSession, joiner: Any) -> BoundJoiner:
    """A joiner of rows of ``SCHEMA``, each ``*`` in it written out."""
    answers = UnpackAnswers(SCHEMA, SCHEMA, "inner", pa.schema([("key", pa.int64())]))
    rows = spark.createDataFrame([], spark_schema(answers.schema))
    chosen = joiner if is_function(joiner) else without_stars(joiner, rows, rows.columns)
    return bound_joiner("joined", chosen, rows, "dead-letter")


@pytest.mark.parametrize(
    ("joiner", "left", "right"),
    [
        (["left.id", "right.value.a"], ["id"], ["value.a"]),
        (["LEFT.Id", "upper(Right.value.DEEP.y) as up"], ["id"], ["value.deep.y"]),
        ("left.list[0].a as first", ["list"], ["n"]),
        ("transform(left.list, one -> one.a + right.n) as sums", ["list"], ["n"]),
        (lambda: [F.col("left.value").getField("a"), F.lit(1).alias("one")], ["value.a"], ["n"]),
        ("coalesce(left.value, right.value).b as b", ["value"], ["value"]),
        ("left.value.*", ["value"], ["n"]),
        ("to_json(left) as text", SCHEMA.names, ["n"]),
        ("left.*", SCHEMA.names, ["n"]),
        (lambda: F.struct("left.n", F.struct("right.id").alias("r")).alias("s"), ["n"], ["id"]),
    ],
)
def test_what_an_expression_reads(spark: SparkSession, joiner: Any, left: list[str], right: list[str]) -> None:
    """Columns are made by a function: there is no JVM yet when tests are collected."""
    kept = needed(bound(spark, joiner() if callable(joiner) else joiner), Kept(SCHEMA, SCHEMA))
    assert not isinstance(kept, str)
    assert [kept.left, kept.right] == [narrow(SCHEMA, [tuple(path.split(".")) for path in side]) for side in (left, right)]


@pytest.mark.parametrize("joiner", ["struct(left, right) as both", ["left", "right"]])
def test_all_of_both_rows_may_be_needed(spark: SparkSession, joiner: Any) -> None:
    assert needed(bound(spark, joiner), Kept(SCHEMA, SCHEMA)) == "the joiner reads every column"
