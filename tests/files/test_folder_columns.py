"""Columns of folders: kept with the checkpoint, cast to the types that are wanted, and called as the schema calls them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from tests.support.files import collected, kept, put, table
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("own_rules")

GIVEN = "id string, lsn bigint"
FORMS: dict[str, dict[str, Any]] = {"workers": {}, "spark": {"options": {"multiLine": False}}}
"""The two ways in which JSON is read; a sample has one of them in each test, and both in the file."""


class Job:
    """A table's rows, written by a query that stops when it has read all files; ``more``: of the table."""

    def __init__(self, spark: SparkSession, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.spark, self.folder, self.caplog = spark, folder, caplog

    def line(self, place: str, **row: Any) -> None:
        put(self.folder / "in", f"{place}.json", json.dumps({"lsn": 1, **row}) + "\n")

    def begin_anew(self) -> None:
        for name in ("checkpoint", "out"):
            (self.folder / name).rename(self.folder / f"old-{name}")

    def run(self, **more: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        """All rows so far, and what was reported."""
        out, checkpoint = self.folder / "out", self.folder / "checkpoint"
        self.caplog.clear()
        with self.caplog.at_level(logging.WARNING, "fkjoin"):
            made = table(self.spark, self.folder / "in", name="orders", **more).materialize("kept")
            made.to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
        said = [record.getMessage() for record in self.caplog.records if record.name == "fkjoin"]
        rows = self.spark.read.parquet(str(out)).collect()
        names = ["id", *sorted({"n", "region"}.intersection(rows[0].asDict()))]
        return sorted(tuple(row[name] for name in names) for row in rows), said


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Job:
    return Job(spark, tmp_path, caplog)


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["spark"]))
def test_a_folder_that_comes_later_is_left_out_and_reported_once(job: Job, way: str) -> None:
    job.line("1", id="a")
    assert job.run(**FORMS[way]) == ([("a",)], [])
    job.line("region=us/2", id="b")
    rows, (said,) = job.run(**FORMS[way])
    assert rows == [("a",), ("b",)]
    assert said.startswith("table orders: its files have a new field region (string), which is left out")
    job.line("region=eu/3", id="c")
    assert job.run(**FORMS[way]) == ([("a",), ("b",), ("c",)], [])


@pytest.mark.parametrize("way", FORMS)
def test_a_schema_says_which_columns_of_folders_there_are(job: Job, way: str) -> None:
    job.line("region=us/1", id="a")
    assert job.run(schema=GIVEN, **FORMS[way]) == ([("a",)], [])
    job.line("region=eu/2", id="b")
    assert job.run(schema=GIVEN, **FORMS[way]) == ([("a",), ("b",)], [])
    job.begin_anew()
    assert job.run(schema=f"{GIVEN}, region string", **FORMS[way]) == ([("a", "us"), ("b", "eu")], [])


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["workers"]))
def test_a_folder_that_went_is_null_and_others_stay(job: Job, way: str) -> None:
    job.line("n=1/region=us/1", id="a")
    assert job.run(**FORMS[way])[0] == [("a", 1, "us")]
    (job.folder / "in" / "n=1").rename(job.folder / "old")
    job.line("region=eu/x=1/2", id="b")
    rows, (said,) = job.run(**FORMS[way])
    assert (rows, "new field x (int)" in said) == ([("a", 1, "us"), ("b", None, "eu")], True)


@pytest.mark.parametrize("options", [{}, {"header": False}])
def test_a_folder_of_csv_files_that_went_is_null(job: Job, options: dict[str, Any]) -> None:
    """Its column is none of the lines, which have columns by name or by place."""
    header = "" if options else "id,lsn\n"
    names = {"key": "_c0", "version": "_c1"} if options else {}
    put(job.folder / "in", "region=us/1.csv", f"{header}a,1\n")
    assert [row[-1] for row in _csv_rows(job, names, options)] == ["us"]
    (job.folder / "in" / "region=us").rename(job.folder / "old")
    put(job.folder / "in", "2.csv", f"{header}b,1\n")
    assert sorted(map(str, (row[-1] for row in _csv_rows(job, names, options)))) == ["None", "us"]


