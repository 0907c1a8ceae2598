"""A topic's records made by the workers: they are those that Spark's expressions make."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructType

from fkjoin import Table, fk_join
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, concat, masked
from fkjoin.codec.json_write import objects, texts, writable
from fkjoin.codec.messages import ANSWER, RESULT, Operation, column, pack, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.kafka import Registry
from fkjoin.kafka.formats import Json, writer
from fkjoin.kafka.positions import RootsOf
from fkjoin.lowering.table_plan import Packed, TablePlan, rows_of
from fkjoin.plan.physical import Given
from fkjoin.sinks import Kafka
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import VERSION
from fkjoin.spark.on_arrow import on_arrow
from fkjoin.spark.schemas import arrow_schema, struct_type
from fkjoin.spark.topic_values import POSITIONS
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.join_rows import join_rows
from tests.support.sessions import small

ROWS = (
    "text string, yes boolean, tiny tinyint, whole bigint, real double, half float, price decimal(38, 12), "
    'inner struct<`a "b`: string, c: struct<d: double>>, items array<bigint>, pairs array<struct<x: string, y: array<string>>>'
)
TEXTS = ("", "plain", 'with "quotes" and \\ and /', "tab\tnew\nline\r\x00\x1f\x7f\b\f", "é\u2028😀", '{"a": [1]}', "\\\\")
REALS = (0.0, -0.0, 1.0, -17.0, 0.1, 1e20, 1e-7, 1.7976931348623157e308, 5e-324, 123456789012.0, 2.0**53, 9007199254740993.0)
ODD = (float("nan"), float("inf"), float("-inf"))


def pools(rng: random.Random) -> dict[str, list[Any]]:
    """Values of each column."""
    drawn = [rng.uniform(-1, 1) * 10 ** rng.randrange(-300, 300) for _ in range(90)]
    reals = [*REALS, *ODD, *drawn]
    texts = [first + second for first in TEXTS for second in TEXTS]
    inner = [{'a "b': text, "c": {"d": real}} for text, real in zip(texts, reals, strict=False)]
    pairs = [{"x": text, "y": [text, None]} for text in TEXTS]
    return {
        "text": texts,
        "yes": [True, False],
        "tiny": [*range(-128, 128)],
        "whole": [0, -(2**63), 2**63 - 1, 123_456],
        "real": reals,
        "half": [0.0, 1.0, 0.1, 3.4e38, float("nan"), float("-inf")],
        "price": [Decimal(n).scaleb(-scale) for n in (0, 1, -125, 10**24) for scale in (0, 2, 12)],
        "inner": [*inner, {'a "b': None, "c": {"d": None}}, {'a "b': "", "c": None}],
        "items": [[], [1, None, 8], [None]],
        "pairs": [[], pairs, [None, {"x": None, "y": None}], [{"x": "", "y": []}]],
    }


def with_floats(members: dict[str, Any]) -> dict[str, Any]:
    """Floats where the schema has them: Java may write more digits than are needed to tell them."""
    floats = {name: members[name] for name in ("real", "d") if name in members}
    numbers = {name: float(item) for name, item in floats.items() if isinstance(item, Decimal)}
    return members | numbers


def read(text: str | bytes) -> Any:
    """Read JSON with other numbers as decimals, so that equal numbers are equal."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal, object_hook=with_floats)


def test_json_is_what_spark_writes(spark: SparkSession) -> None:
    rng = random.Random(26)
    values = pools(rng)
    rows = [{name: rng.choice([None, *some]) for name, some in values.items()} for _ in range(600)]
    kind = struct_type(ROWS, "rows")
    schema = StructType().add("at", IntegerType()).add("row", kind)
    frame = spark.createDataFrame(enumerate(rows), schema)
    json_of = Json("").encode(F.col("row"), kind)
    columns = pa.array(rows, pa.struct(list(arrow_schema("rows", kind))))
    assert writable(columns.type)
    texts_of_rows = objects(columns.type.names, columns.flatten()).to_pylist()
    expected = dict(frame.select("at", json_of).collect())
    assert len(texts_of_rows) == len(expected) == len(rows)
    for at, text in expected.items():
        assert read(texts_of_rows[at]) == read(text), rows[at]


