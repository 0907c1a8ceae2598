"""Operators: their rows are those that plain Python recomputes; and events, through kills."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import QueryError, Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.entries import look_up
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.sinks import Parquet
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver
from fkjoin.testing.driver import TableChange
from tests.support import golden_operators
from tests.support.driven import feed, feed_lines
from tests.support.golden_operators import KINDS, PARTS, QUERIES, Tables, final
from tests.support.plans.topologies import Sources
from tests.support.queries import write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small

CHANGES = golden_operators.log()


@pytest.mark.faults
@pytest.mark.parametrize("name", ["groups", "chain", "star", "tags", "pairs"])
@pytest.mark.usefixtures("small_tables")
def test_its_rows_are_recomputed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Moves, nulls and deletes; batches are begun again after a crash, come twice, and in another order."""
    changes = sampled(CHANGES, CHANGES[:75])
    monkeypatch.setattr(golden_operators, "log", lambda: changes)
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    build, expected = QUERIES[name]
    driver = Driver(build(Tables(spark, tmp_path), "on-change"))
    size = len(changes) // PARTS
    for part in range(PARTS):
        for source, row in changes[part * size : (part + 1) * size]:
            if source in driver.inputs:
                feed_lines(driver, source, [{**row, "lsn": row["seq"]}])
        driver.run((CRASH, DUPLICATE, REORDER)[part % 3])
        assert driver.table == expected(final(part + 1))


ORDER = "id string, buyer string, items array<struct<sku: string, n: int>>"


def orders_of(spark: SparkSession, folder: Path, **more: Any) -> Table:
    return Sources(spark, folder, {}).files("orders", "id", ORDER, **more)


def order(key: str, lsn: int, buyer: str | None = None, op: str = "u", **items: int) -> dict[str, Any]:
    return {"id": key, "buyer": buyer, "items": [{"sku": sku, "n": n} for sku, n in items.items()], "lsn": lsn, "op": op}


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Table:
    small(spark, tmp_path, buckets=2)
    return orders_of(spark, tmp_path)


def items_of(key: str, row: Row) -> list[Any]:
    """The items, but for an order that it does not like; a row may be a tuple or a dict."""
    if row.buyer == "mallory":
        raise ValueError("no")
    return [{"sku": item.sku, "n": item.n} if item.n else (item.sku, item.n) for item in row["items"]]


TWICE = {**order("4", 1), "items": [{"sku": "a", "n": 1}, {"sku": "a", "n": 2}, {"sku": "b", "n": 1}]}


def test_a_row_that_makes_a_key_twice_or_throws_is_a_dead_letter(spark: SparkSession, tmp_path: Path, orders: Table) -> None:
    """Its last good rows stay; a row whose key has a null is dropped."""
    rows = [order("1", 1, "ann", a=1), order("2", 1, "mallory", a=1), order("3", 1, "bob", a=1, b=0), TWICE]
    rows.append({**order("5", 1), "items": [{"sku": None, "n": 1}, {"sku": "c", "n": 1}]})
    lines = orders.flat_map(items_of, key=["id", "sku", "10 div n as part"], returns="sku string, n int", name="lines")
    plain = orders.flat_map(items_of, key=["id", "sku"], returns="sku string, n int", name="plain")
    numbered = "transform(items, (item, n) -> struct(item.sku, item.n, n as line))"
    by_line = orders.flat_map(numbered, key=["id", "line"], name="numbered")
    drivers = [Driver(table) for table in (lines, plain, by_line)]
    for driver in drivers:
        feed_lines(driver, "orders", rows)
        driver.run()
    assert set(drivers[0].table) == {("1", "a", 10), ("4", "a", 10), ("4", "a", 5), ("4", "b", 10), ("5", "c", 10)}
    assert (drivers[0].count["dead-letters"], drivers[0].count["null-key-dropped"]) == (2, 1)
    said = [(json.loads(one["value"])["id"], one["reason"]) for driver in drivers[:2] for one in driver.dead_letters]
    assert [key for key, _ in said] == ["2", "3", "2", "4"]
    assert said[0][1] == said[2][1] == "flat_map: ValueError: no"
    assert "10 div n as part" in said[1][1]
    assert "division by zero" in said[1][1]
    way = "number them, as in transform(items, (item, n) -> …)"
    assert said[3][1] == f'flat_map: two of its rows have the key ["4", "a"]; {way}'
    assert {key: row["sku"] for key, row in drivers[2].table.items() if key[0] == "4"} == {
        ("4", 0): "a",
        ("4", 1): "a",
        ("4", 2): "b",
    }
    rekeyed = Driver(orders.rekey("upper(buyer) as who"))
    feed_lines(rekeyed, "orders", [order("2", 1, "ann"), order("1", 1, "ann"), order("3", 1, None)])
    rekeyed.run()
    assert {key: row["id"] for key, row in rekeyed.table.items()} == {"ANN": "1"}
    feed_lines(rekeyed, "orders", [order("1", 2, "bob")])
    rekeyed.run()
    assert {key: row["id"] for key, row in rekeyed.table.items()} == {"ANN": "2", "BOB": "1"}
    failing = Driver(orders_of(spark, tmp_path, on_error="fail").flat_map("items", key=["id", "sku"], name="failing"))
    feed_lines(failing, "orders", [TWICE])
    with pytest.raises(Exception, match=r"flat_map of orders, key 4: two of its rows have .* are set aside"):
        failing.run()


def test_a_stream_that_explodes_rows_is_warned_of_once(
    spark: SparkSession, tmp_path: Path, orders: Table, caplog: pytest.LogCaptureFixture
) -> None:
    raw = spark.readStream.schema(f"{ORDER}, lsn bigint").json(str(tmp_path / "orders"))

    def warned_of(frame: DataFrame) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fkjoin"):
            Table.from_stream(frame, key="id", version="lsn", name="lines")
        return [record.getMessage() for record in caplog.records if record.name == "fkjoin"]

    exploded = raw.select("id", "lsn", F.explode("items").alias("item"))
    for frame in (exploded, raw.selectExpr("id", "lsn", "inline(items)").where("n > 0").withColumn("more", F.lit(1))):
        (said,) = warned_of(frame)
        assert "table lines: its stream makes several rows of one" in said
        assert "flat_map" in said
    lines = orders.flat_map("items", key=["id", "sku"], name="made")
    mapped = lines.changes.where("_operation != 'delete'").withColumn("lsn", F.lit(1))
    one_each = raw.selectExpr("id", "lsn", "json_tuple(buyer, 'name') as buyer")
    assert [warned_of(frame) for frame in (raw, one_each, mapped)] == [[], [], []]


ACCOUNTS = "id string, team string, points bigint"
CLICKS = "number bigint, team string, page string"
TEAMS, ROWS, BATCHES = ("a", "b", "c"), 12, 3
NOW: dict[str, Any] = {"trigger": "available-now"}


def tables(spark: SparkSession, folder: Path) -> tuple[Table, DataFrame]:
    """Accounts, and a stream of clicks; a batch reads a file of each."""
    (folder / "clicks").mkdir()
    one: dict[str, Any] = {"maxFilesPerTrigger": 1}
    accounts = Sources(spark, folder, {}).files("accounts", "id", ACCOUNTS, options=one)
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
    small(spark, tmp_path, buckets=2, partitions=2, validate=True)
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
    teams = Sources(spark, tmp_path, {}).files("teams", "team", "team string, motto string")
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
