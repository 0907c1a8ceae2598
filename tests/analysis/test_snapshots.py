"""Tables that begin with a snapshot, in queries: read by workers and by Spark, restarted, looked at, and refused."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, fk_join, read_state
from fkjoin.analysis.snapshots import _is_one_of
from fkjoin.sinks import Kafka
from fkjoin.testing import REORDER, Driver
from tests.support.plans.topologies import Sources
from tests.support.queries import run, table_of, values, write_lines
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, validate=True)


def snapshot(folder: Path, **columns: Any) -> Path:
    """A folder of Parquet files, a row each."""
    folder.mkdir(parents=True)
    rows = pa.table(columns)
    for row in range(len(rows)):
        pq.write_table(rows.slice(row, 1), folder / f"{row}.parquet")
    return folder


def orders(spark: SparkSession, folder: Path) -> Table:
    return Sources(spark, folder, {}).files("orders", "id", "id string, customer bigint, n int")


def taken(folder: Path) -> Path:
    """A snapshot of orders, which has columns more than the table."""
    ids, n = ["gone", "kept", "new", None], pa.array([1, 2, 3, 4], pa.int32())
    op, customer = pa.nulls(4, pa.string()), pa.array([1, 1, 2, 1], pa.int64())
    return snapshot(folder / "taken", more=[0.5] * 4, n=n, id=ids, customer=customer, op=op)


def customers(spark: SparkSession, folder: Path) -> Table:
    """A stream that Spark's expressions read."""
    (folder / "customers").mkdir(exist_ok=True)
    read = spark.readStream.schema("id bigint, name string, lsn bigint").json(str(folder / "customers"))
    table = Table.from_stream(read, key="id", version="lsn + 1", name="customers")
    place = folder / "people"
    if not place.exists():
        snapshot(place, id=pa.array([1, 2], pa.int64()), name=["Ada", "Bo"], lsn=pa.nulls(2, pa.int64()))
    return table.with_snapshot(place)


def change(key: str, customer: int, n: int, lsn: int, op: str = "u") -> dict[str, Any]:
    return {"id": key, "customer": customer, "n": n, "lsn": lsn, "op": op}


def test_a_query_begins_with_the_rows_of_snapshots_and_goes_on_with_changes(spark: SparkSession, tmp_path: Path) -> None:
    place = taken(tmp_path)

    def joined() -> Table:
        begun = orders(spark, tmp_path).with_snapshot(place).filter("n > 0")
        named = ["left.n", "left.customer", "right.name"]
        return fk_join(begun, customers(spark, tmp_path), "customer", joiner=named, name="joined")

    def shown(rows: list[Any]) -> dict[Any, Any]:
        return {key: tuple(found) for (key,), found in values(table_of(rows, "id"), ["n", "name"]).items()}

    write_lines(tmp_path / "orders", "1", [change("gone", 1, 9, 1, "d"), change("kept", 1, 5, -4), change("more", 2, 6, 3)])
    first = run(joined().changes, tmp_path / "ck").rows
    assert shown(first) == {"kept": (5, "Ada"), "new": (3, "Bo"), "more": (6, "Bo")}
    assert {row.id: row._left_version for row in first}["new"] == [-(1 << 63)]
    write_lines(tmp_path / "orders", "2", [change("new", 1, 0, 4), change("more", 1, 6, 5)])
    write_lines(tmp_path / "customers", "1", [{"id": 1, "name": "Ada L.", "lsn": 1}])
    second = run(joined().changes, tmp_path / "ck").rows
    assert shown([*first, *second]) == {"kept": (5, "Ada L."), "more": (6, "Ada L.")}


def test_the_driver_feeds_rows_of_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    driver = Driver(orders(spark, tmp_path).with_snapshot(taken(tmp_path)).materialize("kept"))
    fed = driver.input("orders")
    fed.delete("a")
    fed.change("b", {"n": 1}, version=-5)
    driver.run()
    fed.snapshot("a", {"n": 2})
    fed.snapshot("b", {"n": 3})
    fed.snapshot("c", {"n": 4})
    driver.run(REORDER)
    assert {key: row["n"] for key, row in driver.table.items()} == {"b": 1, "c": 4}
    with pytest.raises(TopologyError, match="snapshot: orders has no snapshot; make the table with with_snapshot"):
        Driver(orders(spark, tmp_path).materialize("kept")).input("orders").snapshot("a", {})


