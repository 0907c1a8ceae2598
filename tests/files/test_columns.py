"""Columns of files: from folders, by the names in CSV headers, keys as text; and files that Spark would pass over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import TopologyError
from fkjoin.stages.counters import metrics_name
from tests.support.files import collected, gone_on, kept, put, table
from tests.support.queries import run

pytestmark = pytest.mark.usefixtures("small_tables")


def test_columns_of_folders_are_there_and_may_be_keys(spark: SparkSession, tmp_path: Path) -> None:
    """They are called as the schema calls them; in a key they are text unless the schema says otherwise."""
    for region in ("007", "7"):
        put(tmp_path / "in", f"Region={region}/1.json", '{"id":"a","lsn":1,"Region":"of the line"}\n{"id":"b"\n')
    made = table(spark, tmp_path / "in", key=["Region", "id"])
    assert made._plan.undecoded is None
    assert kept(made, tmp_path / "learned", "Region", "id") == [("007", "a"), ("7", "a")]
    letters = collected(made.dead_letters, tmp_path / "letters")
    assert sorted(row.file.split("/")[-2] for row in letters) == ["Region=007", "Region=7"]
    schema = "region int, id string, day date, lsn bigint"
    typed = table(spark, tmp_path / "in", key=["region", "id"], schema=schema, name="typed").filter("region = 7")
    assert kept(typed, tmp_path / "typed", "region", "id", "day") == [(7, "a", None)]
    with pytest.raises(TopologyError, match="key: .*region"):
        table(spark, tmp_path / "in", key=["region", "id"], schema="id string, lsn bigint")


def test_csv_is_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Keys are text, and other columns what they look like, unless a schema says what they are."""
    put(tmp_path / "in", "1.csv", 'id,city,more,lsn,name\n007,Rome,5,1,Ann\n7,Oslo,6,1,"Bob, ""B"""\n')
    learned = dict(table(spark, tmp_path / "in").changes.dtypes)
    assert (learned["id"], learned["more"], learned["city"]) == ("string", "int", "string")
    schema = "id string, lsn bigint, name string, city string"
    made = table(spark, tmp_path / "in", schema=schema)
    assert kept(made, tmp_path / "kept", "id", "name", "city") == [("007", "Ann", "Rome"), ("7", 'Bob, "B"', "Oslo")]
    with pytest.raises(TopologyError, match=r"schema: .*1.csv has no column nme; its header is id, city, more, lsn, name\."):
        table(spark, tmp_path / "in", schema="id string, lsn bigint, nme string")
    put(tmp_path / "in", "2.csv", "id,name,more,lsn,city\n9,Cy,x,1,Bonn\n")
    os.utime(tmp_path / "in" / "2.csv", (1, 1))
    with pytest.raises(StreamingQueryException, match=r"(?s)city.*name.*2\.csv"):
        kept(made.map_values("id as it", name="narrow"), tmp_path / "mixed", "id")
    place = table(spark, tmp_path / "in", schema="id string, a string, b string, lsn bigint", options={"enforceSchema": True})
    assert place._planned.row_type.names == ["id", "a", "b"]


@pytest.mark.nightly
def test_csv_goes_on_with_the_newest_header(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", "id,lsn,n\na,1,1\n")
    assert gone_on(table(spark, tmp_path / "in"), tmp_path, "id", "n") == [("a", 1)]
    put(tmp_path / "in", "2.csv", "n,coupon,lsn,id\n2,X,2,b\n3.5,Y,2,c\n")
    assert gone_on(table(spark, tmp_path / "in"), tmp_path, "id", "n") == [("a", 1), ("b", 2)]


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
    first = [("0", "1"), ("1", "1"), ("2", "2")]
    for rows, options in ((first, {"maxFilesPerTrigger": 1, "latestFirst": True}), ([*first, ("3", "1")], {})):
        assert gone_on(table(spark, folder, key=["id", "p"], name="odd", options=options), tmp_path, "id", "p") == rows
        put(folder, "p=1/late.json", '{"id":"3","lsn":1}\n')
        os.utime(folder / "p=1" / "late.json", (1_000_000_000, 1_000_000_000))
    put(tmp_path, "f[1].json", '{"id":"x","lsn":1}\n')
    assert kept(table(spark, tmp_path / "f[1].json", name="file"), tmp_path / "file", "id") == [("x",)]
