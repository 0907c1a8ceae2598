"""Headers of CSV with names that are missing or repeat, and new fields in structs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fkjoin import TopologyError
from fkjoin.checkpoint.begun import LearnedColumns
from fkjoin.files.kept_schemas import keep
from tests.support.files import collected, kept, put, table

pytestmark = pytest.mark.usefixtures("small_tables")


def test_a_column_without_a_name_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", ",id,lsn,n\n0,a,1,5\n1,b,1\n")
    given = table(spark, tmp_path / "in", schema="id string, lsn bigint, n bigint")
    learned = table(spark, tmp_path / "in")
    assert given._planned.row_type.names == learned._planned.row_type.names == ["id", "n"]
    assert kept(learned, tmp_path / "kept", "id", "n") == [("a", 5)]
    assert [bytes(row.value) for row in collected(given.dead_letters, tmp_path / "letters")] == [b"1,b,1"]
    with pytest.raises(TopologyError, match=r"1.csv has no column _c0; its header is \(no name\), id, lsn, n\."):
        table(spark, tmp_path / "in", schema="_c0 int, id string, lsn bigint")


@pytest.mark.parametrize("more", [{}, {"schema": "id string, lsn bigint, x string"}])
def test_a_name_that_repeats_is_refused(spark: SparkSession, tmp_path: Path, more: dict[str, str]) -> None:
    put(tmp_path / "in", "1.csv", "id,lsn,x,X\na,1,2,3\n")
    with pytest.raises(TopologyError, match=r"path: .*1\.csv has several columns X in its header"):
        table(spark, tmp_path / "in", **more)


def test_a_new_field_in_a_struct_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    known = StructType.fromDDL("id string, at struct<a: int>, list array<struct<b: int>>")
    grown = StructType.fromDDL(
        "id string, at struct<a: int, more: struct<x: int, y: int>>, list array<struct<b: int, c: string>>, new int"
    )
    tables: dict[str, LearnedColumns] = {}
    assert keep(tables, "orders", known) == LearnedColumns(known)
    with caplog.at_level(logging.WARNING, "fkjoin"):
        reported = list(keep(tables, "orders", grown).reported)
        assert reported == ["at.more", "at.more.x", "at.more.y", "list.c", "new"]
        assert keep(tables, "orders", grown) == LearnedColumns(known, [], reported)
    said = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert said == [f"table orders: its files have a new field {path}" for path in ("at.more", "list.c", "new")]
