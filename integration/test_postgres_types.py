"""Values in PostgreSQL: they are read back as they were, or the target is refused before the first batch."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin import TopologyError
from fkjoin.errors import FkJoinError
from fkjoin.sinks import postgres_types
from fkjoin.sinks.postgres import Postgres
from fkjoin.spark.schemas import arrow_schema, spark_schema, struct_type
from integration.postgres import select
from tests.support.batch_ids import batch_id
from tests.support.sink_rows import QUICK, TEXTS, Rows, differences, frame, read_json, without_nul

pytestmark = pytest.mark.usefixtures("spark")  # types are parsed there

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
    with psycopg.connect(dsn) as connection:
        connection.execute("drop table if exists shop.it, shop.fkjoin_batches")
        if types:
            connection.execute(f"create table shop.it ({types})")  # type: ignore[call-overload]
    sink = Postgres("shop.it", dsn)
    sink.prepare(arrow_schema("schema", struct_type(schema, "schema")), tuple(key.split(", ")))
    return sink


def write(sink: Postgres, spark: SparkSession, table: pa.Table) -> None:
    changes = frame(spark, table).withColumn("_operation", F.lit("insert"))
    rows = sink.as_taken(changes).drop("_operation").toArrow()
    sink.apply(batch_id(0), rows, rows.select(["id"]).slice(0, 0))


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


@QUICK
@given(table=st.one_of(TAKEN.every_type(20), replace(TAKEN, below_zero=False).tables(8)))
def test_any_row_comes_back(spark: SparkSession, dsn: str, table: pa.Table) -> None:
    sink = made(dsn, "", spark_schema(table.schema))
    write(sink, spark, table)
    assert differences(read(dsn, spark, table.schema), table) == []


NARROWER = [
    ("double", "bigint"),
    ("double", "real"),
    ("double", "numeric(10, 2)"),
    ("float", "integer"),
    ("bigint", "integer"),
    ("bigint", "double precision"),
    ("bigint", "numeric(18)"),
    ("int", "smallint"),
    ("int", "real"),
    ("smallint", "numeric(6, 2)"),
    ("string", "varchar(3)"),
    ("string", "character(3)"),
    ("string", "bigint"),
    ("string", "shop.code"),
    ("string", "name"),
    ("decimal(9, 2)", "numeric(5, 2)"),
    ("decimal(9, 2)", "numeric(9, 1)"),
    ("decimal(9, 2)", "bigint"),
    ("decimal(16, 2)", "double precision"),
    ("decimal(19, 0)", "bigint"),
    ("timestamp", "timestamp"),
    ("timestamp", "timestamptz(3)"),
    ("timestamp", "date"),
    ("timestamp_ntz", "timestamptz"),
    ("timestamp_ntz", "timestamp(0)"),
    ("date", "timestamptz"),
    ("boolean", "smallint"),
    ("int", "boolean"),
    ("binary", "jsonb"),
    ("array<int>", "integer[]"),
    ("struct<a: int>", "varchar(9)"),
    ("interval day to second", "bigint"),
    ("interval day to second", "interval(3)"),
]

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

WIDER = [
    ("int", "bigint"),
    ("tinyint", "smallint"),
    ("smallint", "real"),
    ("int", "double precision"),
    ("bigint", "numeric"),
    ("bigint", "numeric(19)"),
    ("int", "numeric(12, 2)"),
    ("int", "text"),
    ("double", "text"),
    ("double", "numeric"),
    ("float", "double precision"),
    ("decimal(9, 2)", "numeric(12, 4)"),
    ("decimal(9, 2)", "double precision"),
    ("decimal(4, 0)", "smallint"),
    ("string", "varchar"),
    ("string", "shop.word"),
    ("date", "timestamp"),
    ("timestamp", "timestamptz(6)"),
    ("struct<a: int>", "json"),
    ("map<string, int>", "text"),
    ("boolean", "text"),
    ("binary", "text"),
    ("interval day to second", "interval"),
]


@pytest.fixture
def kinds(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        connection.execute("create type shop.mood as enum ('fine')")
        connection.execute("create domain shop.code as varchar(3)")
        connection.execute("create domain shop.word as text check (value <> '')")
    return dsn


@pytest.mark.parametrize(("ours", "theirs"), NARROWER)
def test_a_narrower_type_is_refused_before_the_first_batch(kinds: str, ours: str, theirs: str) -> None:
    with pytest.raises(FkJoinError, match=r"shop\.it cannot be kept.* column x is .* cannot hold every .*: alter it"):
        made(kinds, f"id bigint primary key, x {theirs}", f"id bigint, x {ours}")


def test_the_refusal_names_each_column_and_both_types(dsn: str) -> None:
    with pytest.raises(FkJoinError) as caught:
        made(dsn, "id bigint primary key, n bigint, at timestamp", "id bigint, n double, at timestamp")
    assert str(caught.value) == (
        "table shop.it cannot be kept as fkjoin's table is: column n is bigint, which cannot hold every double: alter it to "
        "double precision, or cast the table's column; column at is timestamp without time zone, which cannot hold every "
        "timestamp: alter it to timestamptz, or cast the table's column"
    )
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table shop.it alter n type double precision, alter at type timestamptz")
    sink = Postgres("shop.it", dsn)
    sink.prepare(arrow_schema("schema", struct_type("id bigint, n double, at timestamp", "schema")), ("id",))
    made(dsn, "id bigint primary key, n bigint", "id bigint, n bigint")
    made(dsn, "", "id bigint, n double, at timestamp")


VALUES: dict[str, list[Any]] = {
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [0.10000000149011612, float("inf")],
    "double": [0.1, 1.7976931348623157e308],
    "decimal(9, 2)": [Decimal("9999999.99"), Decimal("-0.01")],
    "decimal(4, 0)": [Decimal(9999), Decimal(-9999)],
    "string": ["abc", "x" * 300],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    "timestamp": [
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc),
    ],
    "struct<a: int>": ['{"a":1}', '{"a":null}'],
    "map<string, int>": ['{"a":1}', "{}"],
    "boolean": [True, False],
    "binary": ["\\x00ff", "\\x"],
    "interval day to second": [datetime.timedelta(days=1, microseconds=1), datetime.timedelta(-1)],
}


@pytest.mark.parametrize(("ours", "theirs"), WIDER)
def test_a_wider_type_takes_every_value(kinds: str, ours: str, theirs: str) -> None:
    """The table's value, cast to the type that the sink would have made, is the value that was given."""
    sink = made(kinds, f"id bigint primary key, x {theirs}", f"id bigint, x {ours}")
    schema = struct_type(f"x {ours}", "schema")
    kind = arrow_schema("schema", schema).field("x").type
    values = pa.array(VALUES[ours], pa.string() if pa.types.is_nested(kind) or pa.types.is_binary(kind) else kind)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "x": values})
    sink.apply(batch_id(0), rows, rows.select(["id"]).slice(0, 0))
    wanted = postgres_types.type_for("x", schema["x"].dataType)
    with psycopg.connect(kinds) as connection:
        found = connection.execute(f"select x::{wanted} from shop.it order by id").fetchall()  # type: ignore[call-overload]
        expected = [connection.execute(f"select %s::text::{wanted}", (str(value),)).fetchone() for value in values.to_pylist()]  # type: ignore[call-overload]
    assert found == expected


