"""Folders that are called as columns are, and come while queries run that began without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import QueryError, Table, fk_join
from tests.support.files import table
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


class Files:
    """Files of a form in a folder, and queries of the rows in them."""

    def __init__(self, spark: SparkSession, folder: Path, form: str) -> None:
        self.spark, self.folder, self.form = spark, folder, form
        (folder / "in").mkdir(parents=True)

    def put(self, place: str, id: str) -> None:
        file = self.folder / "in" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if self.form == "parquet":
            pq.write_table(pa.table({"id": [id], "other": ["x"], "lsn": pa.array([1], pa.int64())}), f"{file}.parquet")
        elif self.form == "csv":
            file.with_suffix(".csv").write_text(f"id,other,lsn\n{id},x,1\n")
        else:
            file.with_suffix(".json").write_text(json.dumps({"id": id, "other": "x", "lsn": 1}) + "\n")

    def kept(self, name: str, schema: str) -> Table:
        return table(self.spark, self.folder / "in", schema=schema, name=name, **FORMS[self.form]).materialize("kept")

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = self.spark.read.parquet(str(self.folder / f"out-{name}")).collect()
        return sorted(tuple(row[column] for column in columns) for row in found)

    def start(self, made: Table, name: str, trigger: Any = "available-now") -> Any:
        out, checkpoint = self.folder / f"out-{name}", self.folder / f"checkpoint-{name}"
        return made.to_parquet(out, checkpoint=checkpoint, query_name=name, trigger=trigger)


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled([*FORMS], ["parquet"]))
def test_a_query_that_names_their_columns_stops_and_reads_them_when_it_starts_again(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """One that names none goes on meanwhile, unless workers read the lines.  A folder above the files' own says nothing."""
    files = Files(spark, tmp_path / "id=1", form)
    schemas = {"names": NAMED, "others": "id string, lsn bigint"}
    if form in ("json", "csv"):
        del schemas["others"]
    often = {"processingTime": "100 milliseconds"}
    running = {name: files.start(files.kept(name, schema), name, often) for name, schema in schemas.items()}
    for query in running.values():
        query.processAllAvailable()
    files.put("region=eu/1", "o1")
    with pytest.raises(QueryError) as raised:
        running["names"].awaitTermination(60)
    first, _, way = str(raised.value).splitlines()
    if form == "csv":
        assert "CSV header" in first, "of the first file, which was not there to tell the columns"
    else:
        assert "failed: folders with the names of columns, such as region=eu, were added after the query was started" in first
        assert "start the query again: it continues with this batch, and reads these columns if schema= names them" in way
    for name in schemas.keys() - {"names"}:
        running[name].processAllAvailable()
        running[name].stop()
        assert files.rows(name, "id") == [("o1",)]
    files.put("region=us/2", "o2")
    files.start(files.kept("names", NAMED), "names").awaitTermination()
    assert files.rows("names", "id", "other", "region") == [("o1", "x", "eu"), ("o2", "x", "us")]


@pytest.mark.nightly
def test_a_join_of_a_folder_with_itself_goes_on_when_folders_come(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, tmp_path, "json")

    def go_on() -> None:
        parts = table(spark, tmp_path / "in", name="parts", key=["region", "id"])
        wholes = table(spark, tmp_path / "in", name="wholes", key="id")
        joined = fk_join(parts, wholes, "other", how="left", joiner="right.other as found", name="joined")
        files.start(joined, "joined").awaitTermination()

    files.put("region=eu/1", "x")
    go_on()
    files.put("region=eu/2", "o2")
    files.put("region=us/3", "o3")
    go_on()
    go_on()
    assert files.rows("joined", "region", "id", "found") == [("eu", "o2", "x"), ("eu", "x", "x"), ("us", "o3", "x")]
