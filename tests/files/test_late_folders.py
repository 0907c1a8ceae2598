"""Folders that are called as columns are, and come while queries run that began without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, fk_join
from tests.support.files import gone_on, put, table
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")

FORMS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "multiline": {"format": "json", "options": {"multiLine": False}},
    "csv": {"format": "csv"},
    "parquet": {"format": "parquet"},
}
NAMED = "region string, id string, other string, lsn bigint"
"""A place for a column of folders where Spark's readers would put others into it."""


def add(folder: Path, form: str, place: str, id: str) -> None:
    """Add a file of one row to a folder that files are in."""
    if form == "parquet":
        file = folder / "in" / f"{place}.parquet"
        file.parent.mkdir()
        pq.write_table(pa.table({"id": [id], "other": ["x"], "lsn": [1]}), file)
    elif form == "csv":
        put(folder / "in", f"{place}.csv", f"id,other,lsn\n{id},x,1\n")
    else:
        put(folder / "in", f"{place}.json", f'{{"id":"{id}","other":"x","lsn":1}}\n')


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled([*FORMS], ["parquet"]))
def test_a_query_that_names_their_columns_stops_and_reads_them_when_it_starts_again(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """One that names none goes on meanwhile, unless workers read the lines.  A folder above the files' own says nothing."""
    folder = tmp_path / "id=1"
    (folder / "in").mkdir(parents=True)
    schemas = {"names": NAMED, "others": "id string, lsn bigint"}
    if form in ("json", "csv"):
        del schemas["others"]
    often = {"processingTime": "100 milliseconds"}
    running = {}
    for name, schema in schemas.items():
        made = table(spark, folder / "in", schema=schema, name=name, **FORMS[form])
        place = {"checkpoint": folder / name / "checkpoint", "query_name": name}
        query = made.materialize("kept").to_parquet(folder / name / "out", trigger=often, **place)
        running[name] = query
        query.processAllAvailable()
    add(folder, form, "region=eu/1", "o1")
    with pytest.raises(QueryError) as raised:
        running["names"].awaitTermination(60)
    first, _, way = str(raised.value).splitlines()
    if form == "csv":
        assert "CSV header" in first, "of the first file, which was not there to tell the columns"
    else:
        assert "failed: folders with the names of columns, such as region=eu, were added after the query was started" in first
        assert "start the query again: it continues with this batch, and reads these columns if schema= names them" in way
    if "others" in running:
        running["others"].processAllAvailable()
        running["others"].stop()
        rows = spark.read.parquet(str(folder / "others" / "out"))
        assert [row.id for row in rows.collect()] == ["o1"]
    add(folder, form, "region=us/2", "o2")
    made = table(spark, folder / "in", schema=NAMED, name="names", **FORMS[form])
    rows = gone_on(made, folder / "names", "id", "other", "region", query_name="names")
    assert rows == [("o1", "x", "eu"), ("o2", "x", "us")]


@pytest.mark.nightly
def test_a_join_of_a_folder_with_itself_goes_on_when_folders_come(spark: SparkSession, tmp_path: Path) -> None:
    def go_on() -> list[Any]:
        parts = table(spark, tmp_path / "in", name="parts", key=["region", "id"])
        wholes = table(spark, tmp_path / "in", name="wholes", key="id")
        how: dict[str, Any] = {"how": "left", "joiner": "right.other as found", "name": "joined"}
        joined = fk_join(parts, wholes, "other", **how)
        return gone_on(joined, tmp_path, "region", "id", "found")

    add(tmp_path, "json", "region=eu/1", "x")
    go_on()
    add(tmp_path, "json", "region=eu/2", "o2")
    add(tmp_path, "json", "region=us/3", "o3")
    go_on()
    assert go_on() == [("eu", "o2", "x"), ("eu", "x", "x"), ("us", "o3", "x")]
