"""Columns of folders: kept with the checkpoint, and cast to the types that are wanted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fkjoin import TopologyError
from fkjoin.checkpoint.begun import LearnedColumns
from fkjoin.files.kept_schemas import keep
from tests.support.files import collected, gone_on, put, table
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")

GIVEN = "id string, lsn bigint"
FORMS: dict[str, dict[str, Any]] = {"workers": {}, "spark": {"options": {"multiLine": False}}, "csv": {}}
"""The two ways in which JSON is read, and CSV."""


class Job:
    """Lines in folders, and runs of a query of them."""

    def __init__(self, spark: SparkSession, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.spark, self.folder, self.caplog = spark, folder, caplog

    def line(self, place: str, way: str, **row: Any) -> None:
        if way == "csv":
            text = f"{','.join(row)},lsn\n{','.join(row.values())},1\n"
            put(self.folder / "in", f"{place}.csv", text)
        else:
            put(self.folder / "in", f"{place}.json", json.dumps({"lsn": 1, **row}) + "\n")

    def run(self, way: str, *names: str, **more: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        """These columns of all rows so far, and what was reported; ``more``: of the table."""
        self.caplog.clear()
        with self.caplog.at_level(logging.WARNING, "fkjoin"):
            made = table(self.spark, self.folder / "in", name="orders", **FORMS[way], **more)
            rows = gone_on(made, self.folder, *names)
        records = [record for record in self.caplog.records if record.name == "fkjoin"]
        return rows, [record.getMessage() for record in records]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Job:
    return Job(spark, tmp_path, caplog)


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["workers"]))
def test_a_folder_that_went_is_null_and_others_stay(job: Job, way: str) -> None:
    """One that comes is left out, and reported."""
    job.line("n=1/region=us/1", way, id="a")
    assert job.run(way, "id", "n", "region")[0] == [("a", 1, "us")]
    (job.folder / "in" / "n=1").rename(job.folder / "old")
    job.line("region=eu/x=1/2", way, id="b")
    rows, (said,) = job.run(way, "id", "n", "region")
    assert rows == [("a", 1, "us"), ("b", None, "eu")]
    assert said.startswith("table orders: its files have a new field x (int), which is left out")


def test_a_column_that_moves_between_lines_and_folders_is_refused(job: Job) -> None:
    """With a schema it is where it is now."""
    job.line("1", "spark", id="a", region="eu")
    assert job.run("spark", "id", "region") == ([("a", "eu")], [])
    job.line("region=x/2", "spark", id="b", region="us")
    with pytest.raises(TopologyError, match=r"path: column region of orders comes from names of folders now, and did not"):
        job.run("spark", "id")
    (job.folder / "in/1.json").unlink()  # Spark wants all files at one depth
    rows, _ = job.run("spark", "id", "region", schema=f"{GIVEN}, region string")
    assert rows == [("a", "eu"), ("b", "x")]
    learned = StructType.fromDDL(f"{GIVEN}, region string")
    with pytest.raises(TopologyError, match=r"path: column region of orders comes from lines now, and did not when .* started"):
        keep({"orders": LearnedColumns(learned, ["region"])}, "orders", learned)


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS, "parquet"], ["parquet"]))
def test_a_value_that_does_not_fit_the_schema_is_a_letter_with_file_and_reason(
    spark: SparkSession, tmp_path: Path, job: Job, way: str
) -> None:
    values = ("1", "1.5", "9999999999", "__HIVE_DEFAULT_PARTITION__")
    for place, value in enumerate(values):
        if way == "parquet":
            rows = spark.createDataFrame([(str(place), 1)], GIVEN)
            rows.coalesce(1).write.parquet(str(tmp_path / "in" / f"n={value}"))
        else:
            job.line(f"n={value}/1", way, id=str(place))
    made = table(spark, tmp_path / "in", schema=f"{GIVEN}, n int", **FORMS.get(way, {}))
    found = collected(made.materialize("kept").changes, tmp_path / "kept")
    assert sorted((row.id, row.n) for row in found) == [("0", 1), ("3", None)]
    letters = sorted(collected(made.dead_letters, tmp_path / "letters"), key=lambda row: row.reason)
    assert [row.reason for row in letters] == [f"the folder n={value} is not of type int" for value in values[1:3]]
    assert [row.file.split("/")[-2] for row in letters] == [f"n={value}" for value in values[1:3]]
    assert [json.loads(row.value)["id"] for row in letters] == ["1", "2"]
