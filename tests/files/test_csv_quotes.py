"""Quotes in CSV, as RFC 4180 has them: with lines within, doubled for one; what has no end is no row."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.files import collected, kept, put, table

pytestmark = pytest.mark.usefixtures("own_rules")

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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values_are_whole_whatever_is_in_them(spark: SparkSession, tmp_path: Path, end: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([("id", "lsn", "some\ntext", "note"), *ROWS])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_bytes(text.getvalue().encode())
    schema = "id string, lsn bigint, `some\ntext` string, note string"
    for way, more in {"named": {"schema": schema}, "learned": {}}.items():
        made = table(spark, tmp_path / "in", name=way, **more)
        found = kept(made, tmp_path / way, "id", "some\ntext", "note")
        assert found == sorted((name, *texts) for name, _, *texts in ROWS)


def test_options_that_are_given_count(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.csv", "id;lsn;note\n'a';1;'it''s ;'\n'b';1;'two\nlines'\n")
    about: dict[str, Any] = {"schema": "id string, lsn bigint, note string", "format": "csv"}
    wanted = [("a", "it's ;"), ("b", "two\nlines")]
    quotes = {"sep": ";", "QUOTE": "'"}
    assert kept(table(spark, tmp_path / "in", options=quotes, **about), tmp_path / "1", "id", "note") == wanted
    lines = table(spark, tmp_path / "in", options={**quotes, "MULTILINE": False}, **about)
    assert kept(lines, tmp_path / "2", "id", "note")[1] == ("b", "two")
    put(tmp_path / "back", "1.csv", 'id,lsn,note\na,1,"say \\"so\\""\n')
    escaped = table(spark, tmp_path / "back", options={"Escape": "\\"}, **about)
    assert kept(escaped, tmp_path / "3", "id", "note") == [("a", 'say "so"')]
    put(tmp_path / "bare", "1.csv", "a,1,x\n")
    bare = table(spark, tmp_path / "bare", options={"HEADER": False}, **about)
    assert kept(bare, tmp_path / "4", "id", "note") == [("a", "x")]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('id,lsn,note\na,1,x\nb,1,"never\nc,1,y\nd,1,z\n', ["a"]),
        ('id,lsn,note\na,1,x\nb,1,"never\nc,1,"y"\nd,1,"z, z"\n', ["a", "d"]),
        ('note,id,lsn\nx,a,1\n"never,b,1\ny,c,1\n"z",d,1\nx,e,1\n', ["a", "e"]),
        ('note,id,lsn\nx,a,1\n"never,b,1\ny,c,1\n', ["a"]),
        ('lsn,id\n1,"a"\n1,"b\n1,c\n', ["a"]),
        ('id,lsn,note\na,1,x\nb,1,"""never"" she\nsaid"\nc,1,y\n', ["a", "c"]),
    ],
)
def test_a_quote_without_an_end_takes_no_record_with_it_unseen(
    spark: SparkSession, tmp_path: Path, text: str, rows: list[str]
) -> None:
    put(tmp_path / "in", "1.csv", text)
    schema = "id string, lsn bigint, note string" if "note" in text else "id string, lsn bigint"
    made = table(spark, tmp_path / "in", schema=schema, name="t")
    assert [name for (name,) in kept(made, tmp_path / "rows", "id")] == rows
    (letter,) = collected(made.dead_letters, tmp_path / "letters")
    assert "never" in bytes(letter.value).decode() or "note" not in text
    assert letter.reason.endswith('a quote has no end; write "" for a quote within quotes') or "not a CSV" in letter.reason
