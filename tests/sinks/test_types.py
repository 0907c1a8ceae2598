"""Values in sinks: they are read back as they were, or refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table
from fkjoin.codec.json_write import writable
from fkjoin.errors import TopologyError
from fkjoin.kafka.formats import Json, reader, writer
from fkjoin.spark.schemas import spark_schema, struct_type
from tests.support.sessions import SPARK_4_0, SPARK_4_1
from tests.support.sink_rows import QUICK, Rows, differences, frame, read_json

pytestmark = pytest.mark.spark


def readable(kind: pa.DataType) -> bool:
    """Tell whether JSON has values of the type: text, truth, whole or floating numbers, structs and lists of them."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len(names) == len(set(names)) > 0 and all(readable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return readable(kind.value_type)
    types = pa.types
    tests = types.is_string, types.is_boolean, types.is_signed_integer, types.is_float64
    return any(test(kind) for test in tests)


def json_of(rows: DataFrame) -> DataFrame:
    """The rows' JSON, as bytes in ``data``."""
    return rows.select(Json("").encode(F.struct(*rows.columns), rows.schema).alias("data"))


def taken(table: pa.Table, takes: Callable[[pa.DataType], bool]) -> pa.Table:
    """The columns whose types are taken, nested ones too."""
    return table.select([field.name for field in table.schema if takes(field.type)])


def by_workers(table: pa.Table) -> pa.Array:
    write = writer(Json(""), spark_schema(table.schema))
    assert write is not None
    return write([column.combine_chunks() for column in table.columns]).cast(pa.string()).cast(pa.binary())


def _beyond(kind: pa.DataType) -> bool:
    """Tell whether this Spark cannot take all values of the type through its expressions (docs/versions.md)."""
    return (SPARK_4_0 and pa.types.is_duration(kind)) or (SPARK_4_1 and pa.types.is_time(kind))


ANY_JSON = Rows(text_keys=True, takes=lambda kind: not _beyond(kind))


@QUICK
@given(table=st.one_of(ANY_JSON.tables(8), ANY_JSON.every_type(20)))
def test_any_row_comes_back_from_a_topics_json(spark: SparkSession, table: pa.Table) -> None:
    assert differences(read_json(json_of(frame(spark, table)), table.schema), table) == []


@QUICK
@given(table=st.one_of(Rows(takes=writable).tables(8), Rows(takes=writable).every_type(20)))
def test_any_row_that_workers_write_comes_back_from_sparks_reader(spark: SparkSession, table: pa.Table) -> None:
    table = taken(table, writable)
    data = spark.createDataFrame(pa.table({"data": by_workers(table)}))
    assert differences(read_json(data, table.schema), table) == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_without_microseconds_keep_the_bytes_that_they_had(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        seconds = [0, -1, 1_767_323_045, 253_402_300_800, -62_198_755_200, -5_000_000_000, 1_792_890_000]
        moments = [(1000 * second + more,) for second in seconds for more in (0, 1, 120, 999)]
        times = spark.createDataFrame(moments, "ms bigint").selectExpr(
            "timestamp_millis(ms) as at",
            "cast(timestamp_millis(ms) as timestamp_ntz) as `local`",
            "array(named_struct('at', timestamp_millis(ms))) as list",
            "map('a', timestamp_millis(ms)) as map",
        )
        plain = times.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).cast("binary").alias("data"))
        assert json_of(times).collect() == plain.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_microseconds_have_six_digits_in_a_key_so_that_two_rows_are_two(spark: SparkSession) -> None:
    times = spark.sql("select timestamp_micros(v) as at from values (1000001), (1000010), (1000000) as t(v)")
    assert [bytes(row.data).decode() for row in json_of(times).collect()] == [
        '{"at":"1970-01-01T00:00:01.000001Z"}',
        '{"at":"1970-01-01T00:00:01.000010Z"}',
        '{"at":"1970-01-01T00:00:01.000Z"}',
    ]


@given(table=Rows(takes=readable).tables(8))
def test_any_row_that_workers_write_comes_back_from_their_reader(table: pa.Table) -> None:
    table = taken(table, readable)
    read = reader(Json(spark_schema(table.schema)))
    assert read is not None
    found = read(by_workers(table))
    assert found.problem.null_count == len(table)
    assert differences(pa.table(found.rows.flatten(), table.column_names), table) == []


ENTRIES = "id int, m array<struct<key: int, value: string>>"
REFUSED = {
    "id int, m map<int, string>": (r"m is map<int,string>, .* write map_entries\(m\)", ENTRIES),
    "a array<map<date, int>>": (r"a\[\] is map<date,int>", "a array<map<string, int>>"),
    "m map<string, variant>": (r"m\.value is variant, .*: cast it to text", "m map<string, string>"),
}


def test_what_would_not_come_back_from_json_is_refused() -> None:
    for schema, (says, way_out) in REFUSED.items():
        with pytest.raises(TopologyError, match=f"Json: column {says}"):
            Json("").encode(F.col("row"), struct_type(schema, "row"))
        Json("").encode(F.col("row"), struct_type(way_out, "row"))


def test_a_table_is_refused_before_its_topic_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    schema = "id string, v bigint, names array<struct<of: map<string, string>, at: timestamp>>"
    table = Table.from_files(spark, tmp_path / "rows", key="id", version="v", schema=schema, format="json")
    by_number = table.map_values("map(1, id) as names")
    with pytest.raises(TopologyError, match="Json: column names is map<int,string>, and the keys of a JSON object are texts"):
        by_number.to_kafka("names", "nowhere:1", checkpoint=tmp_path / "ck")
