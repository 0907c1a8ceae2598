"""Each kind of operator, in memory: after every part of a log, its rows are those that plain Python recomputes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin.testing import CRASH, Driver
from tests.support.driven import feed_lines
from tests.support.golden_operators import KINDS, PARTS, QUERIES, Tables, final, log


@pytest.mark.parametrize("name", ["groups", "chain", "star", "tags", "pairs"])
@pytest.mark.usefixtures("small_tables")
def test_its_rows_are_recomputed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Moves, nulls and deletes; each batch is begun again after a crash."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    build, expected = QUERIES[name]
    driver = Driver(build(Tables(spark, tmp_path), "on-change"))
    changes, size = log(), len(log()) // PARTS
    for part in range(PARTS):
        for source, row in changes[part * size : (part + 1) * size]:
            if source in driver.inputs:
                feed_lines(driver, source, [{**row, "lsn": row["seq"]}])
        driver.run(CRASH)
        assert driver.table == expected(final(part + 1))
