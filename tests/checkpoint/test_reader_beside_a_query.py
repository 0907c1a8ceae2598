"""Look-ups beside a query that goes on, and a table as of a time; both against ``read_state``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, StateReader, read_state
from fkjoin.checkpoint.saved import newest
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS, TIME_ZONE
from tests.support import golden
from tests.support.queries import write_lines

BATCHES = 5
EARLY = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_of_a_time_the_newest_batch_that_was_there_is_chosen() -> None:
    batches = {9: 900, 10: 1000, 11: 1100}
    assert [newest("ck", batches, at, "then") for at in (900, 999, 1000, 1099, 1100, 5000)] == [9, 9, 10, 10, 11, 11]
    with pytest.raises(FkJoinError, match="no batch that .* at or before then: the oldest .*, 9"):
        newest("ck", batches, 899, "then")
    with pytest.raises(FkJoinError, match="as_of: ck has no batch .*: it has none"):
        newest("ck", {}, 899, "then")


@pytest.fixture(scope="module")
def read_meanwhile(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Any]]]:
    """A checkpoint of a query that was read while it ran; batch N gives all orders the amount N."""
    folder = tmp_path_factory.mktemp("reader")
    own = {
        PARTITIONS: "2",
        BUCKETS: "4",
        INDEX_DIR: str(folder / "index"),
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    }
    before = {name: spark.conf.get(name, None) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    checkpoint, seen = folder / "ck", list[Any]()

    def put(number: int) -> None:
        about = {"amount": float(number), "op": "u", "seq": number}
        orders = [{"id": n, "customer": f"c{n % 3}", "tags": [], **about} for n in range(20)]
        if number == 3:
            orders[7]["op"] = "d"
        write_lines(folder / "drafts", f"{number}", orders)
        (folder / f"drafts/{number}.json").rename(folder / f"orders/{number}.json")

    customers = [{"customer": f"c{n}", "name": f"n{n}", "op": "u", "seq": 1} for n in range(2)]
    write_lines(folder / "customers", "1", customers)
    (folder / "orders").mkdir()
    put(0)
    table = golden.joined(spark, folder).materialize("kept")
    query = table.changes.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    stop = threading.Event()

    def look(reader: StateReader) -> None:
        while not stop.wait(0.02):  # the query needs the cores, too
            seen.append({one["left"]["amount"] for one in reader.get_many(range(20)) if one is not None})

    with StateReader(checkpoint, "kept", max_age=0) as reader:
        threads = [threading.Thread(target=look, args=(reader,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, BATCHES):
            put(number)
            query.processAllAvailable()
        stop.set()
        for thread in threads:
            thread.join(60)
    query.stop()
    yield checkpoint, seen
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def test_a_reader_beside_a_query_sees_whole_batches(read_meanwhile: tuple[Path, list[Any]]) -> None:
    _, seen = read_meanwhile
    assert {len(amounts) for amounts in seen} == {1}
    assert len(set.union(*seen)) > 2


def test_a_reader_has_the_rows_of_read_state(spark: SparkSession, read_meanwhile: tuple[Path, list[Any]]) -> None:
    checkpoint, _ = read_meanwhile
    with StateReader(checkpoint, "kept") as reader:
        wanted = {row.id: row.asDict(recursive=True) for row in read_state(spark, checkpoint, "kept").collect()}
        assert sorted(wanted) == list(range(20))
        assert reader.get_many([*range(20), 20, -1]) == [*(wanted[key] for key in range(20)), None, None]
        assert reader.get(7) == reader.get({"id": 7})


def test_a_table_is_read_as_of_a_time(spark: SparkSession, read_meanwhile: tuple[Path, list[Any]]) -> None:
    """The times are those of the files of the commits."""
    checkpoint, _ = read_meanwhile
    commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert commits[0] > 0, "Spark has removed the first ones"
    for number in commits:
        moment = (EARLY + timedelta(minutes=number)).timestamp()
        os.utime(checkpoint / "commits" / str(number), (moment, moment))
    last = commits[-1]

    def amounts(as_of: Any) -> set[float]:
        return {row[0] for row in read_state(spark, checkpoint, "kept", as_of=as_of).select("left.amount").collect()}

    assert amounts(EARLY + timedelta(minutes=last, days=1)) == {BATCHES - 1.0}
    here = EARLY.replace(tzinfo=None) + timedelta(hours=9, minutes=last)
    zone = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    try:
        assert amounts(str(here - timedelta(seconds=1))) == {BATCHES - 2.0}
        assert amounts(here) == {BATCHES - 1.0}
    finally:
        spark.conf.set(TIME_ZONE, str(zone))
    before = EARLY + timedelta(minutes=commits[0], seconds=-1)
    for as_of, says in (
        (before, f"no batch that was committed .*, {commits[0]}, is of 2026-03-01 12:0"),
        ("yesterday evening", "as_of: 'yesterday evening' is not a time; give a datetime, or a text such as"),
        (7, "as_of: 7 is not a time; give a datetime, or a text such as"),
    ):
        with pytest.raises(FkJoinError, match=says):
            read_state(spark, checkpoint, "kept", as_of=as_of)
    with pytest.raises(FkJoinError, match="as_of: batch is given, too; give one of them"):
        read_state(spark, checkpoint, "kept", as_of=EARLY, batch=1)
