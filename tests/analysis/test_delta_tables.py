"""Delta tables that are read: what Delta's connector gives is the table, through every kind of commit; and what is refused.

A Spark without a connector runs what needs none.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import Query, QueryError, SessionError, Table, TopologyError, fk_join, window
from fkjoin.analysis.delta_feed import DELETES, FEED, PROPERTY, of_feed
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.plan.physical import Given
from fkjoin.testing import JoinTest
from fkjoin.testing.kit import Change
from tests.support.delta_connector import has_connector
from tests.support.queries import run, table_of, write_lines
from tests.support.sessions import small
from tests.support.written import JOB

RECORDED = {PROPERTY: "true"}
NOW: Any = {"trigger": "available-now"}
Rows = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, validate=True)


@pytest.fixture
def connector(spark: SparkSession) -> None:
    if not has_connector():
        pytest.skip("this session has no connector of Delta's")


def orders(*rows: tuple[str, str | None, float | None]) -> pa.Table:
    names, text = ("order_id", "customer_id", "amount"), pa.string()
    schema = pa.schema(list(zip(names, (text, text, pa.float64()), strict=True)))
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)


def customers(*rows: tuple[str, str]) -> pa.Table:
    return pa.table({"customer_id": [key for key, _ in rows], "name": [name for _, name in rows]})


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


def joined_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    """The join of both tables as they are."""
    names = {row["customer_id"]: row["name"] for row in rows_of(folder / "customers")}
    rows = rows_of(folder / "orders")
    return {row["order_id"]: (row["amount"], names.get(row["customer_id"])) for row in rows}


def written(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {row["order_id"]: (row["amount"], row["name"]) for row in rows_of(folder / "joined")}


def of_files(spark: SparkSession, folder: Path, column: str, timestamp: str | None = None) -> Table:
    """A table of a feed in files, as Delta's stream has it."""
    feed_columns = "_change_type string, _commit_version bigint, _commit_timestamp timestamp"
    read = spark.readStream.schema(f"{feed_columns}, id string, {column}")
    stream = read.option("maxFilesPerTrigger", 1).json(str(folder))
    about: Any = {"timestamp": timestamp, "name": "t", "on_error": "fail"}
    return Table._of(of_feed(spark, Given(stream), "lake/t", "id", **about))


def test_each_type_of_change_is_what_it_does_to_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """A feed in files has what Delta's stream has, on every Spark."""
    feed = [
        ("insert", 1, "a", 1),
        ("insert", 1, "b", 1),
        ("insert", 1, "c", 1),
        ("update_postimage", 2, "a", 2),
        ("update_preimage", 2, "a", 1),  # Delta orders nothing in a commit
        ("update_postimage", 2, "d", 1),
        ("update_preimage", 2, "b", 1),
        ("insert", 3, "c", 3),
        ("delete", 3, "c", 1),
        ("delete", 4, "d", 1),
    ]
    at = "2026-01-02T03:04:05Z"
    lines = [dict(zip((*FEED, "id", "n"), (kind, commit, at, key, n), strict=True)) for kind, commit, key, n in feed]
    write_lines(tmp_path / "feed", "0", lines[:4])
    write_lines(tmp_path / "feed", "1", lines[4:])
    table = of_files(spark, tmp_path / "feed", "n bigint")
    assert table.columns == ["id", "n"]
    assert "Delta table lake/t" in table.describe()
    assert "_commit_version, _change_type" in table.describe()
    found = table_of(run(table.materialize("kept").changes, tmp_path / "ck").rows, "id")
    assert {key: row.n for (key,), row in found.items()} == {"a": 2, "c": 3}
    assert {row["_timestamp"].isoformat() for row in found.values()} == {"2026-01-02T03:04:05"}


