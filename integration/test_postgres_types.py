"""Values in PostgreSQL: they are read back as they were, or the target is refused before the first batch."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin import TopologyError
from fkjoin.errors import FkJoinError
from fkjoin.sinks import postgres_types
from fkjoin.sinks.postgres import Postgres
from fkjoin.spark.schemas import arrow_schema, spark_schema, struct_type
from integration.postgres import execute, select
from tests.support.batch_ids import batch_id
from tests.support.sampling import examples
from tests.support.sink_rows import QUICK, TEXTS, Rows, differences, frame, read_json, without_nul

pytestmark = pytest.mark.usefixtures("spark")  # types are parsed there

UTC = datetime.timezone.utc
FIRST = -2_440_588
"""The first day that PostgreSQL has, in 4714 BC."""
TAKEN = Rows(
    texts=TEXTS.map(without_nul),
    times=(FIRST * 86_400_000_000, 9_222_000_000_000_000_000),  # of later ones, extract(epoch) is not exact
    days=(FIRST, 2_145_042_905),
    text_keys=True,
)


def made(dsn: str, types: str, schema: str | StructType, key: str = "id") -> Postgres:
    """A sink into ``shop.it`` of these types; without ``types`` it makes the table."""
    execute(dsn, "drop table if exists shop.it, shop.fkjoin_batches")
    if types:
        execute(dsn, f"create table shop.it ({types})")
    sink = Postgres("shop.it", dsn)
    sink.prepare(arrow_schema("schema", struct_type(schema, "schema")), tuple(key.split(", ")))
    return sink


def apply(sink: Postgres, rows: pa.Table, number: int = 0) -> None:
    sink.apply(batch_id(number), rows, rows.select(["id"]).slice(0, 0))


def read(dsn: str, spark: SparkSession, schema: pa.Schema) -> pa.Table:
    nested = [field for field in schema if pa.types.is_nested(field.type)]
    objects = ", ".join(f"'{field.name}', {field.name}" for field in [schema.field("id"), *nested])
    shown = [_counted(field) for field in schema if field not in nested]
    rows = select(dsn, f"select jsonb_build_object({objects})::text, {', '.join(shown)} from shop.it order by id")
    texts = spark.createDataFrame(pa.table({"data": pa.array([row[0].encode() for row in rows], pa.binary())}))
    found = read_json(texts, pa.schema([schema.field("id"), *nested])).sort_by("id")
    plain = [field for field in schema if field not in nested]
    for place, field in enumerate(plain):
        values = pa.array([row[1 + place] for row in rows], _number(field.type)).cast(field.type)
        found = found.set_column(0, field, values) if field.name == "id" else found.append_column(field, values)
    return found


def _counted(field: pa.Field) -> str:
    if pa.types.is_date(field.type):
        return f"{field.name} - date '1970-01-01'"
    if pa.types.is_time(field.type):
        return f"(extract(epoch from {field.name}) * 1000000000)::bigint"
    return f"(extract(epoch from {field.name}) * 1000000)::bigint" if pa.types.is_temporal(field.type) else field.name


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_temporal(kind) else kind


@pytest.mark.faults
@settings(QUICK, max_examples=examples(12))
@given(table=st.one_of(TAKEN.every_type(20), replace(TAKEN, below_zero=False).tables(8)))
def test_any_row_comes_back(spark: SparkSession, dsn: str, table: pa.Table) -> None:
    sink = made(dsn, "", spark_schema(table.schema))
    changes = frame(spark, table).withColumn("_operation", F.lit("insert"))
    apply(sink, sink.as_taken(changes).drop("_operation").toArrow())
    assert differences(read(dsn, spark, table.schema), table) == []


NARROWER = {
    "double": ["bigint", "real", "numeric(10, 2)"],
    "bigint": ["integer", "double precision", "numeric(18)"],
    "smallint": ["numeric(6, 2)"],
    "int": ["smallint", "real", "boolean"],
    "string": ["varchar(3)", "character(3)", "bigint", "shop.short", "name"],
    "decimal(9, 2)": ["numeric(5, 2)", "numeric(9, 1)", "bigint"],
    "decimal(16, 2)": ["double precision"],
    "decimal(19, 0)": ["bigint"],
    "timestamp": ["timestamp", "timestamptz(3)", "date"],
    "timestamp_ntz": ["timestamptz", "timestamp(0)"],
    "binary": ["jsonb"],
    "array<int>": ["integer[]"],
    "struct<a: int>": ["varchar(9)"],
    "interval day to second": ["bigint", "interval(3)"],
}

WIDER: dict[str, tuple[list[str], list[Any]]] = {
    "int": (["bigint", "double precision", "numeric(12, 2)", "text"], [-(2**31), 2**31 - 1]),
    "bigint": (["numeric", "numeric(19)"], [-(2**63), 2**63 - 1]),
    "float": (["double precision"], [0.10000000149011612, float("inf")]),
    "double": (["text", "numeric"], [0.1, 1.7976931348623157e308]),
    "decimal(9, 2)": (["numeric(12, 4)", "double precision"], [Decimal("9999999.99"), Decimal("-0.01")]),
    "decimal(4, 0)": (["smallint"], [Decimal(9999), Decimal(-9999)]),
    "string": (["varchar", "shop.filled"], ["abc", "x" * 300]),
    "date": (["timestamp"], [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp": (["timestamptz(6)"], [datetime.datetime(year, 12, 31, 23, 59, 59, 999999, UTC) for year in (1, 9999)]),
    "struct<a: int>": (["json"], ['{"a":1}', '{"a":null}']),
    "binary": (["text"], ["\\x00ff", "\\x"]),
    "interval day to second": (["interval"], [datetime.timedelta(days=1, microseconds=1), datetime.timedelta(-1)]),
}
"""Types of columns that take every value of the type, and values near its ends."""


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.parametrize("ours", NARROWER)
def test_a_narrower_type_is_refused_before_the_first_batch(dsn: str, ours: str) -> None:
    for theirs in NARROWER[ours]:
        with pytest.raises(FkJoinError, match=r"shop\.it does not match.* column x is .* cannot hold every .*: alter it"):
            made(dsn, f"id bigint primary key, x {theirs}", f"id bigint, x {ours}")


@pytest.mark.parametrize("ours", WIDER)
def test_a_wider_type_takes_every_value(dsn: str, ours: str) -> None:
    """The table's value, cast to the type that the sink would have made, is the value that was given."""
    types, given = WIDER[ours]
    schema = struct_type(f"x {ours}", "schema")
    kind = arrow_schema("schema", schema).field("x").type
    values = pa.array(given, pa.string() if pa.types.is_nested(kind) or pa.types.is_binary(kind) else kind)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "x": values})
    wanted = postgres_types.type_for("x", schema["x"].dataType)
    for theirs in types:
        apply(made(dsn, f"id bigint primary key, x {theirs}", f"id bigint, x {ours}"), rows)
        for key, value in enumerate(values.to_pylist(), 1):
            text = str(value).replace("'", "''")
            same = select(dsn, f"select x::{wanted} is not distinct from '{text}'::{wanted} from shop.it where id = {key}")
            assert same == [(True,)], (theirs, value)


