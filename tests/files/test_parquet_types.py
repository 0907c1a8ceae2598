"""Parquet files with other types than the table's: dead letters where values can be read, else a stop that names the file."""

from __future__ import annotations

import errno
import json
import os
import re
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, Table, TopologyError
from fkjoin.storage.local_files import LocalFiles
from tests.support.files import collected, gone_on, table
from tests.support.sampling import sampled
from tests.support.sessions import conf

pytestmark = pytest.mark.usefixtures("small_tables")

VECTORIZED = "spark.sql.parquet.enableVectorizedReader"


def put(folder: Path, name: str, values: list[Any], kind: pa.DataType) -> Path:
    """Add a file; its rows are called by their places."""
    ids = [f"{name}{place}" for place in range(len(values))]
    return written(folder, name, id=ids, lsn=[1] * len(values), x=pa.array(values, kind))


def written(folder: Path, name: str, *, how: Any = MappingProxyType({}), **columns: Any) -> Path:
    """Write a file; ``how``: of Arrow's writer.  Unless they are given, its row is called ``a``."""
    (folder / "in").mkdir(exist_ok=True)
    file = folder / "in" / f"{name}.parquet"
    pq.write_table(pa.table({"id": ["a"], "lsn": [1], **columns}), file, **how)
    return file


def of_types(spark: SparkSession, folder: Path, columns: str, **more: Any) -> Table:
    """The table of the folder, with these columns beside ``id`` and ``lsn``."""
    return table(spark, folder / "in", schema=f"id string, lsn bigint, {columns}", name="t", **more)


WIDER: dict[str, tuple[str, pa.DataType, list[Any], list[Any]]] = {
    "a": ("int", pa.int64(), [7, -(2**31)], [5_000_000_000]),
    "b": ("smallint", pa.int32(), [-5], [70_000]),
    "c": ("tinyint", pa.int64(), [4], [300, 2**40]),
    "d": ("float", pa.float64(), [0.5, float("inf")], [0.1]),
    "e": (
        "struct<a:int,b:string>",
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}],
        [{"a": 2**40, "b": "z"}],
    ),
    "f": ("array<smallint>", pa.list_(pa.int32()), [[1, None], []], [[1, 70_000]]),
}
"""Types of the table, and wider ones of the file; values that fit, and others."""


@pytest.mark.faults
@pytest.mark.parametrize("vectorized", sampled(["true", "false"], ["true"]))
def test_a_value_beyond_the_tables_type_is_a_letter(spark: SparkSession, tmp_path: Path, vectorized: str) -> None:
    lines, good_ids = dict[str, tuple[str, Any]](), list[str]()
    for name, (_, _, good, bad) in WIDER.items():
        good_ids += [f"{name}{place}" for place in range(len(good))]
        for place, value in enumerate([*good, *bad]):
            lines[f"{name}{place}"] = (name, value)
    kinds = {name: kind for name, (_, kind, *_) in WIDER.items()}
    rows = [{"id": key, "lsn": 1, name: value} for key, (name, value) in lines.items()]
    file = pa.Table.from_pylist(rows, pa.schema({"id": pa.string(), "lsn": pa.int64(), **kinds}))
    written(tmp_path, "1", **{name: file.column(name) for name in file.schema.names})
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in WIDER.items())
    with conf(spark, {VECTORIZED: vectorized}):
        source = of_types(spark, tmp_path, columns)
        kept = collected(source.changes, tmp_path / "rows")
        dead = collected(source.dead_letters, tmp_path / "letters")
    assert sorted(row.id for row in kept) == good_ids
    for row in kept:
        name, value = lines.pop(row.id)
        assert row.asDict(recursive=True)[name] == value
    for letter in dead:
        row = json.loads(letter.value)
        name, value = lines.pop(row["id"])
        assert (letter.file.endswith("/1.parquet"), row[name]) == (True, value)
        assert letter.reason.startswith(f"column {name}: ")
        assert letter.reason.endswith(f" is not of type {WIDER[name][0]}")
    assert lines == {}


MISREAD: dict[str, tuple[str, pa.DataType, Any]] = {
    "x": ("bigint", pa.decimal128(5, 2), Decimal("7.50")),
    "y": ("int", pa.date32(), date(2026, 1, 2)),
    "s.n": ("struct<n: int>", pa.struct([("n", pa.decimal128(5, 2))]), {"n": Decimal("7.50")}),
    "m.value": ("map<string, int>", pa.map_(pa.string(), pa.date32()), [("a", date(2026, 1, 2))]),
}
"""Columns or fields, the table's type of the column, and another one of the file that Spark reads without an error.

``test_parquet_kinds`` has all pairs of types.
"""
AS_INTEGERS = ("s.n",)
"""Decimals that the file has as integers."""
NANOS = pa.array([datetime(2026, 1, 2, 3, 4, 5)], pa.timestamp("ns"))
BESIDE = {"seen": NANOS, "at": pa.array([time(1)], pa.time64("ns")), "half": pa.array([1.5], pa.float16())}
"""Columns of types that Spark lacks, which no table here has."""


