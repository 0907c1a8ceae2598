"""Versions, deletes and timestamps that a topic's values say, as the page on order has them."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin.analysis.sources import ChangeColumns
from fkjoin.analysis.topics import with_change_columns
from fkjoin.kafka import Debezium, Json
from tests.support.places import ROOT
from tests.support.sampling import sampled

PAGE = ROOT / "docs" / "order.md"
ROW = "id int, n int"

SOURCES: dict[str, list[dict[str, Any]]] = {
    "PostgreSQL": [{"lsn": 24023128}, {"lsn": 24023129}],
    "MySQL": [
        {"file": "mysql-bin.000003", "pos": 900, "row": 0},
        {"file": "mysql-bin.000003", "pos": 900, "row": 1},
        {"file": "mysql-bin.000010", "pos": 4, "row": 0},
    ],
    "SQL Server": [
        {"change_lsn": "00000027:00000758:0003", "event_serial_no": 1},
        {"change_lsn": "00000027:00000758:0003", "event_serial_no": 2},
        {"change_lsn": "00000027:0000075a:0001", "event_serial_no": 1},
        {"change_lsn": "0000002a:00000001:0001", "event_serial_no": 1},
    ],
    "Oracle": [{"commit_scn": "1000", "scn": "9"}, {"commit_scn": "1000", "scn": "10"}, {"commit_scn": "2000", "scn": "5"}],
    "MongoDB": [{"ts_ms": 1000, "ord": 1}, {"ts_ms": 1000, "ord": 2}, {"ts_ms": 2000, "ord": 1}],
}


def said(spark: SparkSession, columns: ChangeColumns, form: Any, *values: bytes | None) -> list[Row]:
    """Results of the expressions for records with these values, in their order."""
    rows = [(b"k", value, at) for at, value in enumerate(values)]
    records = spark.createDataFrame(rows, "key binary, value binary, offset bigint")
    decoded = form.decode(F.col("value"))
    with_columns, about = with_change_columns(
        records, columns, F.struct(F.lit("k").alias("id")), row=decoded.row, value_format=form, label="t"
    )
    numbers = F.array(*about.numbers).alias("numbers")
    found = with_columns(records)
    made = found.select("offset", numbers, about.gone.alias("gone"), about.time.alias("time"), about.problem.alias("problem"))
    return made.orderBy("offset").collect()


def versions_on_the_page() -> dict[str, list[str]]:
    lines = re.findall(r"^\| (\w[\w ]+) \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)
    found = {name: ast.literal_eval(text) for name, text in lines if name in SOURCES}
    return {name: one if isinstance(one, list) else [one] for name, one in found.items()}


@pytest.mark.faults
@pytest.mark.parametrize("database", sampled(list(SOURCES), ["PostgreSQL", "SQL Server"]))
def test_the_versions_on_the_page_order_the_changes_of_each_database(spark: SparkSession, database: str) -> None:
    columns = ChangeColumns(version=versions_on_the_page()[database])
    events = [{"op": "u", "after": {"id": 1}, "source": source} for source in SOURCES[database]]
    plain = [json.dumps(event).encode() for event in events]
    wrapped = [json.dumps({"payload": event}).encode() for event in events]
    found = [row.numbers for row in said(spark, columns, Debezium(ROW), *plain, *wrapped)]
    assert all(number is not None for numbers in found for number in numbers)
    half = len(found) // 2
    assert found[:half] == found[half:] == sorted(found[:half])
    assert len(set(map(tuple, found))) == half


def test_what_an_event_says_besides_its_row_may_be_used_everywhere(spark: SparkSession) -> None:
    columns = ChangeColumns("source.lsn", "op = 'd' or n < 0", "timestamp_millis(ts_ms)")
    event = {"op": "u", "ts_ms": 5, "source": {"lsn": 7}, "after": {"id": 1, "n": -1}}
    events = [event, {**event, "op": "d", "after": None}, {**event, "source": {}}, {**event, "after": {"id": 1}}]
    rows = said(spark, columns, Debezium(ROW), *[json.dumps(one).encode() for one in events], None)
    assert [row.offset for row in rows] == [0, 1, 2, 3], "a tombstone follows a delete event, which has said it"
    assert [row.gone for row in rows] == [True, True, True, False]
    assert [row.problem for row in rows] == [None, None, "no version: source.lsn is null", None]
    assert [row.time for row in rows] == [5000] * 4


def test_a_tombstone_has_no_version_of_its_own(spark: SparkSession) -> None:
    found = said(spark, ChangeColumns(["seq", "offset"]), Json("seq int, offset int"), b'{"seq": 1, "offset": 2}', None)
    assert [(row.numbers, row.problem) for row in found] == [([1, 2], None), ([None, None], "no version: seq is null")]
    (row, tombstone) = said(spark, ChangeColumns(deleted="seq = 1"), Json("seq int"), b'{"seq": 1}', None)
    assert (row.gone, tombstone.gone, tombstone.problem) == (True, False, None), "the format says that it deletes"


def test_an_expression_that_throws_makes_its_record_unusable(spark: SparkSession) -> None:
    good, bad = b'{"seq": 1, "by": 2}', b'{"seq": 1, "by": 0}'
    found = said(spark, ChangeColumns("seq div by"), Json("seq int, by int"), good, bad, good)
    assert [row.problem is None for row in found] == [True, False, True]
    assert found[1].problem.startswith("source: seq div by: ")