@pytest.mark.parametrize(
    ("existing", "schema", "key", "says"),
    [
        (
            "id bigint primary key, n int, more text not null",
            "id bigint, n int",
            "id",
            "more is text NOT NULL without a default",
        ),
        (
            "id bigint, part int, unique (id, part), unique (id)",
            "id bigint, part int",
            "id, part",
            r"\(id\) is unique, and the key is",
        ),
        ("id citext primary key", "id string", "id", "column id is citext, which cannot hold every string"),
        ("id jsonb primary key", "id string", "id", "column id is jsonb, which cannot hold every string"),
        ("id bigint, n int, unique (id) deferrable", "id bigint, n int", "id", r"makes \(id\) unique is deferrable"),
        ("id bigint generated always as identity primary key, n int", "id bigint, n int", "id", "cannot insert a non-DEFAULT"),
    ],
)
def test_what_else_a_target_must_not_have(dsn: str, existing: str, schema: str, key: str, says: str) -> None:
    if "citext" in existing:
        with psycopg.connect(dsn) as connection:
            try:
                connection.execute("create extension if not exists citext")
            except psycopg.Error:
                pytest.skip("this server has no citext")
    with pytest.raises(FkJoinError, match=says):
        made(dsn, existing, schema, key)


@pytest.mark.parametrize(
    "existing",
    [
        "id bigint primary key, n int, more text not null default ''",
        "id bigint primary key, n int, serial bigint generated always as identity",
        "id bigint primary key, n int, twice int generated always as (2 * n) stored",
        "id bigint unique, n int, unique (id, n)",
    ],
)
def test_further_columns_and_constraints_that_do_no_harm(dsn: str, existing: str) -> None:
    made(dsn, existing, "id bigint, n int")


