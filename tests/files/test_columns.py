"""Columns of files: from folders, by the names in CSV headers, keys as text; and files that Spark would pass over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import TopologyError
from fkjoin.stages.counters import metrics_name
from tests.support.files import collected, kept, put, table
from tests.support.queries import run

pytestmark = pytest.mark.usefixtures("own_rules")


def test_columns_of_folders_are_there_and_may_be_keys(spark: SparkSession, tmp_path: Path) -> None:
    for region in ("007", "7"):
        put(tmp_path / "in", f"region={region}/1.json", '{"id":"a","lsn":1,"region":"of the line"}\n{"id":"b"\n')
    made = table(spark, tmp_path / "in", key=["region", "id"])
    assert made._plan.undecoded is None
    assert kept(made, tmp_path / "learned", "region", "id") == [("007", "a"), ("7", "a")]
    typed = table(spark, tmp_path / "in", key=["region", "id"], schema="region int, id string, lsn bigint", name="typed")
    assert kept(typed, tmp_path / "typed", "region", "id") == [(7, "a")]
    assert kept(typed.filter("region = 7"), tmp_path / "filter", "region") == [(7,)]
    dated = "region int, id string, day date, lsn bigint"
    assert kept(table(spark, tmp_path / "in", schema=dated), tmp_path / "dated", "region", "id", "day") == [(7, "a", None)]
    letters = collected(made.dead_letters, tmp_path / "letters")
    assert sorted(row.file.split("/")[-2] for row in letters) == ["region=007", "region=7"]


def test_csv_is_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", 'id,city,more,lsn,name\n007,Rome,x,1,Ann\n7,Oslo,y,1,"Bob, ""B"""\n')
    schema = "id string, lsn bigint, name string, city string"
    made = table(spark, tmp_path / "in", schema=schema)
    assert kept(made, tmp_path / "kept", "id", "name", "city") == [("007", "Ann", "Rome"), ("7", 'Bob, "B"', "Oslo")]
    with pytest.raises(TopologyError, match=r"schema: .*1.csv has no column nme; its header is id, city, more, lsn, name\."):
        table(spark, tmp_path / "in", schema="id string, lsn bigint, nme string")
    put(tmp_path / "in", "2.csv", "id,name,more,lsn,city\n9,Cy,x,1,Bonn\n")
    os.utime(tmp_path / "in" / "2.csv", (1, 1))
    for narrow in (made, made.map_values("id as it", name="narrow")):
        with pytest.raises(StreamingQueryException, match=r"(?s)city.*name.*2\.csv"):
            kept(narrow, tmp_path / f"mixed-{narrow.name}", "id")
    place = table(spark, tmp_path / "in", schema="id string, a string, b string, lsn bigint", options={"enforceSchema": True})
    assert place._planned.row_type.names == ["id", "a", "b"]


def test_csv_goes_on_with_the_newest_header(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", "id,lsn,n\na,1,1\n")

    def read() -> list[tuple[Any, ...]]:
        made = table(spark, tmp_path / "in").materialize("kept")
        made.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
        return sorted((row.id, row.n) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert read() == [("a", 1)]
    put(tmp_path / "in", "2.csv", "n,coupon,lsn,id\n2,X,2,b\n3.5,Y,2,c\n")
    assert read() == [("a", 1), ("b", 2)]


def test_keys_of_csv_are_text_and_other_columns_what_they_look_like(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", "id,lsn,n\n007,1,1\n7,1,2\n")
    assert kept(table(spark, tmp_path / "in"), tmp_path / "kept", "id", "n") == [("007", 1), ("7", 2)]
    number = table(spark, tmp_path / "in", schema="id int, lsn bigint, n int", name="number")
    assert [row[0] for row in kept(number, tmp_path / "number", "id")] == [7]


def test_csv_lines_that_do_not_fit_are_letters(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", "id,lsn,n\na,1,1\nb,1,x\nc,1\nd,1,1,1\ne,,1\n\n,,\n")
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, n bigint")
    letters = {(bytes(row.value), row.reason) for row in collected(made.dead_letters, tmp_path / "letters")}
    why = "not a CSV line of struct<id:string,lsn:bigint,n:bigint>"
    assert letters == {(b"b,1,x", why), (b"c,1", why), (b"d,1,1,1", why), (b'{"id":"e","n":1}', "no version: lsn is null")}
    narrow = made.map_values("id as it", name="narrow").materialize("narrow")
    done = run(narrow.changes, tmp_path / "narrow", metrics_name("narrow"))
    assert [row.it for row in done.rows] == ["a"]
    assert (done.count["dead-letters"], done.count["null-key-dropped"]) == (4, 1), "whatever columns are read"
    seen = table(spark, tmp_path / "in", schema="id string, lsn bigint, n bigint, _corrupt_record string", name="seen")
    found = dict(kept(seen, tmp_path / "seen", "id", "_corrupt_record"))
    assert found == {"a": None, "b": "b,1,x", "c": "c,1", "d": "d,1,1,1"}


def test_old_files_and_names_like_globs_are_read(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b,c}?*"
    for number, name in enumerate(("p=1/new.json", "p=1/old.json", "p=2/[x]*{y}.json")):
        put(folder, name, f'{{"id":"{number}","lsn":1}}\n')
    os.utime(folder / "p=1" / "old.json", (1, 1))
    for key, way in (("id", "one"), (["id", "p"], "two")):
        made = table(spark, folder, key=key, name=way, options={"maxFilesPerTrigger": 1, "latestFirst": True})
        assert kept(made, tmp_path / way, "id", "p") == [("0", "1"), ("1", "1"), ("2", "2")] or way == "one"
    put(tmp_path, "f[1].json", '{"id":"x","lsn":1}\n')
    assert kept(table(spark, tmp_path / "f[1].json", name="file"), tmp_path / "file", "id") == [("x",)]
    put(tmp_path / "late", "1.json", '{"id":"x","lsn":1}\n')

    def late() -> list[str]:
        made = table(spark, tmp_path / "late", schema="id string, lsn bigint").materialize("late")
        made.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert late() == ["x"]
    put(tmp_path / "late", "0.json", '{"id":"y","lsn":1}\n')
    os.utime(tmp_path / "late" / "0.json", (1_000_000_000, 1_000_000_000))
    assert late() == ["x", "y"], "a file of 2001"
