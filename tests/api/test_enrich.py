"""``table.enrich``: events from files to sinks, each once and with exact aggregates, through kills and repeated batches."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import QueryError, Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.events import Enriched
from fkjoin.sinks import Parquet
from fkjoin.testing import CRASH, Driver
from fkjoin.testing.driver import TableChange
from tests.support.driven import feed
from tests.support.queries import write_lines
from tests.support.sessions import small

ACCOUNTS = "id string, team string, points bigint, lsn bigint, op string"
CLICKS = "number bigint, team string, page string"
TEAMS, ROWS, BATCHES = ("a", "b", "c"), 12, 3
NOW: dict[str, Any] = {"trigger": "available-now"}


def tables(spark: SparkSession, folder: Path) -> tuple[Table, DataFrame]:
    """Accounts, and a stream of clicks; a batch reads a file of each."""
    for name in ("accounts", "clicks"):
        (folder / name).mkdir(exist_ok=True)
    about: dict[str, Any] = {"key": "id", "version": "lsn", "deleted": "op = 'd'", "format": "json", "schema": ACCOUNTS}
    one: dict[str, Any] = {"maxFilesPerTrigger": 1}
    accounts = Table.from_files(spark, folder / "accounts", options=one, **about)
    return accounts, spark.readStream.schema(CLICKS).options(**one).json(str(folder / "clicks"))


def write_batches(folder: Path) -> list[dict[str, tuple[int, int]]]:
    """In each batch accounts go to other teams, with all of their points, and each team has a click.

    Returns the points and the number of accounts of each team, after each batch.
    """
    rng, lsn, number = random.Random(904), 0, 0
    teams: dict[str, str] = {}
    after = []
    for batch in range(BATCHES):
        moves = [f"x{at}" for at in range(ROWS)] if not batch else rng.sample([f"x{at}" for at in range(ROWS)], 8)
        rows = [{"id": key, "team": rng.choice(TEAMS), "points": 10, "lsn": (lsn := lsn + 1), "op": "u"} for key in moves]
        teams |= {row["id"]: row["team"] for row in rows}
        sizes = Counter(teams.values())
        after.append({team: (10 * sizes[team], sizes[team]) for team in sizes})
        clicks = [{"number": (number := number + 1), "team": team, "page": "p"} for team in (*TEAMS, "nobody", None)]
        for name, lines in (("accounts", rows), ("clicks", clicks)):
            write_lines(folder / name, str(batch), lines)
            os.utime(folder / name / f"{batch}.json", (1_700_000_000 + batch,) * 2)  # batches read the oldest file first
    return after


def killing(flag: str) -> Any:
    """A step of a stream whose worker is killed while the flag is there, once."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if Path(flag).exists():
                Path(flag).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return step


class Twice:
    """A sink that fails when it has a batch, once: the query repeats it."""

    def __init__(self, sink: Any, flag: Path) -> None:
        self._sink, self._flag, self.place = sink, flag, sink.place

    def begin(self, table: Any) -> Any:
        write, flag = self._sink.begin(table), self._flag

        def failing(batch: Any, query: str, number: int) -> None:
            write(batch, query, number)
            if number == 2 and not flag.exists():
                flag.touch()
                raise RuntimeError("it has the batch")

        return failing


