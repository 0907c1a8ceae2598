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

pytestmark = pytest.mark.usefixtures("own_rules")

FORMS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "multiline": {"format": "json", "options": {"multiLine": False}},
    "csv": {"format": "csv"},
    "parquet": {"format": "parquet"},
}
TEXTS = "region string, id string, other string, lsn bigint"
"""A place for a column of folders where Spark's readers would put others into it."""


class Files:
    """Files of a form in a folder; a query of ``kept`` rows that stays until it has read what there is."""

    def __init__(self, spark: SparkSession, folder: Path, form: str) -> None:
        self.spark, self.folder, self.form = spark, folder, form
        (folder / "in").mkdir()

    def put(self, place: str, id: str) -> None:
        file = self.folder / "in" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if self.form == "csv":
            text = f"id,other,lsn\n{id},x,1\n" if "=" in place else f"region,id,other,lsn\nline,{id},x,1\n"
            file.with_suffix(".csv").write_text(text)
        elif self.form == "parquet":
            pq.write_table(pa.table({"id": [id], "other": ["x"], "lsn": pa.array([1], pa.int64())}), f"{file}.parquet")
        else:
            file.with_suffix(".json").write_text(json.dumps({"id": id, "other": "x", "lsn": 1}) + "\n")

    def table(self, name: str, schema: str) -> Table:
        return table(self.spark, self.folder / "in", schema=schema, name=name, **FORMS[self.form])

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = self.spark.read.parquet(str(self.folder / f"out-{name}")).collect()
        return sorted(tuple(row[column] for column in columns) for row in found)

    def start(self, made: Table, name: str, **trigger: Any) -> Any:
        return made.to_parquet(
            self.folder / f"out-{name}",
            checkpoint=self.folder / f"checkpoint-{name}",
            query_name=name,
            trigger=trigger or {"availableNow": True},
        )


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled([*FORMS], ["json", "csv"]))
def test_queries_that_began_without_folders_stop_and_read_their_columns_when_they_start_again(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    files = Files(spark, tmp_path, form)
    often = {"processingTime": "100 milliseconds"}
    running = {name: files.start(files.table(name, TEXTS).materialize("kept"), name, **often) for name in ("a", "b")}
    for query in running.values():
        query.processAllAvailable()
    files.put("region=eu/1", "o1")
    for query in running.values():
        with pytest.raises(QueryError) as raised:
            query.awaitTermination(60)
        first, _, way = str(raised.value).splitlines()
        if form == "csv":
            assert "CSV header" in first, "of the first file, which was not there to tell the columns"
            continue
        assert "failed: folders that are called as columns are, such as region=eu, came after the query was started" in first
        assert "start the query again: it goes on with this batch, and reads these columns if schema= names them" in way
    files.put("region=us/2", "o2")
    for name in running:
        files.start(files.table(name, TEXTS).materialize("kept"), name).awaitTermination()
        assert files.rows(name, "id", "other", "region") == [("o1", "x", "eu"), ("o2", "x", "us")]


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled(["multiline", "parquet"], ["parquet"]))
def test_a_column_that_nobody_names_is_left_out_meanwhile(spark: SparkSession, tmp_path: Path, form: str) -> None:
    above = tmp_path / "id=1"  # which says nothing of what is below the files' folder
    above.mkdir()
    files = Files(spark, above, form)
    query = files.start(files.table("a", "id string, lsn bigint").materialize("kept"), "a", processingTime="100 milliseconds")
    files.put("region=eu/1", "o1")
    query.processAllAvailable()
    query.stop()
    assert files.rows("a", "id") == [("o1",)]
    files.put("region=us/2", "o2")
    files.start(files.table("a", "id string, lsn bigint").materialize("kept"), "a").awaitTermination()
    assert files.rows("a", "id") == [("o1",), ("o2",)]


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
