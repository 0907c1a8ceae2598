"""Quotes in CSV, as RFC 4180 has them: with lines within, doubled for one; what has no end is no row."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.files import collected, kept, put, table

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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values_are_whole_whatever_is_in_them(spark: SparkSession, tmp_path: Path, end: str) -> None:
    """With a schema, and with columns that are learned."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([("id", "lsn", "some\ntext", "note"), *ROWS])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_bytes(text.getvalue().encode())
    more = {"schema": "id string, lsn bigint, `some\ntext` string, note string"} if end == "\n" else {}
    found = kept(table(spark, tmp_path / "in", **more), tmp_path / "kept", "id", "some\ntext", "note")
    assert found == sorted((name, *texts) for name, _, *texts in ROWS)


def test_options_that_are_given_count(spark: SparkSession, tmp_path: Path) -> None:
    about: dict[str, Any] = {"schema": SCHEMA, "format": "csv"}
    quotes: dict[str, Any] = {"sep": ";", "QUOTE": "'", "Escape": "\\", "HEADER": False}
    put(tmp_path / "in", "1.csv", "'a';1;'it\\'s ;'\n'b';1;'two\nlines'\n")
    whole = table(spark, tmp_path / "in", options=quotes, **about)
    assert kept(whole, tmp_path / "1", "id", "note") == [("a", "it's ;"), ("b", "two\nlines")]
    lines = table(spark, tmp_path / "in", options={**quotes, "MULTILINE": False}, **about)
    assert kept(lines, tmp_path / "2", "id", "note")[1] == ("b", "two")


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
    rows = kept(made, tmp_path / "rows", "id")
    assert "".join(name for (name,) in rows) == "".join(files.values())
    letters = collected(made.dead_letters, tmp_path / "letters")
    names = sorted(Path(letter.file).name for letter in letters)
    assert names == [f"{place}.csv" for place in range(len(files))]
    for letter in letters:
        assert "never" in bytes(letter.value).decode()
        reasons = 'a quote has no end; write "" for a quote within quotes', "not a CSV"
        assert any(reason in letter.reason for reason in reasons)