@pytest.mark.parametrize(
    ("required", "says"),
    [
        ("n int not null", 'null value in column "n" of relation "it" violates not-null constraint;'),
        ("n shop.counted", "domain shop.counted does not allow null values;"),
    ],
)
def test_a_null_where_the_target_takes_none_stops_the_batch(dsn: str, required: str, says: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create domain shop.counted as int not null")
    sink = made(dsn, f"id bigint primary key, {required}", "id bigint, n int")
    sink.apply(batch_id(0), pa.table({"id": [1, 2], "n": [10, 20]}), pa.table({"id": pa.array([], pa.int64())}))
    with pytest.raises(FkJoinError, match=f"a row cannot be in table shop.it: id = 3, column n = None: {says}"):
        sink.apply(batch_id(1), pa.table({"id": [2, 3], "n": pa.array([21, None], pa.int64())}), pa.table({"id": [1]}))
    assert select(dsn, "select * from shop.it order by id") == [(1, 10), (2, 20)]
    sink.apply(batch_id(1), pa.table({"id": [2, 3], "n": [21, 30]}), pa.table({"id": [1]}))
    assert select(dsn, "select * from shop.it order by id") == [(2, 21), (3, 30)]


@pytest.mark.parametrize(
    ("kind", "text", "shown", "none"),
    [
        ("uuid", UUID.upper(), UUID, "sad"),
        ("json", '{"b":2,  "a":1}', '{"b":2,  "a":1}', '{"a":'),
        ("json", "[]", "[]", "[" * 100_000),
        ("jsonb", '{"b":2,  "a":1}', '{"a": 1, "b": 2}', '{"a":'),
        ("inet", "10.0.0.1/8", "10.0.0.1/8", "sad"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/8", "10.0.0.1/8"),
        ("macaddr", "08-00-2B-01-02-03", "08:00:2b:01:02:03", "sad"),
        ("shop.mood", "fine", "fine", "sad"),
    ],
)
def test_a_text_goes_where_postgres_reads_it_and_stops_the_batch_where_it_cannot(
    kinds: str, kind: str, text: str, shown: str, none: str
) -> None:
    sink = made(kinds, f"id bigint primary key, x {kind}", "id bigint, x string")
    sink.apply(batch_id(0), pa.table({"id": [1, 2], "x": [text, None]}), pa.table({"id": pa.array([], pa.int64())}))
    with pytest.raises(FkJoinError, match=r"a row cannot be in table shop\.it: id = 3, column x = "):
        sink.apply(batch_id(1), pa.table({"id": [2, 3], "x": [text, none]}), pa.table({"id": [1]}))
    assert select(kinds, "select id, x::text from shop.it order by id") == [(1, shown), (2, None)]
    sink.apply(batch_id(1), pa.table({"id": [2], "x": [text]}), pa.table({"id": [1]}))
    assert select(kinds, "select id, x::text from shop.it") == [(2, shown)]


@pytest.mark.parametrize(("kind", "key"), [("uuid", UUID), ("shop.mood", "fine")])
def test_a_text_is_a_key_there(kinds: str, kind: str, key: str) -> None:
    sink = made(kinds, f"id {kind} primary key, n int", "id string, n int")
    ids = pa.table({"id": [key]})
    for batch in range(2):
        sink.apply(batch_id(batch), ids.append_column("n", [[batch]]), ids.slice(1))
        assert select(kinds, "select id::text, n from shop.it") == [(key, batch)]
    sink.apply(batch_id(2), ids.append_column("n", [[2]]).slice(1), ids)
    assert select(kinds, "select * from shop.it") == []


def test_a_type_without_a_counterpart_is_refused_when_the_table_is_built(dsn: str) -> None:
    with pytest.raises(
        TopologyError, match=r"to_postgres: column m is map<int,string>, and the keys of a JSON object are texts"
    ):
        made(dsn, "", "id bigint, m map<int, string>")
    with pytest.raises(TopologyError, match=r"to_postgres: column v is variant, which no type there gives back"):
        made(dsn, "", "id bigint, v variant")
    made(dsn, "", "id bigint, v string")


def test_a_value_that_postgres_does_not_have_is_named(dsn: str) -> None:
    sink = made(dsn, "", "id bigint, name string, day date")
    for name, day, says in (
        ("a\0", 0, r"id = 7, column name = 'a\\x00': no text of"),
        ("a", -(2**31), 'id = 7, column day = .5877642-06-23 BC.: date out of range: "5877642-06-23 BC"'),
    ):
        rows = pa.table({"id": [7], "name": [name], "day": pa.array([day], pa.int32()).cast(pa.date32())})
        with pytest.raises(FkJoinError, match=f"a row cannot be in table shop.it: {says}"):
            sink.apply(batch_id(0), rows, rows.select(["id"]).slice(0, 0))