def test_what_a_feed_cannot_have_is_refused_and_the_ways_out_have_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The rows that the Delta table has come in two batches, and out of order; then a commit adds the last one."""
    for number, hours in enumerate(((1, 3), (1, 2), (9,))):
        commit, at = (7, "2026-02-01T00:00:00Z") if number < 2 else (8, "2026-02-02T00:00:00Z")
        about = dict(zip(FEED, ("insert", commit, at), strict=True))
        rows = [{"id": f"{number}-{hour}", "at": f"2026-01-01T0{hour}:10:00Z", **about} for hour in hours]
        write_lines(tmp_path / "feed", str(number), rows)
        os.utime(tmp_path / "feed" / f"{number}.json", (1e9 + number, 1e9 + number))

    def table(timestamp: str | None = None) -> Table:
        return of_files(spark, tmp_path / "feed", "at timestamp", timestamp)

    def closing(timestamp: str | None, grace: str) -> Table:
        return table(timestamp).group_by(window("at", "1 hour"), name="w", emit="on-close", grace=grace).count()

    assert table()._planned.files == ("lake/t",)
    with pytest.raises(TopologyError, match=r"path: the table is read from Delta table .*: write to another path"):
        table().materialize("kept").to_delta("lake/t", checkpoint=tmp_path / "ck", **NOW)
    with pytest.raises(TopologyError, match=r"with_snapshot: t already starts with the rows of its Delta table: leave"):
        table().with_snapshot(tmp_path / "feed")
    for timestamp in (None, FEED[2], "coalesce(at, _commit_timestamp)"):
        with pytest.raises(TopologyError, match=r"key: windows cannot use the commit time of Delta table t: its first rows"):
            closing(timestamp, "2 hours")

    windows = closing("cast(at as timestamp)", "2 hours")
    rows = run(windows.changes, tmp_path / "windows").rows
    assert {row["window_start"].hour: row["count"] for row in rows} == {1: 2, 2: 1, 3: 1}, "the last is open"


def test_a_session_without_the_connector_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    if has_connector():
        pytest.skip("this session has Delta's connector")
    line = ".".join(spark.version.split(".")[:2])
    says = f"from_delta: Delta's connector for Spark {line} is not on the class path; start the session with the settings "
    with pytest.raises(SessionError) as found:
        Table.from_delta(spark, tmp_path / "orders", key="order_id")
    assert str(found.value).startswith(f"{says}spark.jars.packages = io.delta:delta-spark_{line}_2.13:RELEASE")


@pytest.mark.usefixtures("connector")
def test_a_join_of_two_delta_tables_follows_every_kind_of_commit(spark: SparkSession, tmp_path: Path) -> None:
    left, right = tmp_path / "orders", tmp_path / "customers"
    write_deltalake(left, orders(("o0", "c9", 9.0)))  # commits from before the changes were recorded
    DeltaTable(left).alter.set_table_properties(RECORDED)
    write_deltalake(left, orders(("o1", "c1", 1.0), ("o2", "c2", 2.0), ("o3", None, None)), mode="append")
    write_deltalake(right, customers(("c1", "Ada"), ("c2", "Grace")), configuration=RECORDED)

    def job(**options: Any) -> None:
        sides = [Table.from_delta(spark, left, key="order_id", options=options)]
        sides.append(Table.from_delta(spark, right, key="customer_id", options=options))
        joiner = ["left.amount", "right.name"]
        joined = fk_join(*sides, "customer_id", "left", joiner, "joined")
        joined.to_delta(tmp_path / "joined", checkpoint=tmp_path / "ck", **NOW).awaitTermination()
        assert written(tmp_path) == joined_of(tmp_path)

    job()
    assert len(written(tmp_path)) == 4
    DeltaTable(left).update(predicate="order_id = 'o1'", updates={"order_id": "'o7'", "customer_id": "'c2'"})
    DeltaTable(left).delete("order_id = 'o2'")
    DeltaTable(right).update(predicate="customer_id = 'c2'", updates={"name": "'Grace H.'"})
    source = orders(("o3", "c1", 3.0), ("o4", "c2", 4.0), ("o0", "", None))
    merge = DeltaTable(left).merge(source, "t.order_id = s.order_id", source_alias="s", target_alias="t")
    merge.when_matched_delete("s.amount is null").when_matched_update_all().when_not_matched_insert_all().execute()
    DeltaTable(left).optimize.compact()
    job()
    assert written(tmp_path).keys() == {"o3", "o4", "o7"}
    write_deltalake(left, orders(("o3", "c2", 3.0), ("o5", "c1", 5.0)), mode="overwrite")
    DeltaTable(right).delete("customer_id = 'c1'")
    DeltaTable(left).vacuum(dry_run=False)
    job(maxFilesPerTrigger=1)
    assert written(tmp_path) == {"o3": (3.0, "Grace H."), "o5": (5.0, None)}


@pytest.mark.usefixtures("connector")
def test_a_new_column_is_left_out_and_a_table_made_anew_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "customers"
    write_deltalake(path, customers(("c1", "Ada")), configuration=RECORDED)

    def job(**more: Any) -> Query:
        kept = Table.from_delta(spark, path, key="customer_id").materialize("kept")
        return kept.to_delta(tmp_path / "kept", checkpoint=tmp_path / "ck", **more)

    query = job()
    query.processAllAvailable()
    more = customers(("c2", "Grace")).append_column("town", pa.array(["York"]))
    write_deltalake(path, more, mode="append", schema_mode="merge")
    with pytest.raises(QueryError, match=r"(?s)Detected schema change.*the checkpoint keeps the columns, so a new one is left"):
        query.awaitTermination()
    job(**NOW).awaitTermination()
    rows = sorted(rows_of(tmp_path / "kept"), key=str)
    assert rows == customers(("c1", "Ada"), ("c2", "Grace")).to_pylist()
    named = Table.from_delta(spark, path, key="customer_id", schema="customer_id string, town string")
    assert named.columns == ["customer_id", "town"]
    DeltaTable(path).alter.set_table_properties({PROPERTY: "false"})
    write_deltalake(path, customers(("c3", "Mary")), mode="append", schema_mode="merge")
    DeltaTable(path).alter.set_table_properties(RECORDED)
    with pytest.raises(QueryError, match=r"what changed while it was not is not recorded: start with a new checkpoint"):
        job(**NOW).awaitTermination()
    shutil.rmtree(path)
    write_deltalake(path, customers(("c4", "Emmy")), configuration=RECORDED)
    with pytest.raises(QueryError, match=r"(?s)unexpected Delta table.*another Delta table than the checkpoint's: start with"):
        job(**NOW).awaitTermination()


@pytest.mark.usefixtures("connector")
def test_what_cannot_be_read_is_refused_and_what_is_named_is_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "customers"
    with pytest.raises(TopologyError, match="path: there is no Delta table at .*customers; the JVM takes"):
        Table.from_delta(spark, path, key="customer_id")
    write_deltalake(path, customers(("c1", "Ada")))
    with pytest.raises(TopologyError, match=r"path: .* does not record its changes: set its property delta.enableChange"):
        Table.from_delta(spark, path, key="customer_id")
    DeltaTable(path).alter.set_table_properties(RECORDED)
    table = Table.from_delta(spark, path, key="customer_id")
    assert (table.name, table.columns) == ("customers", ["customer_id", "name"])
    with pytest.raises(TopologyError, match=r"path: the table is read from Delta table .*: write to another path"):
        table.materialize("kept").to_delta(f"file:{path}/", checkpoint=tmp_path / "ck", **NOW)
    with pytest.raises(TopologyError, match=r"options: startingVersion is from_delta's own, .* leave it out"):
        Table.from_delta(spark, path, key="customer_id", options={"startingVersion": 0})
    for schema, says in (
        ("customer_id string, town string", r"has no column 'town'; name some of customer_id, name"),
        ("customer_id string, name bigint", r"column name is bigint, and string in Delta table .*; give it that type"),
    ):
        with pytest.raises(TopologyError, match=f"schema: .*{says}"):
            Table.from_delta(spark, path, key="customer_id", schema=schema)
    assert Table.from_delta(spark, path, key="customer_id", schema="customer_id string, name string").columns == table.columns


@pytest.mark.usefixtures("connector")
def test_a_job_file_reads_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "customers", customers(("c1", "Ada")), configuration=RECORDED)
    file, settings = tmp_path / "job.toml", '"delta"\nkey = "customer_id"\nmaterialize = true'
    text = JOB.replace('"fkjoin"', settings).replace("{folder}/kept", str(tmp_path / "customers"))
    file.write_text(text.format(folder=tmp_path))
    job = Job(read_job(file), spark)
    assert job.tables["kept"].columns == ["customer_id", "name"]
    assert f"Delta table {tmp_path}/customers" in job.describe()
    file.write_text(text.replace("/out", "/customers").format(folder=tmp_path))
    with pytest.raises(FkJoinError, match=r"sinks.out.path: this is the folder of tables.kept"):
        Job(read_job(file), spark)


@dataclass
class Feed:
    """A Delta table that records its changes, as its protocol says: a commit touches a row once, or overwrites all rows."""

    rng: random.Random
    rows: Rows = field(default_factory=dict)
    commits: list[list[tuple[str, str, dict[str, Any]]]] = field(default_factory=list)
    snapshots: list[Rows] = field(default_factory=list)

    def commit(self, row: Callable[[], dict[str, Any]]) -> None:
        """Update, move to another key, delete and insert rows; or overwrite the table."""
        before, feed = dict(self.rows), list[tuple[str, str, dict[str, Any]]]()
        overwrites = self.rng.random() < 0.2
        for key, old in before.items():
            what = "delete" if overwrites else self.rng.choice(("keep", "keep", "delete", "update", "move"))
            if what == "delete":
                feed.append(("delete", key, self.rows.pop(key)))
            elif what != "keep":
                free = [name for name in "abcd" if name not in self.rows]
                target = self.rng.choice(free) if what == "move" and free else key
                del self.rows[key]
                self.rows[target] = row()
                feed += [("update_preimage", key, old), ("update_postimage", target, self.rows[target])]
        for key in "abcd":
            if key not in self.rows and self.rng.random() < 0.5:
                self.rows[key] = row()
                feed.append(("insert", key, self.rows[key]))
        self.commits.append(feed)
        self.snapshots.append(dict(self.rows))

    def read_from(self, start: int) -> list[tuple[str, int, str, dict[str, Any]]]:
        """List the rows that were there after a commit, as inserts of it, and the changes of later commits."""
        read = [("insert", start, key, row) for key, row in self.snapshots[start].items()]
        later = [(kind, at, key, row) for at in range(start + 1, len(self.commits)) for kind, key, row in self.commits[at]]
        return read + later


def changes(side: str, feed: Feed, start: int) -> list[Change]:
    """The changes of a table as the columns of the feed order and delete them."""
    return [
        Change(side, key, None if kind in DELETES else row, 2 * at + (kind not in DELETES))
        for kind, at, key, row in feed.read_from(start)
    ]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_a_join_of_two_feeds_ends_as_the_join_of_both_tables(seed: int, commits: int, batch: int) -> None:
    """Commits and their rows are read in any order, and some of them twice."""
    rng = random.Random(seed)
    orders, customers = Feed(rng), Feed(rng)
    for _ in range(commits):
        orders.commit(lambda: {"customer": rng.choice("abcd"), "n": rng.randrange(3)})
        customers.commit(lambda: {"region": rng.randrange(3)})
    read = [
        *changes("left", orders, rng.randrange(commits)),
        *changes("right", customers, rng.randrange(commits)),
    ]
    read += rng.choices(read, k=len(read) // 3) if read else []
    rng.shuffle(read)
    test = JoinTest(extractor="customer", how="left", joiner=lambda left, right: [left, right])
    for at in range(0, len(read), batch):
        test.feed(*read[at : at + batch])
    assert test.table == {key: [row, customers.rows.get(row["customer"])] for key, row in orders.rows.items()}
