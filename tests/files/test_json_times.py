"""JSON lines with times, decimals and bytes: as in topics, by workers and by Spark's expressions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table
from tests.support.queries import run, table_of
from tests.support.sessions import small

SCHEMA = "id int, lsn bigint, at timestamp, day date, price decimal(9,2), data binary, it string, tags map<string, string>"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("by_workers", [True, False])
def test_a_number_is_no_instant_and_texts_are_read(spark: SparkSession, tmp_path: Path, by_workers: bool, zone: str) -> None:
    small(spark, tmp_path)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        folder = tmp_path / "lines"
        folder.mkdir()
        good = {"id": 1, "lsn": 1, "at": "2023-07-26T10:22:47.048491Z", "day": "2023-07-26", "price": 12.5, "data": "q80="}
        local = {"id": 3, "lsn": 3, "at": "2023-07-26 19:22:47.048491", "it": {"a": 1}, "tags": {"k": "v"}}
        lines = [good | {"it": 1}, {"id": 2, "lsn": 2, "at": 1690366967048491}, local]
        (folder / "0.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        table = Table.from_files(
            spark, folder, key="id", version="lsn", schema=SCHEMA, timestamp="at", format="json", name="lines"
        )
        assert table._plan.undecoded is not None
        changes: Any = table.changes
        if by_workers:
            changes = table.materialize("kept").changes
        found = table_of(run(changes, tmp_path / "checkpoint").rows, "id")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert sorted(found) == [(1,), (3,)]
    one, other = found[1,], found[3,]
    assert (str(one["day"]), str(one["price"]), bytes(one["data"]), one["it"]) == ("2023-07-26", "12.50", b"\xab\xcd", "1")
    assert (other["it"], other["tags"]) == ('{"a":1}', {"k": "v"})
