"""Parquet files with other types than the table's: dead letters where values can be read, else a stop that names the file."""

from __future__ import annotations

import errno
import json
import os
import re
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, TopologyError
from fkjoin.storage.local_files import LocalFiles
from tests.support.files import collected, table
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")

VECTORIZED = "spark.sql.parquet.enableVectorizedReader"


def put(folder: Path, name: str, values: list[Any], kind: pa.DataType) -> Path:
    """Add a file; its rows are called by their places."""
    (folder / "in").mkdir(exist_ok=True)
    ids = [f"{name}{place}" for place in range(len(values))]
    lsn = pa.array([1] * len(values), pa.int64())
    pq.write_table(pa.table({"id": ids, "lsn": lsn, "x": pa.array(values, kind)}), folder / "in" / f"{name}.parquet")
    return folder / "in" / f"{name}.parquet"


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
def test_a_value_beyond_the_tables_type_is_a_letter_and_others_are_rows(
    spark: SparkSession, tmp_path: Path, vectorized: str
) -> None:
    lines = [
        (name, value, ok) for name, (*_, good, bad) in WIDER.items() for ok in (True, False) for value in (good if ok else bad)
    ]
    columns = {name: pa.array([value if at == name else None for at, value, _ in lines], WIDER[name][1]) for name in WIDER}
    about = {"id": [str(place) for place in range(len(lines))], "lsn": pa.array([1] * len(lines), pa.int64())}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({**about, **columns}), tmp_path / "in" / "1.parquet")
    schema = ", ".join(["id string", "lsn bigint", *(f"{name} {kind}" for name, (kind, *_) in WIDER.items())])
    spark.conf.set(VECTORIZED, vectorized)
    try:
        made = table(spark, tmp_path / "in", schema=schema, name="t")
        rows = {row.id: row.asDict(recursive=True) for row in collected(made.materialize("kept").changes, tmp_path / "kept")}
        letters = {json.loads(one.value)["id"]: one for one in collected(made.dead_letters, tmp_path / "letters")}
    finally:
        spark.conf.unset(VECTORIZED)
    for place, (name, value, ok) in enumerate(lines):
        if ok:
            assert rows.pop(str(place))[name] == value
        else:
            letter = letters.pop(str(place))
            assert letter.reason.startswith(f"column {name}: ")
            assert letter.reason.endswith(f" is not of type {WIDER[name][0]}")
            assert (letter.file.endswith("/1.parquet"), json.loads(letter.value)[name]) == (True, value)
    assert (rows, letters) == ({}, {})


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
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t", format="parquet")
    assert dict(made.changes.dtypes)["x"] == "bigint", "of a folder without files"
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1")
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t")
    assert dict(made.changes.dtypes)["x"] == "bigint", "of a file that is cut off"
    for field, (given, kind, value) in MISREAD.items():
        name = field.rstrip("[]").split(".")[0]
        columns = {"id": ["a"], "lsn": [1], name: pa.array([value], kind)}
        file = tmp_path / "in" / "a.parquet"
        pq.write_table(pa.table({**columns, **BESIDE}), file, store_decimal_as_integer=field in AS_INTEGERS)
        with pytest.raises(TopologyError, match=rf"^schema: {re.escape(field)} is .*, and .* in file:.*; give it that type"):
            table(spark, tmp_path / "in", schema=f"id string, lsn bigint, {name} {given}", name="t")
    pq.write_table(pa.table({"id": ["a"], "lsn": [1], "x": pa.array([Decimal("7.50")])}), tmp_path / "in" / "a.parquet")
    found = table(spark, tmp_path / "in", schema="id string, lsn bigint, x decimal(3,2)", name="t").with_columns(
        {"x": "round(x)"}
    )
    assert [row.x for row in collected(found.materialize("kept").changes, tmp_path / "kept")] == [Decimal("8")]


def test_what_spark_has_no_type_for_is_its_number_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    clock = pa.array([time(1, 2, 3)], pa.time64("us"))
    nested = pa.array([{"at": datetime(2026, 1, 2)}], pa.struct([("at", pa.timestamp("ns", "UTC"))]))
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.table({"id": ["a"], "lsn": [1], "seen": NANOS, "clock": clock, "s": nested}), file)
    for wanted in ("seen timestamp", "seen timestamp_ntz", "seen int", "seen string", "clock int", "s struct<at: timestamp>"):
        name = "s.at" if wanted.startswith("s ") else wanted.split()[0]
        with pytest.raises(TopologyError, match=rf"^schema: {name} is .*, which Spark cannot read: declare it as bigint"):
            table(spark, tmp_path / "in", schema=f"id string, lsn bigint, {wanted}", name="t")
    schema = "id string, lsn bigint, seen bigint, clock bigint, s struct<at: bigint>"
    made = table(spark, tmp_path / "in", schema=schema, name="t").with_columns({"seen": "timestamp_micros(seen div 1000)"})
    (row,) = collected(made.materialize("kept").changes, tmp_path / "kept")
    assert row.seen == datetime(2026, 1, 2, 3, 4, 5)
    assert (row.clock, row.s["at"]) == (3723 * 10**6, 1767312000 * 10**9)


