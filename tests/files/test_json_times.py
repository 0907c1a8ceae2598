"""JSON lines with times, decimals and bytes: as in topics, by workers and by Spark's expressions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin.sessions.settings import TIME_ZONE
from tests.support.files import table
from tests.support.queries import run, table_of, write_lines

pytestmark = pytest.mark.usefixtures("small_tables")

SCHEMA = "id int, lsn bigint, at timestamp, day date, price decimal(9,2), data binary, it string, tags map<string, string>"


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    yield
    spark.conf.set(TIME_ZONE, str(before))


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize("by_workers", [True, False])
def test_a_number_is_no_instant_and_texts_are_read(spark: SparkSession, tmp_path: Path, by_workers: bool) -> None:
    good = {"id": 1, "lsn": 1, "at": "2023-07-26T10:22:47.048491Z", "day": "2023-07-26", "price": 12.5, "data": "q80="}
    local = {"id": 3, "lsn": 3, "at": "2023-07-26 19:22:47.048491", "it": {"a": 1}, "tags": {"k": "v"}}
    write_lines(tmp_path / "lines", "0", [good | {"it": 1}, {"id": 2, "lsn": 2, "at": 1690366967048491}, local])
    made = table(spark, tmp_path / "lines", schema=SCHEMA, timestamp="at")
    assert made._plan.undecoded is not None
    changes: Any = made.materialize("kept").changes if by_workers else made.changes
    found = table_of(run(changes, tmp_path / "checkpoint").rows, "id")
    assert sorted(found) == [(1,), (3,)]
    one, other = found[1,], found[3,]
    assert (str(one["day"]), str(one["price"]), bytes(one["data"]), one["it"]) == ("2023-07-26", "12.50", b"\xab\xcd", "1")
    assert (other["it"], other["tags"]) == ('{"a":1}', {"k": "v"})
