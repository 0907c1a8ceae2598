"""Columns of CSV by the names in headers; quotes as RFC 4180 has them: with lines within, doubled for one.

A quote that has no end is in no row.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.stages.counters import metrics_name
from tests.support.files import collected, gone_on, kept, put, table
from tests.support.queries import run
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")

ROWS = [
    ("plain", 1, "x", "y"),
    ("two\nlines", 1, "first\nsecond", "third\n\n\nsixth"),
    ("a record\n2,in,it", 1, "9,9\nnine,1,a,b\n", "in the middle\nk,1,a,b\nend"),
    ('"quotes"', 1, '"', 'said "this, that"'),
    ("back\\slash", 1, "\\", 'ends with \\"'),
    ("separators", 1, ",", ",,"),
    ("blanks", 1, "  ", " \n "),
    ("last", 1, "x", "hello, you\n"),
]
SCHEMA = "id string, lsn bigint, note string"


def shown(made: Table, checkpoint: Path, *names: str) -> list[tuple[Any, ...]]:
    """These columns of the rows that are read, in order."""
    rows = collected(made.changes, checkpoint)
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.mark.faults
@pytest.mark.parametrize("end", sampled(["\n", "\r\n"], ["\r\n"]))
def test_values_are_whole_whatever_is_in_them(spark: SparkSession, tmp_path: Path, end: str) -> None:
    """With a schema, and with columns that are learned."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([("id", "lsn", "some\ntext", "note"), *ROWS])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_bytes(text.getvalue().encode())
    more = {"schema": "id string, lsn bigint, `some\ntext` string, note string"} if end == "\n" else {}
    found = shown(table(spark, tmp_path / "in", **more), tmp_path / "kept", "id", "some\ntext", "note")
    assert found == sorted((name, *texts) for name, _, *texts in ROWS)


def test_options_that_are_given_count(spark: SparkSession, tmp_path: Path) -> None:
    quotes: dict[str, Any] = {"sep": ";", "QUOTE": "'", "Escape": "\\", "HEADER": False, "MULTILINE": False}
    put(tmp_path / "in", "1.csv", "'a';1;'it\\'s ;'\n'b';1;'two\nlines'\n")
    lines = table(spark, tmp_path / "in", options=quotes, schema=SCHEMA, format="csv")
    assert shown(lines, tmp_path / "kept", "id", "note")[:2] == [("a", "it's ;"), ("b", "two")]


UNENDED = {
    "id,lsn,note": {
        'a,1,x\nb,1,"never\nc,1,y\nd,1,z\n': "a",
        'e,1,x\nb,1,"never\nc,1,"y"\nd,1,"z, z"\n': "de",
        'f,1,x\nb,1,"""never"" she\nsaid"\ng,1,y\n': "fg",
    },
    "note,id,lsn": {
        'x,a,1\n"never,b,1\ny,c,1\n"z",d,1\nx,e,1\n': "ae",
        'x,f,1\n"never,b,1\ny,c,1\n': "f",
    },
}
"""Headers, with texts of files, and the ids of their rows."""


@pytest.mark.parametrize("header", UNENDED)
def test_a_quote_without_an_end_hides_no_record(spark: SparkSession, tmp_path: Path, header: str) -> None:
    files = UNENDED[header]
    for place, text in enumerate(files):
        put(tmp_path / "in", f"{place}.csv", f"{header}\n{text}")
    made = table(spark, tmp_path / "in", schema=SCHEMA, name="t")
    rows = shown(made, tmp_path / "rows", "id")
    assert "".join(name for (name,) in rows) == "".join(files.values())
    letters = collected(made.dead_letters, tmp_path / "letters")
    names = sorted(Path(letter.file).name for letter in letters)
    assert names == [f"{place}.csv" for place in range(len(files))]
    for letter in letters:
        assert "never" in bytes(letter.value).decode()
        reasons = 'a quote has no end; write "" for a quote within quotes', "not a CSV"
        assert any(reason in letter.reason for reason in reasons)


def test_csv_is_read_by_the_names_of_its_header(spark: SparkSession, tmp_path: Path) -> None:
    """Keys are text, and other columns what they look like, unless a schema tells; one without a name is left out."""
    put(tmp_path / "in", "1.csv", ",id,city,more,lsn,name\n0,007,Rome,5,1,Ann\n1,7,Oslo,6,1,Bob\n")
    learned = table(spark, tmp_path / "in")
    types = dict(learned.changes.dtypes)
    assert (types["id"], types["more"], types["city"]) == ("string", "int", "string")
    assert learned._planned.row_type.names == ["id", "city", "more", "name"]
    assert shown(learned, tmp_path / "learned", "id", "name", "more") == [("007", "Ann", 5), ("7", "Bob", 6)]
    made = table(spark, tmp_path / "in", schema="id string, lsn bigint, name string, city string")
    assert made._planned.row_type.names == ["id", "name", "city"]
    header = r"1.csv has no column _c0; its header is \(no name\), id, city, more, lsn, name\."
    with pytest.raises(TopologyError, match=f"schema: .*{header}"):
        table(spark, tmp_path / "in", schema="_c0 int, id string, lsn bigint")
    put(tmp_path / "in", "2.csv", ",id,name,more,lsn,city\n2,9,Cy,x,1,Bonn\n")
    os.utime(tmp_path / "in" / "2.csv", (1, 1))
    with pytest.raises(StreamingQueryException, match=r"(?s)city.*name.*2\.csv"):
        kept(made.map_values("id as it", name="narrow"), tmp_path / "mixed", "id")
    place = table(spark, tmp_path / "in", schema="id string, a string, b string, lsn bigint", options={"enforceSchema": True})
    assert place._planned.row_type.names == ["id", "a", "b"]
    put(tmp_path / "twice", "1.csv", "id,lsn,x,X\na,1,2,3\n")
    with pytest.raises(TopologyError, match=r"path: .*1\.csv has several columns X in its header"):
        table(spark, tmp_path / "twice")


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