def test_what_is_no_snapshot_of_a_table_is_refused_and_the_way_out_is_one(spark: SparkSession, tmp_path: Path) -> None:
    table, folder = orders(spark, tmp_path), taken(tmp_path)
    columns: dict[str, Any] = {"id": ["a"], "customer": pa.array([1], pa.int64()), "op": pa.nulls(1, pa.string())}
    narrow = pa.array([2], pa.int32())
    snapshot(tmp_path / "written", **columns, n=narrow)
    snapshot(tmp_path / "lacking", **columns)
    snapshot(tmp_path / "wide", **columns, n=narrow.cast("int64"))
    (snapshot(tmp_path / "lake", **columns, n=narrow) / "_delta_log").mkdir()
    begun, topic = table.with_snapshot(folder), Kafka("orders", "127.0.0.1:1")

    def of(name: str) -> Table:
        return table.with_snapshot(tmp_path / name)

    def again() -> Table:
        return begun.with_snapshot(folder)

    refused: dict[str, Callable[[], object]] = {
        r"path: with_snapshot reads files, and this is a DataFrame; write it with df\.write": (
            lambda: table.with_snapshot(spark.range(1))  # type: ignore[arg-type]
        ),
        "path: the folder of the snapshot's Parquet files is needed, this is a int": (
            lambda: table.with_snapshot(3)  # type: ignore[arg-type]
        ),
        "with_snapshot: kept is the result of an operator; call with_snapshot on its source": (
            lambda: table.filter("n > 1", name="kept").with_snapshot(folder)
        ),
        "with_snapshot: orders already has the snapshot .*; put all files of the": again,
        "lacking: orders .* n int, and the files have none of that name; write": lambda: of("lacking").changes,
        "lacking: .* cast.null as int. as n": lambda: of("lacking").filter("n > 1").preview(),
        "wide: .* n int, and it is bigint in the files; write them with cast": lambda: of("wide").changes,
        "path: .* Delta, whose folder also contains files of older versions; read it": lambda: of("lake"),
        "path: .*absent has no Parquet files .*; write the snapshot first": lambda: of("absent"),
        r"orders: its snapshot is read beside newer .* write \.materialize\(\"orders\"\) first": (
            lambda: topic.records(begun._plan)
        ),
    }
    for message, call in refused.items():
        with pytest.raises(TopologyError, match=message):
            call()
    topic.records(begun.materialize("orders")._plan)
    assert of("written").filter("n > 1").changes.isStreaming


def test_what_a_query_has_read_of_a_snapshot_it_never_reads_again(spark: SparkSession, tmp_path: Path) -> None:
    """The table gets a column, and the folder new files and another name."""
    (tmp_path / "log").mkdir()
    spark.conf.set("spark.fkjoin.mark.retention.ms", "1")

    def table(schema: str, place: Path) -> Table:
        about: Any = {"key": "id", "version": "lsn", "deleted": "gone", "name": "orders"}
        read = Table.from_files(spark, tmp_path / "log", schema=schema, format="json", **about)
        return read.with_snapshot(place)

    def count(schema: str, place: Path) -> None:
        counted = table(schema, place).group_by("n", name="counts").count().materialize("counts")
        counted.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="available-now").awaitTermination()

    def counts() -> dict[int, int]:
        return {row.n: row["count"] for row in read_state(spark, tmp_path / "ck", "counts").collect()}

    try:
        schema = "id string, n int, lsn bigint, gone boolean"
        place = snapshot(tmp_path / "taken", id=["a", "b", "c"], n=pa.array([1, 1, 1], pa.int32()))
        write_lines(tmp_path / "log", "1", [{"id": "a", "lsn": 1, "gone": True}])
        count(schema, place)
        assert counts() == {1: 2}
        for number in (2, 3):  # the marker ends
            time.sleep(0.01)
            write_lines(tmp_path / "log", str(number), [{"id": "z", "n": 9, "lsn": number}])
            count(schema, place)
        pq.write_table(pa.table({"id": ["a", "d"], "n": pa.array([1, 1], pa.int32())}), place / "later.parquet")
        moved = place.rename(tmp_path / "moved")
        write_lines(tmp_path / "log", "4", [{"id": "z", "n": 7, "lsn": 5}])
        count(f"{schema}, more string", moved)
        assert counts() == {1: 2, 7: 1}
    finally:
        spark.conf.unset("spark.fkjoin.mark.retention.ms")
    with pytest.raises(TopologyError, match="path: .*out was written by to_parquet and contains .*; read it with Table"):
        table(schema, tmp_path / "out")