def test_json_byte_by_byte() -> None:
    def of(values: list[Any], kind: pa.DataType) -> list[str]:
        return texts(pa.array(values, kind)).to_pylist()

    assert of(["a", None, 'b"\\\n\x01'], pa.string()) == ['"a"', "null", r'"b\"\\\n\u0001"']
    odd = ['"NaN"', '"Infinity"', '"-Infinity"']
    assert of([1.0, 0.5, None, 1e20, *ODD], pa.float64()) == ["1.0", "0.5", "null", "1e+20", *odd]
    assert of([[1, None], [], None], pa.list_(pa.int64())) == ["[1,null]", "[]", "null"]
    assert of([{"é": 1}, None], pa.struct([("é", pa.int8())])) == ['{"é":1}', "null"]
    sliced = pa.array([["cut"], ["a", "b"], None, ["c"]], pa.list_(pa.string())).slice(1, 2)
    assert texts(sliced).to_pylist() == ['["a","b"]', "null"]
    assert texts(pa.array(["cut \n", "a"]).slice(1)).to_pylist() == ['"a"']
    assert texts(pa.array([], pa.list_(pa.string()))).to_pylist() == []


@pytest.mark.usefixtures("spark")  # which parses types
def test_types_that_workers_cannot_write() -> None:
    nested = "known map<string, int>", "some array<struct<at: timestamp>>"
    for columns in ("at timestamp", "day date", "raw binary", *nested):
        assert writer(Json(""), struct_type(columns, "columns")) is None
    keys = "a string, b struct<yes: boolean, n: bigint>", "price double", "id int, price decimal(5, 2)"
    exact = [writer(Json(""), struct_type(key, "key"), exact=True) is not None for key in keys]
    assert exact == [True, False, False]


def test_fields_of_results_that_are_one_row_each() -> None:
    row = pa.schema([("id", pa.string()), ("s", pa.struct([("a", pa.string()), ("b", pa.int64())])), ("n", pa.int64())])
    columns = [pa.array(["not the key", None]), pa.array([{"a": "x", "b": 1}, None], row.field("s").type), pa.array([5, None])]
    value = pc.if_else(pa.array([True, False]), RowCodec(row).encode(columns, 2), pa.scalar(None, BYTES))
    keys, nothing = pa.array([b"k", b"l"], BYTES), pa.array([b"", b""], BYTES)
    made = table(RESULT, keys, np.zeros(2, np.int8), value, nothing, np.zeros(2, np.int64))
    unpack = UnpackResults(pa.schema([("id", pa.string())]), (row,), ())
    found = unpack.fields(made, (("n",), ("id",), ("s", "a"), ("id",)))
    assert [column.to_pylist() for column in found] == [[5, None], ["k", "l"], ["x", None], ["k", "l"]]


ORDER, CUSTOMER = "n bigint, customer string, whole string", "name string, tags array<string>"


def by_hand(spark: SparkSession, folder: Path, key: str) -> TablePlan:
    """A left join that has ``results`` for its results, without a stream."""
    about: Any = {"version": "v", "deleted": "gone", "format": "json"}
    tables = []
    for name, own, row in ("orders", key, ORDER), ("customers", "cid string", CUSTOMER):
        (folder / name).mkdir(parents=True)
        keys, schema = struct_type(own, "key").names, f"{own}, {row}, v bigint, gone boolean"
        tables.append(Table.from_files(spark, folder / name, key=keys, schema=schema, **about))
    plan = fk_join(*tables, "customer", how="left")._plan
    assert plan.packed is not None
    unpack = plan.packed.unpack
    envelopes = [(0, pack(results(unpack, part)), None, 0) for part in (0, 1)]
    others = (0, None, "dead-letters", 3), (0, b"", None, 0)
    read = Given(spark.createDataFrame([*envelopes, *others], ENVELOPE))
    return replace(plan, rows=rows_of(read, unpack), packed=Packed(read, unpack))


def by_spark(table: TablePlan, sink: Kafka, roots: RootsOf | None) -> list[Any]:
    place = [] if roots is None else [on_arrow(roots, StringType(), F.col(VERSION)).alias(POSITIONS)]
    changes = table.on_spark(table.changes_with(*place))
    return sink._records(table.results, changes).collect()