REFUSED = [
    ("id bigint primary key", "id", 'column "n" does not exist. It needs the columns id, n and a primary key'),
    ("id bigint, n int", "id", r"no unique or exclusion constraint.* unique constraint of \(id\); or drop it"),
    ("id bigint primary key, n int, more text not null", "id", "more is text NOT NULL without a default"),
    ("id bigint, n int, unique (id, n), unique (id)", "id, n", r"\(id\) is unique, and the key is"),
    ("id bigint, n int, unique (id) deferrable", "id", r"makes \(id\) unique is deferrable"),
    ("id bigint generated always as identity primary key, n int", "id", "cannot insert a non-DEFAULT"),
]


def test_what_else_a_target_must_not_have(dsn: str) -> None:
    for existing, key, says in REFUSED:
        with pytest.raises(FkJoinError, match=says):
            made(dsn, existing, "id bigint, n int", key)
    with pytest.raises(FkJoinError, match="column id is jsonb, which cannot hold every string"):
        made(dsn, "id jsonb primary key, n int", "id string, n int")


def test_keys_that_a_collation_takes_for_equal_are_refused(dsn: str) -> None:
    collation = "create collation if not exists shop.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    execute(dsn, collation)
    existing = "id text collate shop.loose primary key, n text collate shop.loose"
    with pytest.raises(FkJoinError, match='different keys may be equal: alter it to text collate "C"'):
        made(dsn, existing, "id string, n string")
    execute(dsn, 'alter table shop.it alter id type text collate "C"')
    sink = Postgres("shop.it", dsn)
    sink.prepare(arrow_schema("schema", StructType.fromDDL("id string, n string")), ("id",))
    apply(sink, pa.table({"id": ["a", "A"], "n": ["x", "X"]}))
    assert sorted(select(dsn)) == [("A", "X"), ("a", "x")]


