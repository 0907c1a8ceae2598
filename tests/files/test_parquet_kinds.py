"""Types of Parquet files for each type of a table: those that Spark reads right are allowed, all others refused."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from fkjoin.files.parquet_kinds import unread
from fkjoin.spark.kinds import TIMES_OF_DAY
from fkjoin.spark.schemas import arrow_schema
from tests.support.files import collected, table
from tests.support.sessions import conf

DAYS = [date(2026, 3, 1), date(1969, 1, 2)]
MOMENTS = [datetime(2026, 3, 1, 1, 2, 3, 4000), datetime(1969, 1, 2, 23, 59, 59)]
CLOCK = [time(1, 2, 3), time(23, 59, 59)]
SPANS = [timedelta(days=3, seconds=1), timedelta(seconds=-1)]
TEXTS = ["abc", "ä"]
BYTES = [text.encode() for text in TEXTS]
FRACTIONS = [1.5, -(2.0**100)]

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "null": (pa.null(), [None, None]),
    "bool": (pa.bool_(), [True, False]),
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), [1 - 2 ** (bits - 1), 7]) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), [2**bits - 1, 7]) for bits in (8, 16, 32, 64)},
    "half": (pa.float16(), [1.5, -2.0]),
    "float": (pa.float32(), FRACTIONS),
    "double": (pa.float64(), FRACTIONS),
    "decimal5.2": (pa.decimal128(5, 2), [Decimal("7.50"), Decimal("-999.99")]),
    "decimal12.2": (pa.decimal128(12, 2), [Decimal("7.50"), Decimal("-9999999999.99")]),
    "decimal25.2": (pa.decimal128(25, 2), [Decimal("7.50"), Decimal(f"-{10**22}.99")]),
    "date": (pa.date32(), DAYS),
    **{f"clock_{unit}": (pa.timestamp(unit), MOMENTS) for unit in ("ms", "us", "ns")},
    **{f"instant_{unit}": (pa.timestamp(unit, "Europe/Berlin"), MOMENTS) for unit in ("ms", "us", "ns")},
    "time_ms": (pa.time32("ms"), CLOCK),
    "time_us": (pa.time64("us"), CLOCK),
    "time_ns": (pa.time64("ns"), CLOCK),
    **{f"span_{unit}": (pa.duration(unit), SPANS) for unit in ("s", "ms", "us", "ns")},
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "binary": (pa.binary(), BYTES),
    "large_binary": (pa.large_binary(), BYTES),
    "fixed": (pa.binary(3), [b"abc", b"\xc3\xa4 "]),
}
"""Types of files by a name, each with two values."""

WHOLE = "null int8 int16 int32 int64 uint8 uint16 uint32 span_s span_ms span_us span_ns"
LACKED = "clock_ns instant_ns time_ms time_us time_ns"
SMALL = "null int8 int16 int32 uint8 uint16"
TEXT = "string large_string dictionary binary large_binary"
ALLOWED: dict[T.DataType, str] = {
    T.BooleanType(): "bool",
    T.ByteType(): WHOLE,
    T.ShortType(): WHOLE,
    T.IntegerType(): WHOLE,
    T.LongType(): f"{WHOLE} {LACKED}",
    T.FloatType(): f"{SMALL} float double",
    T.DoubleType(): f"{SMALL} float double",
    T.DecimalType(5, 2): "decimal5.2",
    T.DecimalType(12, 2): "int8 int16 int32 decimal5.2 decimal12.2",
    T.DecimalType(12, 4): "decimal5.2",
    T.DecimalType(20, 0): "int8 int16 int32 int64 uint64",
    T.DecimalType(25, 2): "int8 int16 int32 int64 decimal5.2 decimal12.2 decimal25.2",
    T.StringType(): TEXT,
    T.BinaryType(): f"{TEXT} fixed",
    T.DateType(): "null date",
    T.TimestampType(): "instant_ms instant_us",
    T.TimestampNTZType(): "clock_ms clock_us date",
    T.DayTimeIntervalType(): "int64 span_us",
    **{kind(): "time_us" for kind in TIMES_OF_DAY},
}
"""Types of a table, each with those of files that it may have."""
IN_MAPS: dict[T.DataType, str] = {
    **ALLOWED,
    T.ByteType(): "int8",
    T.ShortType(): "int8 int16 uint8",
    T.IntegerType(): SMALL,
    T.FloatType(): "float",
}
"""Types in maps, which Spark does not read as wider ones."""


@pytest.mark.parametrize("given", ALLOWED, ids=str)
def test_a_table_has_the_types_of_files_that_are_allowed_and_no_others(given: T.DataType) -> None:
    struct = T.StructType().add("a", given)
    for name, (kind, _) in KINDS.items():
        inside = pa.struct([("A", kind), ("more", pa.float16())])
        lists = (pa.list_(kind), pa.large_list(kind), pa.list_(kind, 2))
        pairs = [("x", given, kind), ("x.a", struct, inside)]
        pairs += [("x[]", T.ArrayType(given), listed) for listed in lists]
        pairs += [("x[].a", T.ArrayType(struct), pa.list_(inside))]
        texts = T.StringType()
        maps = [
            ("x.value", T.MapType(texts, given), pa.map_(pa.string(), kind)),
            ("x.value.a", T.MapType(texts, struct), pa.map_(pa.string(), inside)),
        ]
        if name != "null":
            maps += [("x.key", T.MapType(given, texts), pa.map_(kind, pa.string()))]
        for allowed, cases in ((ALLOWED, pairs), (IN_MAPS, maps)):
            for place, own, theirs in cases:
                wanted = [] if name in allowed[given].split() else [place]
                refused = [where for where, *_ in unread("x", own, theirs)]
                assert refused == wanted, (str(given), name)


def test_what_is_nested_is_nothing_else() -> None:
    nested = {
        T.StructType().add("a", T.StringType()): pa.struct([("a", pa.string())]),
        T.ArrayType(T.StringType()): pa.list_(pa.string()),
        T.MapType(T.StringType(), T.StringType()): pa.map_(pa.string(), pa.string()),
        T.StringType(): pa.dictionary(pa.int32(), pa.string()),
    }
    for (given, own), (other, kind) in product(nested.items(), nested.items()):
        assert bool(list(unread("x", given, kind))) == (given != other), (own, kind)


@pytest.mark.nightly
@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_every_allowed_type_as_arrow_does(spark: SparkSession, tmp_path: Path, vectorized: str) -> None:
    pairs = [(given, name) for given, names in ALLOWED.items() for name in names.split()]
    fields = T.StructType()
    for place, (given, _) in enumerate(pairs):
        fields = fields.add(f"x{place}", given)
    types = arrow_schema("schema", fields).types
    columns = [_fitting(name, wanted) for (_, name), wanted in zip(pairs, types, strict=True)]
    (tmp_path / "in").mkdir()
    for integers in (False, True):
        about = [[f"{integers}{row}" for row in range(2)], pa.array([1, 1], pa.int64())]
        written = pa.table([*about, *columns], ["id", "lsn", *fields.names])
        file = tmp_path / "in" / f"{integers}.parquet"
        pq.write_table(written, file, store_decimal_as_integer=integers)
    vector = "spark.sql.parquet.enableVectorizedReader"
    with conf(spark, {vector: vectorized, "spark.sql.timeType.enabled": "true"}):
        key = T.StructType().add("id", T.StringType()).add("lsn", T.LongType())
        schema = T.StructType([*key, *fields])
        source = table(spark, tmp_path / "in", schema=schema, name="t")
        rows = sorted(collected(source.changes, tmp_path / "kept"), key=lambda row: str(row.id))
    assert [row.id for row in rows] == ["False0", "False1", "True0", "True1"]
    for name, wanted, column, pair in zip(fields.names, types, columns, pairs, strict=True):
        kind = pa.timestamp("us") if pa.types.is_timestamp(wanted) else wanted
        assert [row[name] for row in rows] == _cast(column, kind).to_pylist() * 2, pair


def _fitting(name: str, wanted: pa.DataType) -> pa.Array:
    """The values of a type of files that the wanted type has, too; nulls for others."""
    kind, values = KINDS[name]
    fitting = []
    for value in values:
        try:
            _cast(pa.array([value], kind), wanted)
            fitting.append(value)
        except pa.ArrowInvalid:
            fitting.append(None)
    return pa.array(fitting, kind)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values as Arrow converts them; of times, their numbers."""
    if pa.types.is_integer(wanted) and pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if pa.types.is_time32(array.type) else pa.int64())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(wanted)
