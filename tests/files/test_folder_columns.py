"""Columns that a checkpoint keeps: of folders, cast to the types that are wanted; those that come while queries run, too."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin import QueryError, Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.begun import LearnedColumns
from fkjoin.files.kept_schemas import keep
from fkjoin.lowering.as_begun import _learned, bound_again, read_below
from tests.support.files import collected, gone_on, kept, put, table
from tests.support.queries import write_lines
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
def test_a_folder_that_went_is_null_one_that_comes_is_left_out_and_one_that_was_in_lines_is_refused(job: Job, way: str) -> None:
    """Others stay; what is left out is reported.  With a schema, a column that moved is read where it is now."""
    job.line("n=1/region=us/1", way, id="a", kind="x")
    assert job.run(way, "id", "n", "region") == ([("a", 1, "us")], [])
    (job.folder / "in" / "n=1").rename(job.folder / "old")
    job.line("region=eu/x=1/2", way, id="b", kind="y")
    rows, (said,) = job.run(way, "id", "n", "region")
    assert rows == [("a", 1, "us"), ("b", None, "eu")]
    assert said.startswith("table orders: its files have a new field x (int), which is left out")
    (job.folder / "in" / "region=eu").rename(job.folder / "older")
    job.line("region=eu/kind=z/3", way, id="c")
    with pytest.raises(TopologyError, match=r"path: column kind of orders comes from names of folders now, and did not"):
        job.run(way, "id")
    made = table(job.spark, job.folder / "in", schema=f"{GIVEN}, kind string", **FORMS[way])
    assert [(row.id, row.kind) for row in collected(made.changes, job.folder / "moved")] == [("c", "z")]
    (job.folder / "in" / "region=eu" / "kind=z").rename(job.folder / "renamed")
    job.line("region=eu/x=2/3", way, id="c", kind="y")
    assert job.run(way, "id", "kind") == ([("a", "x"), ("b", "y"), ("c", "y")], [])
    learned = StructType.fromDDL(f"{GIVEN}, region string")
    with pytest.raises(TopologyError, match=r"path: column region of orders comes from lines now, and did not when .* started"):
        keep({"orders": LearnedColumns(learned, ["region"])}, "orders", learned)


@pytest.mark.faults
@pytest.mark.parametrize("way", sampled([*FORMS, "parquet"], ["parquet"]))
def test_a_value_that_does_not_fit_is_a_letter_with_a_reason(spark: SparkSession, tmp_path: Path, job: Job, way: str) -> None:
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


def test_columns_of_folders_are_there_and_may_be_keys(spark: SparkSession, tmp_path: Path) -> None:
    """They are called as the schema calls them; in a key they are text unless the schema says otherwise."""
    for region in ("007", "7"):
        put(tmp_path / "in", f"Region={region}/1.json", '{"id":"a","lsn":1,"Region":"of the line"}\n')
    made = table(spark, tmp_path / "in", key=["Region", "id"])
    assert made._plan.undecoded is None
    assert kept(made, tmp_path / "learned", "Region", "id") == [("007", "a"), ("7", "a")]
    schema = "region int, id string, day date, lsn bigint"
    typed = table(spark, tmp_path / "in", key=["region", "id"], schema=schema, name="typed").filter("region = 7")
    assert kept(typed, tmp_path / "typed", "region", "id", "day") == [(7, "a", None)]
    with pytest.raises(TopologyError, match="key: .*region"):
        table(spark, tmp_path / "in", key=["region", "id"], schema="id string, lsn bigint")


def test_old_files_and_names_like_globs_are_read(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b,c}?*"
    for name in ("p=1/new.json", "p=1/[x]*{y}.json"):
        put(folder, name, f'{{"id":"{name}","lsn":1}}\n')
    os.utime(folder / "p=1" / "[x]*{y}.json", (1, 1))
    names = list[str]()
    for options in ({"maxFilesPerTrigger": 1, "latestFirst": True}, {}):
        made = table(spark, folder, key=["id", "p"], options=options)
        rows = collected(made.changes, tmp_path / "checkpoint")
        names += [row.id for row in rows if row.p == "1"]
        put(folder, "p=1/late.json", '{"id":"late","lsn":1}\n')
        os.utime(folder / "p=1" / "late.json", (1_000_000_000, 1_000_000_000))
    assert names == ["p=1/new.json", "p=1/[x]*{y}.json", "late"]
    put(tmp_path, "f[1].json", '{"id":"x","lsn":1}\n')
    assert table(spark, tmp_path / "f[1].json", name="file")._planned.row_type.names == ["id"]


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


LATE_FORMS: dict[str, dict[str, Any]] = {
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
@pytest.mark.parametrize("form", sampled([*LATE_FORMS], ["parquet"]))
def test_late_folders_stop_a_query_that_reads_them_when_it_starts_again(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """One that names none goes on meanwhile, unless workers read the lines.  A folder above the files' own says nothing."""
    folder = tmp_path / "id=1"
    (folder / "in").mkdir(parents=True)
    schemas = {"names": NAMED, "others": "id string, lsn bigint"}
    if form in ("json", "csv"):
        del schemas["others"]
    often = {"processingTime": "100 milliseconds"}
    running = {}
    for name, schema in schemas.items():
        made = table(spark, folder / "in", schema=schema, name=name, **LATE_FORMS[form])
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
    made = table(spark, folder / "in", schema=NAMED, name="names", **LATE_FORMS[form])
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


def orders(spark: SparkSession, folder: Path, **more: Any) -> Table:
    return Table.from_files(spark, folder / "orders", key="order_id", version="lsn", **more)


def test_a_table_can_be_made_again_with_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Each call is repeated in tests/lowering/test_bound_again.py."""
    write_lines(tmp_path / "orders", "1", [{"order_id": "o1", "amount": 5, "lsn": 1}])
    source = orders(spark, tmp_path)
    tables = [
        source.merge(orders(spark, tmp_path, name="others")),
        source.materialize("kept").filter("amount > 1").group_by("amount", name="by").agg(sum=agg.sum("amount")),
    ]
    learned = source._planned.bound.learned
    given = orders(spark, tmp_path, schema="order_id string, amount double, lsn bigint")
    assert _learned(given._planned) == {}, "it is used as it is"
    wide = StructType([*learned, StructField("more_yet", StringType())])
    for derived in tables:
        planned = derived._planned
        assert _learned(planned)["orders"] == [source._planned]
        of = [*_learned(planned)["orders"], *_learned(planned).get("others", [])]
        again = bound_again(planned, {one: {"schema": wide} for one in of})
        assert "orders" not in _learned(again), "its columns are given now"
        assert again.name == derived.name
        made = [one for one in read_below(again) if one.call is not None and one.call.options["schema"]]
        assert ["more_yet" in one.row_type.names for one in made] == [True] * len(of)
        assert bound_again(planned, {}) is planned
