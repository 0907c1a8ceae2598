"""Values in sinks: they are read back as they were, or refused before anything runs.

Those of topics, of Parquet files and of Delta tables, of which one with narrower types is refused.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, VariantType

from fkjoin import Table
from fkjoin.codec.json_write import writable
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka.formats import Json, reader, writer
from fkjoin.sinks import column_types
from fkjoin.sinks.delta import Delta
from fkjoin.spark.kinds import TIMES_OF_DAY
from fkjoin.spark.parquet import WriteFile
from fkjoin.spark.schemas import arrow_schema, spark_schema, struct_type
from tests.support.batch_ids import batch_id
from tests.support.sampling import examples
from tests.support.sessions import SPARK_4_0, SPARK_4_1
from tests.support.sink_rows import DAYS, QUICK, Rows, differences, frame, read_json


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


@pytest.mark.usefixtures("berlin")
def test_times_have_the_digits_that_they_had_and_six_with_microseconds(spark: SparkSession) -> None:
    """Two keys that differ in microseconds are two."""
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
    micros = spark.sql("select timestamp_micros(v) as at from values (1000001), (1000010) as t(v)")
    texts = [json.loads(row.data)["at"] for row in json_of(micros).collect()]
    assert texts == ["1970-01-01T01:00:01.000001+01:00", "1970-01-01T01:00:01.000010+01:00"]


@pytest.mark.spark
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


@pytest.mark.spark
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


def without_intervals(kind: pa.DataType) -> bool:
    return not (pa.types.is_duration(kind) or pa.types.is_time(kind))


IN_DELTA = Rows(days=DAYS, takes=without_intervals)


def overlooked(kind: pa.DataType) -> bool:
    """Tell whether a map has a time without zone, since the package makes no such table."""
    return "map<" in str(kind) and "timestamp[us]" in str(kind)


IN_PARQUET = Rows(takes=lambda kind: not pa.types.is_time(kind))


def delta(path: Path, schema: pa.Schema, *key: str) -> Delta:
    sink = Delta(path)
    sink.prepare(schema, key or ("id",))
    return sink


def gone(rows: pa.Table) -> pa.Table:
    return rows.select(["id"]).slice(0, 0)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(table=st.one_of(IN_DELTA.tables(8), IN_DELTA.every_type(20)))
def test_any_row_comes_back_from_a_delta_table(tmp_path: Path, table: pa.Table) -> None:
    shutil.rmtree(tmp_path / "delta", ignore_errors=True)
    table = table.select([field.name for field in table.schema if not overlooked(field.type)])
    sink = delta(tmp_path / "delta", table.schema)
    for batch in range(2):
        sink.apply(batch_id(batch), table, gone(table))
        assert differences(DeltaTable(tmp_path / "delta").to_pyarrow_table(), table) == []


@QUICK
@given(table=st.one_of(IN_PARQUET.tables(8), IN_PARQUET.every_type(20)))
def test_any_row_comes_back_from_parquet_files(spark: SparkSession, tmp_path: Path, table: pa.Table) -> None:
    about = spark_schema(table.schema).json().encode()
    ((file,),) = (written["file"].to_pylist() for written in WriteFile(str(tmp_path), None, about)(iter(table.to_batches())))
    found = spark.read.parquet(str(tmp_path / file))
    assert found.schema.simpleString() == spark_schema(table.schema).simpleString()
    assert differences(found.toArrow(), table) == []


def test_a_full_disk_is_named_by_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkjoin.spark.parquet.uuid.uuid4", lambda: SimpleNamespace(hex="1"))
    (tmp_path / "part-1.parquet").symlink_to("/dev/full")
    with pytest.raises(FkJoinError, match=f"^sink parquet {tmp_path}: .*No space left on device"):
        list(WriteFile(str(tmp_path), None, b"{}")(iter([pa.record_batch({"n": [1]})])))


TEXT, FLOAT, DOUBLE = pa.string(), pa.float32(), pa.float64()
INSTANT, CLOCK = pa.timestamp("us", "UTC"), pa.timestamp("us")
CENTS, FINE, WHOLE = pa.decimal128(9, 2), pa.decimal128(12, 4), pa.decimal128(19, 0)
SHORT, SIXTEEN, EIGHTEEN = pa.int16(), pa.decimal128(16, 2), pa.decimal128(18, 0)
WIDER: dict[pa.DataType, tuple[Any, set[pa.DataType]]] = {
    pa.bool_(): (True, {TEXT}),
    pa.int8(): (-128, {SHORT, pa.int32(), pa.int64(), FLOAT, DOUBLE, CENTS, FINE, SIXTEEN, EIGHTEEN, WHOLE, TEXT}),
    SHORT: (-(2**15), {pa.int32(), pa.int64(), FLOAT, DOUBLE, CENTS, FINE, SIXTEEN, EIGHTEEN, WHOLE, TEXT}),
    pa.int32(): (2**31 - 1, {pa.int64(), DOUBLE, SIXTEEN, EIGHTEEN, WHOLE, TEXT}),
    pa.int64(): (-(2**63), {WHOLE, TEXT}),
    FLOAT: (0.5, {DOUBLE, TEXT}),
    DOUBLE: (0.1, {TEXT}),
    CENTS: (Decimal("9999999.99"), {FINE, SIXTEEN, DOUBLE, TEXT}),
    SIXTEEN: (Decimal("99999999999999.99"), {TEXT}),
    EIGHTEEN: (Decimal(10**18 - 1), {WHOLE, TEXT}),
    FINE: (Decimal("99999999.9999"), {DOUBLE, TEXT}),
    WHOLE: (Decimal(10**19 - 1), {TEXT}),
    TEXT: ("a", set()),
    pa.binary(): (b"a", set()),
    pa.date32(): (datetime.date(2026, 3, 1), {CLOCK, TEXT}),
    INSTANT: (datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc), set()),
    CLOCK: (datetime.datetime(2026, 3, 1), set()),
}
"""Types, each with one of its values, and the types of a target that have all of them."""


@pytest.mark.parametrize("ours", WIDER, ids=str)
def test_a_column_fits_into_the_types_that_have_all_of_its_values(ours: pa.DataType) -> None:
    value, wider = WIDER[ours]
    rows = pa.table({"x": pa.array([value, None], ours)})
    for theirs in WIDER:
        pairs = [
            (ours, theirs),
            (pa.struct([("a", ours)]), pa.struct([("a", theirs)])),
            (pa.list_(ours), pa.list_(theirs)),
            (pa.map_(ours, TEXT), pa.map_(theirs, TEXT)),
            (pa.map_(TEXT, ours), pa.map_(TEXT, theirs)),
        ]
        wanted = theirs in {ours, *wider}
        assert [column_types.fits(*pair) for pair in pairs] == [wanted] * len(pairs), theirs
        if not wanted:
            continue
        fitting = column_types.fitting("it", rows, pa.schema([("x", theirs)]), ())
        assert fitting.schema.field("x").type == theirs
        if theirs == TEXT:
            assert fitting["x"].to_pylist()[0].lower() == str(value).lower()
        else:
            assert fitting.cast(rows.schema).equals(rows)


def test_a_struct_fits_into_no_other_struct_and_into_no_text() -> None:
    number = pa.field("a", pa.int32())
    for theirs in (pa.struct([number.with_name("b")]), pa.struct([number.with_nullable(False)]), TEXT):
        assert not column_types.fits(pa.struct([number]), theirs)


def test_a_null_where_the_target_takes_none_stops_the_batch(tmp_path: Path) -> None:
    required = pa.field("x", pa.int64(), nullable=False)
    DeltaTable.create(tmp_path, pa.schema([("id", pa.int64()), required]))
    first = pa.table({"id": [1, 2], "x": [10, 20]})
    with pytest.raises(FkJoinError, match="column x is bigint NOT NULL, and .* no such column"):
        delta(tmp_path, first.schema.remove(1))
    sink = delta(tmp_path, first.schema)
    sink.apply(batch_id(0), first, gone(first))
    with pytest.raises(FkJoinError) as caught:
        sink.apply(batch_id(1), pa.table({"id": [2, 3], "x": pa.array([21, None], pa.int64())}), pa.table({"id": [1]}))
    says = "column x is NOT NULL there, and null in the row with id = 3."
    assert str(caught.value).startswith(f"a row cannot be in Delta table {tmp_path}: {says}")
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pydict() == first.to_pydict()
    sink.apply(batch_id(1), pa.table({"id": [2, 3], "x": [21, 30]}), pa.table({"id": [1]}))
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pydict() == {"id": [2, 3], "x": [21, 30]}


def test_a_key_that_takes_no_nulls_is_as_it_should_be(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())]))
    rows = pa.table({"id": pa.array([1, 2]), "x": pa.array([1, None])})
    sink = delta(tmp_path, rows.schema)
    sink.apply(batch_id(0), rows, gone(rows))
    sink.apply(batch_id(1), rows.slice(0, 0), rows.select(["id"]).slice(1))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"id": 1, "x": 1}]


DAY = pa.array([2_932_897], pa.int32()).cast(pa.date32())
LATE = {
    "a date": DAY,
    "a list": pa.ListArray.from_arrays([0, 1], DAY),
    "a struct": pa.StructArray.from_arrays([DAY], ["d"]),
}


@pytest.mark.parametrize("kind", LATE)
def test_a_date_that_delta_cannot_have_is_refused_in_time(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"id": [1], "x": LATE[kind]})
    sink = delta(tmp_path, rows.schema)
    with pytest.raises(FkJoinError, match="x has a date outside of the years 1 to 9999, which Delta tables cannot store"):
        sink.apply(batch_id(0), rows, gone(rows))
    assert DeltaTable(tmp_path).version() == 0


def test_a_table_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FkJoinError, match="cannot be made for id bigint, x map<string,timestamp_ntz>: .*TIMESTAMP_NTZ"):
        delta(tmp_path, pa.schema([("id", pa.int64()), ("x", pa.map_(pa.string(), pa.timestamp("us")))]))
    cast = pa.table({"id": [1]}).append_column("x", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.timestamp("us", "UTC"))))
    delta(tmp_path, cast.schema).apply(batch_id(0), cast, gone(cast))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1


def test_a_partition_column_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    with pytest.raises(FkJoinError, match="partition_by: there is no column 'regio'; name one of id, region"):
        Delta(str(tmp_path), partition_by=["regio"]).prepare(schema, ("id",))
    Delta(str(tmp_path), partition_by=["region"]).prepare(schema, ("id",))
    assert DeltaTable(tmp_path).metadata().partition_columns == ["region"]


def test_types_that_delta_does_not_have_are_refused(tmp_path: Path) -> None:
    for kind, shown in (
        (pa.duration("us"), "interval day to second"),
        *((pa.time64("us"), "time\\(6\\)") for _ in TIMES_OF_DAY),
        (pa.struct([]), "struct<>"),
    ):
        with pytest.raises(TopologyError, match=rf"to_delta: column x\[\] is {shown}, which could not be read there unchanged"):
            delta(tmp_path, pa.schema([("id", pa.int64()), ("x", pa.list_(kind))]))
    with pytest.raises(TopologyError, match=r"to_delta: column x is variant"):
        Delta(tmp_path).prepare(arrow_schema("x", StructType().add("x", VariantType())), ("x",))
