"""Partition columns: a table is opened after each kind of value, or the value is refused before anything is written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import IdentityTransform

from fkjoin import FkJoinError, TopologyError
from fkjoin.sinks import Delta, Iceberg
from tests.support.batch_ids import batch_id
from tests.support.sinks import iceberg, lake

UTC = dt.timezone.utc
AT = dt.datetime(2026, 3, 1, 23, 59, 59, 999_999)
ODD = ["a b", "a/b", "a%2Fb", "é", "p=x", "null", ".", "..", "\n", "'\"\\", "😀"]
EVERY: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 127],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [AT.replace(tzinfo=UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)],
    pa.timestamp("us"): [AT],
    pa.decimal128(10, 2): [Decimal("1.50"), Decimal("0.00")],
    pa.decimal128(5, 0): [Decimal(-7)],
    pa.string(): ["a", *ODD, "x" * 250],
}
LONG = ["x" * 254, "é" * 80]
REFUSED_BY_DELTA = [
    (pa.decimal128(10, 2), Decimal("-1.50"), "no negative decimal that can be read"),
    (pa.decimal128(10, 2), Decimal("-0.05"), "no negative decimal that can be read"),
    (pa.string(), "", "which Delta reads as null"),
    (pa.string(), "__HIVE_DEFAULT_PARTITION__", "which Delta reads as null"),
    *((pa.string(), text, "folder would have a name of more than 255 bytes") for text in LONG),
]


def schema_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("id", pa.string()), ("p", kind)])


def batch(kind: pa.DataType, **rows: Any) -> tuple[pa.Table, pa.Table]:
    schema = schema_of(kind)
    table = pa.table([pa.array(list(rows)), pa.array(rows.values(), kind)], schema=schema)
    return table, table.select(["id"]).slice(0, 0)


def delta(folder: Path, kind: pa.DataType, key: tuple[str, ...] = ("id",)) -> Delta:
    sink = Delta(folder / "lake", partition_by="p")
    sink.prepare(schema_of(kind), key)
    return sink


def opened(folder: Path) -> dict[str, Any]:
    rows = DeltaTable(folder / "lake").to_pyarrow_table().to_pylist()
    return {row["id"]: row["p"] for row in rows}


@pytest.mark.parametrize("kind", EVERY, ids=str)
def test_delta_reads_each_partition_as_it_was_written(tmp_path: Path, kind: pa.DataType) -> None:
    """Each value is written twice: in the key, too, it finds its row again."""
    rows = {f"k{number}": value for number, value in enumerate([*EVERY[kind], None])}
    for key in (("id",), ("id", "p")):
        if len(key) == 2:
            del rows[f"k{len(EVERY[kind])}"]  # a key has no nulls
        sink = delta(tmp_path / str(len(key)), kind, key)
        for number in range(2):
            upserts, _ = batch(kind, **rows)
            sink.apply(batch_id(number), upserts, upserts.select(list(key)).slice(0, 0))
        assert opened(tmp_path / str(len(key))) == rows


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED_BY_DELTA)
def test_delta_refuses_a_partition_that_it_misreads(tmp_path: Path, kind: pa.DataType, value: Any, why: str) -> None:
    sink, good = delta(tmp_path, kind), EVERY[kind][0]
    sink.apply(batch_id(0), *batch(kind, a=good))
    says = rf"a row cannot be in Delta table .*: column p partitions it and is .* with id = 'c', .*{why}"
    with pytest.raises(FkJoinError, match=says):
        sink.apply(batch_id(1), *batch(kind, b=good, c=value))
    assert opened(tmp_path) == {"a": good}
    delta(tmp_path, kind).apply(batch_id(1), *batch(kind, b=good))
    assert opened(tmp_path) == {"a": good, "b": good}


@pytest.mark.parametrize("kind", [pa.binary(), pa.float32(), pa.float64()], ids=str)
def test_delta_refuses_partitions_of_types_that_it_reads_otherwise(tmp_path: Path, kind: pa.DataType) -> None:
    says = r"partition_by: Delta table .* is partitioned by p, which is (binary|float|double): the package deltalake does not"
    for begin in (Delta.examine, Delta.prepare):
        with pytest.raises(TopologyError, match=says):
            begin(Delta(tmp_path / "lake", partition_by="p"), schema_of(kind), ("id",))
        assert not (tmp_path / "lake" / "_delta_log").exists()
    DeltaTable.create(tmp_path / "lake", schema_of(kind), partition_by=["p"])
    with pytest.raises(TopologyError, match=says):
        Delta(tmp_path / "lake").prepare(schema_of(kind), ("id",))


def partitioned(folder: Path, kind: pa.DataType) -> Iceberg:
    """A sink into an Iceberg table that its owner has partitioned."""
    folder.mkdir(exist_ok=True)
    sink = Iceberg("shop.it", options=lake(folder))
    sink.prepare(schema_of(kind), ("id",))
    with load_catalog("default", **lake(folder)).load_table("shop.it").update_spec() as spec:
        spec.add_field("p", IdentityTransform(), "p")
    return sink


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != pa.int8()], ids=str)
def test_iceberg_reads_each_partition_as_it_was_written(tmp_path: Path, kind: pa.DataType) -> None:
    sink = partitioned(tmp_path, kind)
    rows = {f"k{number}": value for number, value in enumerate([*EVERY[kind], None])}
    for number in range(2):
        sink.apply(batch_id(number), *batch(kind, **rows))
    assert {row["id"]: row["p"] for row in iceberg(tmp_path, "shop.it")} == rows


@pytest.mark.parametrize("text", LONG)
def test_iceberg_refuses_a_partition_whose_folder_cannot_be_made(tmp_path: Path, text: str) -> None:
    sink = partitioned(tmp_path, pa.string())
    says = r"a row cannot be in Iceberg table .*: column p partitions it and is .*folder would have a name of more than 255"
    with pytest.raises(FkJoinError, match=says):
        sink.apply(batch_id(0), *batch(pa.string(), c=text))
    sink.apply(batch_id(0), *batch(pa.string(), c=None))
    assert iceberg(tmp_path, "shop.it") == [{"id": "c", "p": None}]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_iceberg_refuses_partitions_of_types_that_it_cuts(tmp_path: Path, kind: pa.DataType) -> None:
    """Readers find no row of 0.1 as a double, and the next batch does not find its file."""
    sink = partitioned(tmp_path, kind)
    says = r"partition_by: Iceberg table .* is partitioned by p, which is (float|double): the package pyiceberg does not read"
    with pytest.raises(TopologyError, match=says):
        sink.apply(batch_id(0), *batch(kind, c=0.1))
    with pytest.raises(TopologyError, match=says):
        Iceberg("shop.it", options=lake(tmp_path)).examine(schema_of(kind), ("id",))
    assert iceberg(tmp_path, "shop.it") == []
