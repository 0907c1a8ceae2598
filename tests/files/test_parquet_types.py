"""Parquet files with other types than the table's: dead letters where values can be read, else a stop that names the file."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, TopologyError
from tests.support.files import collected, table
from tests.support.sampling import sampled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_rules")]

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
            assert letter.reason.endswith(f" is no {WIDER[name][0]}")
            assert (letter.file.endswith("/1.parquet"), json.loads(letter.value)[name]) == (True, value)
    assert (rows, letters) == ({}, {})


MISREAD: dict[str, tuple[str, pa.DataType, Any]] = {
    "x": ("bigint", pa.decimal128(5, 2), Decimal("7.50")),
    "y": ("int", pa.date32(), date(2026, 1, 2)),
    "z": ("bigint", pa.timestamp("us"), datetime(2026, 1, 2)),
    "d": ("date", pa.int32(), 7),
    "t": ("timestamp", pa.timestamp("us"), datetime(2026, 1, 2)),
    "u": ("timestamp_ntz", pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=timezone.utc)),
    "s.n": ("struct<n: int>", pa.struct([("n", pa.decimal128(5, 2))]), {"n": Decimal("7.50")}),
    "l[]": ("array<int>", pa.list_(pa.date32()), [date(2026, 1, 2)]),
    "m.value": ("map<string, int>", pa.map_(pa.string(), pa.date32()), [("a", date(2026, 1, 2))]),
}
"""Columns or fields, the table's type of the column, and another one of the file that Spark reads without an error."""


def test_a_kind_that_spark_misreads_is_refused_and_the_type_that_is_named_is_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t", format="parquet")
    assert dict(made.changes.dtypes)["x"] == "bigint", "of a folder without files"
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1")
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, x bigint", name="t")
    assert dict(made.changes.dtypes)["x"] == "bigint", "of a file that is cut off"
    for field, (given, kind, value) in MISREAD.items():
        name = field.rstrip("[]").split(".")[0]
        pq.write_table(pa.table({"id": ["a"], "lsn": [1], name: pa.array([value], kind)}), tmp_path / "in" / "a.parquet")
        with pytest.raises(
            TopologyError, match=rf"^schema: {re.escape(field)} is \S+, and .* in the files of .*; give it that type"
        ):
            table(spark, tmp_path / "in", schema=f"id string, lsn bigint, {name} {given}", name="t")
    pq.write_table(pa.table({"id": ["a"], "lsn": [1], "x": pa.array([Decimal("7.50")])}), tmp_path / "in" / "a.parquet")
    found = table(spark, tmp_path / "in", schema="id string, lsn bigint, x decimal(3,2)", name="t").with_columns(
        {"x": "round(x)"}
    )
    assert [row.x for row in collected(found.materialize("kept").changes, tmp_path / "kept")] == [Decimal("8")]


def test_another_kind_of_type_stops_the_query_with_the_file_and_both_ways_on(spark: SparkSession, tmp_path: Path) -> None:
    def run(name: str, kind: str) -> dict[str, Any]:
        made = table(spark, tmp_path / "in", schema=f"id string, lsn bigint, x {kind}", name="t").materialize("kept")
        made.to_parquet(
            tmp_path / f"out{name}", checkpoint=tmp_path / f"checkpoint{name}", trigger={"availableNow": True}
        ).awaitTermination()
        return {row.id: row.x for row in spark.read.parquet(str(tmp_path / f"out{name}")).collect()}

    put(tmp_path, "a", [1], pa.int32())
    assert run("", "int") == {"a0": 1}
    place = put(tmp_path, "b", [2.5], pa.float64())
    put(tmp_path, "c", [3], pa.int32())
    with pytest.raises(QueryError) as raised:
        run("", "int")
    first, where, way = str(raised.value).splitlines()
    assert first.endswith(f"failed: file://{place}: column x is DOUBLE in it, and is to be read as bigint")
    assert str(place) in where
    assert "write that file again, under its name, with the types of the table, and start the query again" in way
    assert run("-anew", "double") == {"a0": 1.0, "b0": 2.5, "c0": 3.0}
    put(tmp_path, "b", [2], pa.int32())
    assert run("", "int") == {"a0": 1, "b0": 2, "c0": 3}