def by_workers(table: TablePlan, sink: Kafka) -> list[Any] | None:
    make = sink._packed(table)
    return None if make is None else make(table.frame).collect()


def results(unpack: UnpackResults, part: int) -> pa.Table:
    """Inserts, updates and deletes of rows with and without a right row."""
    rng, rows = random.Random(part), 40

    def columns(schema: pa.Schema, nulls: float) -> list[pa.Array]:
        return [typed(rng, field.type, rows, nulls) for field in schema]

    keys = KeyCodec(unpack.key).encode(columns(unpack.key, 0.0), rows)
    left, right = (RowCodec(side).encode(columns(side, 0.3), rows) for side in unpack.rows)
    seen = np.array([rng.random() < 0.7 for _ in range(rows)])
    operation = np.array([rng.randrange(3) for _ in range(rows)], np.int8)
    offsets = np.arange(rows, dtype=np.int64)
    sources = [versions.identity(name)[:4] + b"\0\0\0\2" for name in ("orders", "customers")]
    ours, theirs = (versions.encode(source, [offsets]) for source in sources)
    absent = pa.scalar(versions.absent(1), BYTES)
    version = concat(ours, pc.if_else(pa.array(seen), theirs, absent))
    answers = table(ANSWER, keys, version, left, masked(right, seen), offsets)
    value = masked(column(join_rows(answers, "left"), "value"), operation != Operation.DELETE)
    return table(RESULT, keys, operation, value, version, offsets)


def typed(rng: random.Random, kind: pa.DataType, rows: int, nulls: float) -> pa.Array:
    choices: list[Any] = [*range(100)]
    if pa.types.is_list(kind):
        choices = [[text] * count for text in TEXTS for count in range(3)]
    elif pa.types.is_string(kind):
        choices = [f"{text}{number}" for text in TEXTS for number in range(10)]
    weights = [nulls, *[(1 - nulls) / len(choices)] * len(choices)]
    return pa.array(rng.choices([None, *choices], weights, k=rows), kind)


CONCAT = "concat('{\"order\":', left.whole, ',\"customer\":', right.name, '}')"


def require_same(table: TablePlan, key: Any, value: Any, monkeypatch: pytest.MonkeyPatch, *, positions: bool = False) -> None:
    """Require that workers make the records that Spark's expressions make."""
    roots = RootsOf.topics(2, ["orders"]) if positions else None
    monkeypatch.setattr("fkjoin.sinks.kafka._roots", lambda _: roots)
    sink = Kafka("joined", "nowhere:1", key, value, positions=positions)
    expected, result = by_spark(table, sink, roots), by_workers(table, sink)
    assert result is not None
    assert len(result) == len(expected) == 80
    assert len({row.value is None for row in result}) == 2
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.asDict() == theirs.asDict()
    if positions:
        assert {json.loads(row.headers[0].value)[0][0]["topic"] for row in result} == {"orders"}


def test_workers_make_the_records_that_sparks_expressions_make(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes what they cannot: Java spells doubles in its own way, and keys stay byte by byte what they were."""
    small(spark, tmp_path)
    texts = by_hand(spark, tmp_path / "texts", "id string")
    require_same(texts, None, None, monkeypatch, positions=True)
    require_same(texts, "string", CONCAT, monkeypatch)
    require_same(texts, Json(""), F.concat(F.lit("<"), F.col("id"), F.col("left.whole")), monkeypatch)
    require_same(texts, "bytes", "LEFT.Whole || concat(id, concat('', id), 'only this') as it", monkeypatch)
    require_same(by_hand(spark, tmp_path / "both", 'id bigint, `a "pa\trt"` string'), None, None, monkeypatch)
    registry = Registry("json", "a int", "http://nowhere")
    others = "concat('n', left.n)", "concat(id, null)", "concat(array(id), array(id))"
    for value in ("upper(left.whole)", "concat(_operation, id)", "nothing.such", *others, registry):
        assert by_workers(texts, Kafka("joined", "nowhere:1", value=value)) is None
    doubles = by_hand(spark, tmp_path / "doubles", "id string, price double")
    assert by_workers(doubles, Kafka("joined", "nowhere:1")) is None