def test_old_instants_of_96_bits_are_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.table({"id": ["a"], "lsn": [1], "seen": NANOS}), file, use_deprecated_int96_timestamps=True)
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, seen timestamp", name="t")
    assert [row.seen for row in collected(made.changes, tmp_path / "kept")] == [datetime(2026, 1, 2, 3, 4, 5)]
    with pytest.raises(TopologyError, match="schema: seen is timestamp_ntz, and timestamp in file:"):
        table(spark, tmp_path / "in", schema="id string, lsn bigint, seen timestamp_ntz", name="t")


def test_the_types_of_the_newest_files_are_compared_whatever_stands_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    columns = [pa.array([name]) for name in map("a column with a long name {}".format, range(2000))]
    wide = pa.table([*columns, [1], [Decimal("7.50")]], [*(f"{place}" * 40 for place in range(2000)), "lsn", "x"])
    good = put(tmp_path, "good", [7], pa.int64())
    bad = tmp_path / "in" / "bad.parquet"
    pq.write_table(wide, bad, store_decimal_as_integer=True)
    cut = tmp_path / "in" / "cut.parquet"
    cut.write_bytes(good.read_bytes()[:-9] + b"PAR1")
    for newest in (good, cut):
        os.utime(newest, (2_000_000_000, 2_000_000_000))
        with pytest.raises(TopologyError, match=r"schema: x is bigint, and decimal\(3,2\) in file:.*bad"):
            table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t")


def test_a_file_whose_types_cannot_be_compared_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Any:
        return table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t")

    def unreadable(*_: Any) -> bytes:
        raise OSError(errno.EIO, "I/O error")

    file = put(tmp_path, "a", [7], pa.int64())
    with monkeypatch.context() as damaged:
        damaged.setattr(LocalFiles, "read_end", unreadable)
        with pytest.raises(TopologyError, match=r"^path: .*a\.parquet cannot be opened, and its types not compared .*I/O"):
            made()
    with monkeypatch.context() as other:
        other.setattr(pq.ParquetFile, "schema_arrow", property(lambda _: pa.array([1]).cast(pa.null())))
        with pytest.raises(TopologyError, match=r"^path: the types of .*a\.parquet cannot be compared"):
            made()
    pq.write_table(pq.read_table(file).drop_columns(["x"]), file)
    assert made() is not None


def test_another_kind_of_type_stops_the_query_with_the_file_and_both_ways_on(spark: SparkSession, tmp_path: Path) -> None:
    def run(name: str, kind: str, added: dict[str, tuple[list[Any], pa.DataType]] | None = None) -> dict[str, Any]:
        made = table(spark, tmp_path / "in", schema=f"id string, lsn bigint, x {kind}", name="t").materialize("kept")
        for file, values in (added or {}).items():
            put(tmp_path, file, *values)
        made.to_parquet(
            tmp_path / f"out{name}", checkpoint=tmp_path / f"checkpoint{name}", trigger={"availableNow": True}
        ).awaitTermination()
        return {row.id: row.x for row in spark.read.parquet(str(tmp_path / f"out{name}")).collect()}

    put(tmp_path, "a", [1], pa.int32())
    place = tmp_path / "in" / "b.parquet"
    with pytest.raises(QueryError) as raised:
        run("", "int", {"b": ([2.5], pa.float64()), "c": ([3], pa.int32())})
    first, where, way = str(raised.value).splitlines()
    assert first.endswith(f"failed: file://{place}: column x is DOUBLE in it, but must be read as bigint")
    assert str(place) in where
    assert "write that file again, under its name, with the types of the table, and start the query again" in way
    with pytest.raises(TopologyError, match=rf"^schema: x is int, and double in file:{place}; give it that type"):
        run("", "int")
    assert run("-anew", "double") == {"a0": 1.0, "b0": 2.5, "c0": 3.0}
    put(tmp_path, "b", [2], pa.int32())
    assert run("", "int") == {"a0": 1, "b0": 2, "c0": 3}
