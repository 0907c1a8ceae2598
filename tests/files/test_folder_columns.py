"""Columns of folders: kept with the checkpoint, cast to the types that are wanted, and called as the schema calls them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import TopologyError
from tests.support.files import collected, kept, put, table
from tests.support.sampling import sampled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_rules")]

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
@pytest.mark.parametrize(("way", "schema"), sampled([("workers", None), ("spark", GIVEN)], [("spark", GIVEN)]))
def test_a_folder_that_comes_later_is_left_out_and_reported_once(job: Job, way: str, schema: str | None) -> None:
    more = {"schema": schema, **FORMS[way]}
    job.line("1", id="a")
    assert job.run(**more) == ([("a",)], [])
    job.line("region=us/2", id="b")
    rows, (said,) = job.run(**more)
    assert rows == [("a",), ("b",)]
    assert said.startswith("table orders: its files are in folders with a new column region (string), which is left out")
    job.line("region=eu/3", id="c")
    assert job.run(**more) == ([("a",), ("b",), ("c",)], [])


@pytest.mark.faults
@pytest.mark.parametrize(("way", "schema"), sampled([("workers", None), ("spark", GIVEN)], [("workers", None)]))
def test_a_folder_that_went_is_null_and_others_stay(job: Job, way: str, schema: str | None) -> None:
    more = {"schema": schema, **FORMS[way]}
    job.line("n=1/region=us/1", id="a")
    assert job.run(**more)[0] == [("a", 1, "us")]
    (job.folder / "in" / "n=1").rename(job.folder / "old")
    job.line("region=eu/x=1/2", id="b", n=7)
    rows, (said,) = job.run(**more)
    assert (rows, "column x (int)" in said) == ([("a", 1, "us"), ("b", None, "eu")], True), "not of the line either"


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS], ["spark"]))
def test_a_folder_named_as_a_learned_column_leaves_it_to_the_lines(job: Job, way: str) -> None:
    job.line("1", id="a", region="eu")
    assert job.run(**FORMS[way]) == ([("a", "eu")], [])
    job.line("region=of the folder/2", id="b", region="us")
    rows, said = job.run(**FORMS[way])
    assert (rows, len(said)) == ([("a", "eu"), ("b", "us")], 1)


@pytest.mark.parametrize("way", FORMS)
def test_beside_folders_that_are_read_sparks_readers_cannot_leave_it_to_the_lines(job: Job, way: str) -> None:
    job.line("n=1/1", id="a", region="eu")
    assert job.run(**FORMS[way])[0] == [("a", 1, "eu")]
    (job.folder / "in/n=1/1.json").unlink()  # Spark wants all files at one depth
    job.line("n=1/region=x/2", id="b", region="us")
    if way == "workers":
        assert job.run()[0] == [("a", 1, "eu"), ("b", 1, "us")]
        return
    with pytest.raises(TopologyError, match=r"path: folders region=… came after the checkpoint, and the files have a column"):
        job.run(**FORMS[way])
    (job.folder / "in/n=1/region=x").rename(job.folder / "in/n=1/area=x")
    assert job.run(**FORMS[way])[0] == [("a", 1, "eu"), ("b", 1, "us")]
    (job.folder / "in/n=1/area=x").rename(job.folder / "in/n=1/region=x")
    job.begin_anew()
    assert job.run(**FORMS[way])[0] == [("b", 1, "x")]


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