def test_files_of_a_snapshot_may_be_called_anything(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing in their names is SQL.

    A file that comes after the start stops the query, also one that kept its time when it was moved.
    """
    (tmp_path / "log").mkdir()
    place = tmp_path / "taken $HOME's"
    place.mkdir()
    names = ["it's", "back\\'slash\\", 'quo"ted', "X'00') or (1 = 1", "per%20cent", "${spark.app.name}", "`tick`", "größe"]
    for name in names:
        pq.write_table(pa.table({"id": [name]}), place / f"{name}.parquet")

    def begun() -> Table:
        about: Any = {"key": "id", "version": "lsn", "name": "orders", "schema": "id string, lsn bigint"}
        return Table.from_files(spark, tmp_path / "log", format="json", **about).with_snapshot(place)

    for name, seconds in (("its", 0), ("old", 3600)):
        made = begun()
        time.sleep(0.01)
        pq.write_table(pa.table({"id": [name]}), place / f"{name}.parquet")
        os.utime(place / f"{name}.parquet", (time.time() - seconds,) * 2)
        with pytest.raises(Exception, match=rf"has a new file, .*{name}\.parquet, and the first batch of a query reads"):
            run(made.changes, tmp_path / name)
    assert {row.id for row in run(begun().changes, tmp_path / "old").rows} == {*names, "its", "old"}


def test_the_jvm_is_not_asked_once_for_each_file(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = type(spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]
    send, sent = client.send_command, list[str]()

    def counted(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        # Python's collector lets go of the JVM's objects of other tests whenever it runs.
        if not command.startswith(MEMORY_COMMAND_NAME):
            sent.append(command)
        return send(self, command, *arguments, **named)

    monkeypatch.setattr(client, "send_command", counted)
    _is_one_of("name", map(str, range(200)))
    assert 0 < len(sent) < 100


def test_deletes_and_columns_of_folders_are_as_the_table_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """A snapshot's row by which ``deleted=`` deletes is none; a folder called 007 is that text, and a number for a number."""
    (tmp_path / "log").mkdir()
    place = tmp_path / "taken"
    for key, n, gone in [("007", 1, None), ("7", 2, False), ("8", 3, True), ("9", -4, False)]:
        rows = pa.table({"gone": pa.array([gone], pa.bool_()), "lost": [gone]})
        folder = place / f"id={key}" / f"n={n}"
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "1.parquet")

    def begun(deleted: Any, **more: Any) -> Table:
        about: Any = {"key": "id", "version": "lsn", "name": "orders", "schema": "id string, n int, lsn bigint, gone boolean"}
        read = Table.from_files(spark, tmp_path / "log", format="json", deleted=deleted, **about, **more)
        return read.with_snapshot(place)

    rows = [
        begun(deleted).changes.select(F.lit(title).alias("title"), "id", "n")
        for title, deleted in {"name": "gone", "text": "gone or n < 0", "column": F.col("n") < 0}.items()
    ]
    read = run(functools.reduce(DataFrame.unionAll, rows), tmp_path / "ck").rows
    both = [("007", 1), ("7", 2)]
    for title, more in (("name", [("9", -4)]), ("text", []), ("column", [("8", 3)])):
        assert sorted((row.id, row.n) for row in read if row.title == title) == both + more