def test_each_event_is_sent_once_with_exact_sums_through_kills_and_repeated_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A worker is killed in the first batch, and the third is written and repeated."""
    small(spark, tmp_path, partitions=2)
    accounts, clicks = tables(spark, tmp_path)
    after = write_batches(tmp_path)
    flag = tmp_path / "kill"
    flag.touch()
    sums = accounts.group_by("team", name="sums").agg(total=agg.sum("points"), n=agg.count())
    seen = sums.enrich(
        clicks.mapInArrow(killing(str(flag)), clicks.schema),
        on="team",
        how="left",
        name="seen",
        events_name="clicks",
        validate=True,
    )
    assert seen.columns == ["number", "team", "page", "total", "n"]
    failed = []
    for _ in range(3):
        lake = Twice(Parquet(tmp_path / "lake"), tmp_path / "failed")
        query = seen.to(lake, checkpoint=tmp_path / "ck", **NOW)
        try:
            query.awaitTermination()
        except QueryError as error:
            failed.append(str(error))
    assert len(failed) == 2, failed
    found = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert sorted(row.number for row in found) == list(range(1, 5 * BATCHES + 1))
    for batch in range(BATCHES):
        rows = [row for row in found if int(row.batch.partition("-")[0]) == batch]
        assert {row.number for row in rows} == set(range(5 * batch + 1, 5 * batch + 6))
        sums_seen = {row.team: (row.total, row.n) for row in rows if row.total is not None}
        assert sums_seen == after[batch], "no half of a move is seen, and no move of another batch"
        assert sum(n for _, n in sums_seen.values()) == ROWS
        assert {row.team for row in rows if row.total is None} == {"nobody", None, *TEAMS} - set(sums_seen)
    assert verify(spark, tmp_path / "ck") == []
    (entry,) = look_up(saved_stores(spark, tmp_path / "ck"), "seen", "a")
    last = {row.team: row for row in found if row.number > 5 * (BATCHES - 1)}
    assert (entry["kind"], entry["row"]) == ("row", {"total": last["a"].total, "n": last["a"].n})


def test_events_go_on_through_two_tables_and_a_crash_and_dead_letters_say_why(spark: SparkSession, tmp_path: Path) -> None:
    """Enriched by a join and by a source; the stream between is a plain DataFrame of Spark's, too.  In memory."""
    accounts, clicks = tables(spark, tmp_path)
    (tmp_path / "teams").mkdir()
    about: dict[str, Any] = {"version": "lsn", "format": "json", "schema": "team string, motto string, lsn bigint"}
    teams = Table.from_files(spark, tmp_path / "teams", key="team", **about)
    joined = fk_join(accounts, teams, "team", "left", ["left.points", "right.motto"], "joined")
    first = joined.enrich(clicks.withColumn("pages", F.col("page")), on="concat('x', cast(page as int))", name="first")
    slogans = teams.map_values("motto as slogan", name="slogans")
    second = slogans.enrich(first, on=F.col("team"), how="left", name="second")
    assert second.columns == ["number", "team", "page", "pages", "points", "motto", "slogan"]
    driver, named = Driver(second), first._planned.inputs[1].name
    account = {"team": "a", "points": 7}
    feed(driver, [("accounts", "x1", account), ("teams", "a", {"motto": "go"})])
    clicked = [("a", "1"), ("b", "1"), (None, "1"), ("a", "2"), ("a", "no number"), ("a", None)]
    for number, (team, page) in enumerate(clicked):
        driver.input(named).event({"number": number, "team": team, "page": page})
    assert {row["number"]: (row["points"], row["motto"], row["slogan"]) for row in map(row_of, driver.run(CRASH))} == {
        0: (7, "go", "go"),
        1: (7, "go", None),
        2: (7, "go", None),
    }
    wanted = {"events-without-row": 2 + 2, "dead-letters": 1}
    assert {name: driver.count[name] for name in wanted} == wanted
    (letter,) = [letter for letter in driver.dead_letters if letter["value"] is not None]
    assert (letter["table"], json.loads(letter["value"])["number"]) == (named, 4)
    assert letter["reason"].startswith("enrich: concat('x', cast(page as int)): ")
    feed(driver, [("teams", "a", {"motto": "stop"})])
    assert driver.run() == [], "a later change of a table sends nothing"
    driver.input(named).event({"number": 9, "team": "a", "page": "1"})
    (row,) = map(row_of, driver.run())
    assert (row["number"], row["points"], row["motto"], row["slogan"]) == (9, 7, "stop", "stop")

    on = "concat('x', cast(page as int))"
    strict = accounts.enrich(clicks.withColumnRenamed("team", "side"), on=on, on_error="fail", events_name="strict")
    failing = Driver(strict)
    failing.input("strict").event({"number": 4, "side": "a", "page": "no number"})
    with pytest.raises(Exception, match="enrich of strict"):
        failing.run()


def row_of(change: TableChange) -> dict[str, Any]:
    assert change.row is not None
    return change.row


def test_events_are_made_by_enrich_alone(spark: SparkSession, tmp_path: Path) -> None:
    accounts, clicks = tables(spark, tmp_path)
    fine = accounts.enrich(clicks.withColumnRenamed("team", "side"), on="page", name="fine")
    assert repr(fine).startswith("Enriched[fine; columns: number, side, page, ")
    with pytest.raises(TopologyError, match=r"fine: these are events, which have no key, and postgres .* keeps rows by a key"):
        fine.to_postgres("t", "host=127.0.0.1", checkpoint=tmp_path / "p")
    with pytest.raises(TypeError, match="write table.enrich"):
        Enriched()