def test_further_columns_and_constraints_do_no_harm(dsn: str) -> None:
    for existing in (
        "id bigint primary key, n int, more text not null default ''",
        "id bigint primary key, n int, serial bigint generated always as identity",
        "id bigint primary key, n int, twice int generated always as (2 * n) stored",
        "id bigint unique, n int, unique (id, n)",
    ):
        apply(made(dsn, existing, "id bigint, n int"), pa.table({"id": [1], "n": [10]}))
        assert select(dsn, "select id, n from shop.it") == [(1, 10)]


@pytest.mark.parametrize(
    ("kind", "text", "shown", "none"),
    [
        ("uuid", UUID.upper(), UUID, "sad"),
        ("json", '{"b":2,  "a":1}', '{"b":2,  "a":1}', '{"a":'),
        ("jsonb", '{"b":2,  "a":1}', '{"a": 1, "b": 2}', '{"a":'),
        ("inet", "10.0.0.1/8", "10.0.0.1/8", "sad"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/8", "10.0.0.1/8"),
        ("macaddr", "08-00-2B-01-02-03", "08:00:2b:01:02:03", "sad"),
        ("shop.mood", "fine", "fine", "sad"),
    ],
)
def test_a_text_goes_where_postgres_reads_it(dsn: str, kind: str, text: str, shown: str, none: str) -> None:
    sink = made(dsn, f"id bigint primary key, x {kind}", "id bigint, x string")
    apply(sink, pa.table({"id": [1, 2], "x": [text, None]}))
    with pytest.raises(FkJoinError, match=r"a row cannot be in table shop\.it: id = 3, column x = "):
        sink.apply(batch_id(1), pa.table({"id": [2, 3], "x": [text, none]}), pa.table({"id": [1]}))
    assert select(dsn, "select id, x::text from shop.it order by id") == [(1, shown), (2, None)]


@pytest.mark.parametrize(("kind", "key"), [("uuid", UUID), ("shop.mood", "fine")])
def test_a_text_is_a_key_there(dsn: str, kind: str, key: str) -> None:
    sink = made(dsn, f"id {kind} primary key, n int", "id string, n int")
    ids = pa.table({"id": [key]})
    for batch in range(2):
        apply(sink, ids.append_column("n", [[batch]]), batch)
        assert select(dsn, "select id::text, n from shop.it") == [(key, batch)]
    sink.apply(batch_id(2), ids.append_column("n", [[2]]).slice(1), ids)
    assert select(dsn, "select * from shop.it") == []


def test_a_type_without_a_counterpart_is_refused_when_the_table_is_built(dsn: str) -> None:
    texts = "keys of a JSON object are texts"
    for ours, says in (("map<int, string>", texts), ("variant", "no type of PostgreSQL stores")):
        with pytest.raises(TopologyError, match=f"to_postgres: column v is .*{says}"):
            made(dsn, "", f"id bigint, v {ours}")
    made(dsn, "", "id bigint, v string")