def _csv_rows(job: Job, names: dict[str, Any], options: dict[str, Any]) -> list[tuple[Any, ...]]:
    out, checkpoint = job.folder / "out", job.folder / "checkpoint"
    about = {"key": "id", "version": "lsn", "name": "orders", **names}
    orders = Table.from_files(job.spark, job.folder / "in", options=options, **about).materialize("kept")
    orders.to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
    columns = ("_c0", "region") if options else ("id", "region")
    return [tuple(row[name] for name in columns) for row in job.spark.read.parquet(str(out)).collect()]


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["spark"]))
def test_a_column_that_moves_between_lines_and_folders_is_refused(job: Job, way: str) -> None:
    """With a schema it is where it is now; so it is with a new checkpoint, and the folders may have another name."""
    schema = "id string, lsn bigint, region string"
    job.line("1", id="a", region="eu")
    assert job.run(**FORMS[way]) == ([("a", "eu")], [])
    job.line("region=x/2", id="b", region="us")
    with pytest.raises(TopologyError, match=r"path: column region of orders comes from names of folders now, and did not"):
        job.run(**FORMS[way])
    (job.folder / "in/region=x").rename(job.folder / "in/area=x")
    assert job.run(**FORMS[way])[0] == [("a", "eu"), ("b", "us")]
    (job.folder / "in/1.json").unlink()  # Spark wants all files at one depth
    (job.folder / "in/area=x").rename(job.folder / "in/region=x")
    job.begin_anew()
    assert job.run(**FORMS[way])[0] == [("b", "x")]
    (job.folder / "in/region=x").rename(job.folder / "old")
    job.line("3", id="c", region="eu")
    with pytest.raises(TopologyError, match=r"path: column region of orders comes from lines now, and did not when .* begun"):
        job.run(**FORMS[way])
    assert job.run(schema=schema, **FORMS[way])[0] == [("b", "x"), ("c", "eu")]


def test_a_value_that_does_not_fit_what_was_learned_is_a_letter(job: Job) -> None:
    job.line("n=1/1", id="a")
    assert job.run()[0] == [("a", 1)]
    job.line("n=abc/2", id="b")
    job.line("n=2/3", id="c")
    assert job.run()[0] == [("a", 1), ("c", 2)]


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS, "csv", "parquet"], [*FORMS, "parquet"]))
def test_a_value_that_does_not_fit_the_schema_is_a_letter_with_file_and_reason(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    values = ("1", "1.5", "9999999999", "__HIVE_DEFAULT_PARTITION__")
    for place, value in enumerate(values):
        if way == "csv":
            put(tmp_path / "in", f"n={value}/1.csv", f"id,lsn\n{place},1\n")
        elif way == "parquet":
            rows = spark.createDataFrame([(str(place), 1)], GIVEN)
            rows.coalesce(1).write.parquet(str(tmp_path / "in" / f"n={value}"))
        else:
            put(tmp_path / "in", f"n={value}/1.json", f'{{"id":"{place}","lsn":1}}\n')
    made = table(spark, tmp_path / "in", schema=f"{GIVEN}, n int", **FORMS.get(way, {}))
    found = collected(made.materialize("kept").changes, tmp_path / "kept")
    assert sorted((row.id, row.n) for row in found) == [("0", 1), ("3", None)]
    letters = sorted(collected(made.dead_letters, tmp_path / "letters"), key=lambda row: row.reason)
    assert [row.reason for row in letters] == [f"the folder n={value} is no int" for value in values[1:3]]
    assert [row.file.split("/")[-2] for row in letters] == [f"n={value}" for value in values[1:3]]
    assert [json.loads(row.value)["id"] for row in letters] == ["1", "2"]


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["workers"]))
def test_a_folder_is_called_as_the_schema_calls_it(spark: SparkSession, tmp_path: Path, way: str) -> None:
    put(tmp_path / "in", "Region=007/1.json", '{"id":"a","lsn":1}\n')
    made = table(spark, tmp_path / "in", key=["region", "id"], schema="region string, id string, lsn bigint", **FORMS[way])
    assert kept(made, tmp_path / "kept", "region", "id") == [("007", "a")]
    typed = table(spark, tmp_path / "in", schema="region int, id string, lsn bigint", name="typed", **FORMS[way])
    assert kept(typed, tmp_path / "typed", "region") == [(7,)]