def test_a_kind_that_spark_misreads_is_refused_and_the_type_that_is_named_is_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    empty = of_types(spark, tmp_path, "x bigint", format="parquet")
    assert dict(empty.changes.dtypes)["x"] == "bigint", "of a folder without files"
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1")
    damaged = of_types(spark, tmp_path, "x bigint")
    assert dict(damaged.changes.dtypes)["x"] == "bigint", "of a file that is cut off"
    for field, (own, kind, value) in MISREAD.items():
        name, how = field.split(".")[0], {"store_decimal_as_integer": field in AS_INTEGERS}
        written(tmp_path, "a", how=how, **{name: pa.array([value], kind), **BESIDE})
        words = rf"^schema: {re.escape(field)} is .*, and .* in file:.*; give it that type"
        with pytest.raises(TopologyError, match=words):
            of_types(spark, tmp_path, f"{name} {own}")
    written(tmp_path, "a", x=pa.array([Decimal("7.50")]))
    rounded = of_types(spark, tmp_path, "x decimal(3,2)").with_columns({"x": "round(x)"})
    (row,) = collected(rounded.changes, tmp_path / "rows")
    assert row.x == Decimal("8")


def test_what_spark_has_no_type_for_is_its_number_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    clock = pa.array([time(1, 2, 3)], pa.time64("us"))
    nanos = pa.struct([("at", pa.timestamp("ns", "UTC"))])
    nested = pa.array([{"at": datetime(2026, 1, 2)}], nanos)
    written(tmp_path, "a", seen=NANOS, clock=clock, s=nested)
    columns = {"seen timestamp": "seen", "clock int": "clock", "s struct<at: timestamp>": "s.at"}
    for column, name in columns.items():
        words = rf"^schema: {name} is .*, which Spark cannot read: declare it as bigint"
        with pytest.raises(TopologyError, match=words):
            of_types(spark, tmp_path, column)
    numbers = of_types(spark, tmp_path, "seen bigint, clock bigint, s struct<at: bigint>")
    timed = numbers.with_columns({"seen": "timestamp_micros(seen div 1000)"})
    (row,) = collected(timed.changes, tmp_path / "rows")
    assert row.seen == datetime(2026, 1, 2, 3, 4, 5)
    assert (row.clock, row.s["at"]) == (3723 * 10**6, 1767312000 * 10**9)


def test_old_instants_of_96_bits_are_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path, "a", how={"use_deprecated_int96_timestamps": True}, seen=NANOS)
    instants = of_types(spark, tmp_path, "seen timestamp")
    (row,) = collected(instants.changes, tmp_path / "kept")
    assert row.seen == datetime(2026, 1, 2, 3, 4, 5)
    with pytest.raises(TopologyError, match="schema: seen is timestamp_ntz, and timestamp in file:"):
        of_types(spark, tmp_path, "seen timestamp_ntz")


def test_the_types_of_the_newest_files_are_compared_whatever_stands_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    wide = {f"{place}" * 40: [f"a column with a long name {place}"] for place in range(2000)}
    how = {"store_decimal_as_integer": True}
    good = put(tmp_path, "good", [7], pa.int64())
    written(tmp_path, "bad", how=how, **wide, x=[Decimal("7.50")])
    cut = tmp_path / "in" / "cut.parquet"
    cut.write_bytes(good.read_bytes()[:-9] + b"PAR1")
    for newest in (good, cut):
        os.utime(newest, (2_000_000_000, 2_000_000_000))
        words = r"schema: x is bigint, and decimal\(3,2\) in file:.*bad"
        with pytest.raises(TopologyError, match=words):
            of_types(spark, tmp_path, "x bigint")


def test_a_file_of_unknown_types_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> bytes:
        raise OSError(errno.EIO, "I/O error")

    file = put(tmp_path, "a", [7], pa.int64())
    types = property(lambda _: pa.array([1]).cast(pa.null()))
    not_opened = r"^path: .*a\.parquet cannot be opened, and its types not compared .*I/O"
    not_compared = r"^path: the types of .*a\.parquet cannot be compared"
    cases: list[tuple[Any, str, Any, str]] = [
        (LocalFiles, "read_end", unreadable, not_opened),
        (pq.ParquetFile, "schema_arrow", types, not_compared),
    ]
    for owner, name, damaged, words in cases:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, damaged)
            with pytest.raises(TopologyError, match=words):
                of_types(spark, tmp_path, "x bigint")
    pq.write_table(pq.read_table(file).drop_columns(["x"]), file)
    assert of_types(spark, tmp_path, "x bigint") is not None


def test_another_kind_of_type_stops_the_query_with_the_file_and_both_ways_on(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "a", [1], pa.int32())
    place = tmp_path / "in" / "b.parquet"
    source = of_types(spark, tmp_path, "x int")
    put(tmp_path, "b", [2.5], pa.float64())
    put(tmp_path, "c", [3], pa.int32())
    with pytest.raises(QueryError) as raised:
        gone_on(source, tmp_path, "id", "x")
    first, where, way = str(raised.value).splitlines()
    assert first.endswith(f"failed: file://{place}: column x is DOUBLE in it, but must be read as bigint")
    assert str(place) in where
    assert "write that file again, under its name, with the types of the table, and" in way
    with pytest.raises(TopologyError, match=rf"^schema: x is int, and double in file:{place};"):
        of_types(spark, tmp_path, "x int")
    anew = collected(of_types(spark, tmp_path, "x double").changes, tmp_path / "anew")
    assert sorted((row.id, row.x) for row in anew) == [("a0", 1.0), ("b0", 2.5), ("c0", 3.0)]
    put(tmp_path, "b", [2], pa.int32())
    rows = gone_on(of_types(spark, tmp_path, "x int"), tmp_path, "id", "x")
    assert rows == [("a0", 1), ("b0", 2), ("c0", 3)]
