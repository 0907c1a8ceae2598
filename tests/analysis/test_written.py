"""Tables read back from what fkjoin wrote: the order of changes, deletes, timestamps, and names that clash."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin.aggregates import count
from fkjoin.errors import FkJoinError
from tests.support.orders import History, batch_join, tables
from tests.support.queries import run, table_of, values
from tests.support.sessions import small
from tests.support.written import JOB, NOW, single, written


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def test_a_join_that_was_written_is_read_as_it_is_through_changes_of_both_sides_and_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Right rows change under the same version of the left row, and a batch is there before the second job begins."""
    history, rows = History(tmp_path), list[Row]()
    unfinished = tmp_path / "first" / "_unfinished" / "batch=99999999-x"
    for _ in range(2):
        history.write(80)
        orders, customers = tables(spark, tmp_path)
        joiner = ["left.items", "right.region"]
        written(fk_join(orders, customers, "customer_id", joiner=joiner, name="first"), tmp_path, "first")
        unfinished.mkdir(parents=True)
        (unfinished / "part-1.parquet").write_text("no Parquet yet")
        second = Table.from_fkjoin(spark, tmp_path / "first")
        assert (second.key, second._planned.rest, second._planned.timestamps) == (("order_id",), ("items", "region"), None)
        rows += run(second.materialize("kept").changes, tmp_path / "second-ck").rows
        assert values(table_of(rows, "order_id"), ["items", "region"]) == {
            (key,): [row["items"], row["region"]] for key, row in batch_join(history).items()
        }
        shutil.rmtree(tmp_path / "first" / "_unfinished")
    assert {row["_operation"] for row in rows} == {"insert", "update", "delete"}


def test_timestamps_and_names_come_along_and_a_column_called_batch_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    about: Any = {"timestamp": "at", "schema": "id string, Batch string, lsn bigint, at timestamp, `n.o` int"}
    row = {"id": "a", "Batch": "b1", "lsn": 1, "at": "2026-01-02T03:04:05Z", "n.o": 7}
    table = single(spark, tmp_path, row, **about)
    folder = written(table.materialize("kept"), tmp_path, "kept")
    assert [found.Batch for found in spark.read.parquet(str(folder)).collect()] == ["b1"]
    again = Table.from_fkjoin(spark, folder)
    assert again._planned.rest == ("Batch", "n.o")
    (found,) = run(again.changes, tmp_path / "again-ck").rows
    assert (found.Batch, found["n.o"], found["_timestamp"].isoformat()) == ("b1", 7, "2026-01-02T03:04:05")
    assert "what fkjoin wrote to" in again.describe()


def test_a_source_that_was_written_is_ordered_by_its_own_versions(spark: SparkSession, tmp_path: Path) -> None:
    for lsn in (5, 3):  # the older one comes later
        table = single(spark, tmp_path, {"id": "a", "n": lsn, "lsn": lsn})
        folder = written(table, tmp_path, "source")
    said = {"format": 1, "table": "single", "key": ["id"], "timestamps": None, "source": True, "numbers": 1, "placed": False}
    assert json.loads((folder / "_fkjoin.json").read_text()) == said
    again = Table.from_fkjoin(spark, folder, name="again")
    assert again.describe().count("_version[0]") == 1
    found = table_of(run(again.materialize("m").changes, tmp_path / "again-ck").rows, "id")
    assert [row.n for row in found.values()] == [5]


def test_what_cannot_be_read_rightly_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = single(spark, tmp_path, {"id": "a", "n": 1, "lsn": 1}).materialize("kept")
    with pytest.raises(TopologyError, match=r"path: .*single contains no folder batch=…, which Table.to_parquet makes"):
        Table.from_fkjoin(spark, tmp_path / "single")
    folder = written(table, tmp_path, "kept")
    assert Table.from_fkjoin(spark, folder).group_by("n").count().columns == ["n", "count"]
    again = Table.from_fkjoin(spark, folder)
    run(again.changes, tmp_path / "again-ck")
    (newest,) = folder.glob("batch=*")
    shutil.copytree(newest, folder / "batch=00000000-0123abcd")
    with pytest.raises(StreamingQueryException, match="of another checkpoint than the others"):
        run(again.changes, tmp_path / "again-ck")
    with pytest.raises(TopologyError, match=r"path: .* contains batches of 2 checkpoints"):
        Table.from_fkjoin(spark, folder)
    table.to_parquet(tmp_path / "its-own", checkpoint=tmp_path / "third-ck", **NOW).awaitTermination()
    assert Table.from_fkjoin(spark, tmp_path / "its-own").columns == ["id", "n"]
    shutil.rmtree(min(folder.glob("batch=*")))
    said = (folder / "_fkjoin.json").rename(tmp_path / "said")
    with pytest.raises(TopologyError, match=r"path: .*kept has no _fkjoin.json, which to_parquet writes .*: put it back"):
        Table.from_fkjoin(spark, folder)
    said.rename(folder / "_fkjoin.json")
    assert Table.from_fkjoin(spark, folder).columns == ["id", "n"]


def test_a_folder_that_a_query_reads_or_another_one_writes_to_is_refused_and_nothing_changes(
    spark: SparkSession, tmp_path: Path, fkjoin_here: Callable[..., str]
) -> None:
    """Before anything is written; by a check of a job, too.  A path of its own is the way out."""
    table = single(spark, tmp_path, {"id": "a", "n": 1, "lsn": 1}).materialize("kept")
    folder = written(table, tmp_path, "kept")
    again = Table.from_fkjoin(spark, folder).materialize("again")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    reads = r"path: the table is read from .*, and would read its own output in"
    other = r"path: .*kept contains batches of another query \(\w{8}\), and none of .*other-ck"
    sources = tmp_path / "single"
    about: Any = {"key": "id", "version": "lsn", "name": "single", "format": "json"}
    about["schema"] = "id string, n int, lsn int"
    by_pattern = Table.from_files(spark, f"{sources}*", **about)
    for refused, place, says in (
        (table, sources, reads),
        (table, sources / "below", reads),
        (by_pattern, tmp_path / "singles", reads),
        (again, folder, reads),
        (table, folder, other),
    ):
        with pytest.raises(FkJoinError, match=says):
            refused.to_parquet(place, checkpoint=tmp_path / "other-ck", **NOW)
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace("/out", "/kept/below").replace("{folder}", str(tmp_path)))
    with pytest.raises(FkJoinError, match=r"sinks\.out\.path: the table is read from"):
        fkjoin_here("run", "--check", job)
    job.unlink()
    (tmp_path / "spark.log").unlink(missing_ok=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    again.to_parquet(tmp_path / "kept-too", checkpoint=tmp_path / "other-ck", **NOW).awaitTermination()
    assert len(list((tmp_path / "kept-too").glob("batch=*"))) == 1


def test_names_that_results_add_are_refused_by_name_or_renamed(spark: SparkSession, tmp_path: Path) -> None:
    table = single(spark, tmp_path, {"id": "a", "n": 1, "lsn": 1})
    folder = written(table.materialize("kept"), tmp_path, "kept")
    about: Any = {"key": "id", "version": "_version[0]", "format": "parquet"}
    about["deleted"] = "_operation = 'delete'"
    by_hand = Table.from_files(spark, folder, name="by hand", **about)
    for refused in (
        lambda: by_hand.changes,
        lambda: by_hand.materialize("m").changes,
        lambda: by_hand.to_parquet(tmp_path / "x", checkpoint=tmp_path / "ck"),
        lambda: by_hand.filter("n > 0").to_parquet(tmp_path / "x", checkpoint=tmp_path / "ck"),
        lambda: by_hand.with_children(table, "id").changes,
        lambda: fk_join(by_hand, table, "id", joiner="left.*").changes,
        lambda: table.map_values("n as _Timestamp", name="by hand").changes,
        lambda: table.group_by("id as _version", name="by hand").count().changes,
        lambda: table.group_by("id", name="by hand").agg(_left_version=count()).changes,
    ):
        with pytest.raises(TopologyError, match=r"by hand.*: '_.*' is the name of a column that results add.*from_fkjoin"):
            refused()
    assert not (tmp_path / "x").exists()
    assert by_hand.materialize("m").map_values(["n", "_operation as was"]).changes.columns[:3] == ["id", "n", "was"]


def test_columns_are_kept_and_new_ones_are_reported_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(key: str, schema: str) -> None:
        single(spark, tmp_path, {"id": key, "n": 1, "more": "m", "lsn": 1})
        source = Table.from_files(spark, tmp_path / "single", key="id", version="lsn", name="single", schema=schema)
        written(source, tmp_path, "kept")

    def reported() -> list[str]:
        found = [record.getMessage().partition(" (")[0] for record in caplog.records if record.name == "fkjoin"]
        caplog.clear()
        return found

    def read() -> tuple[list[str], dict[str, Any]]:
        again = Table.from_fkjoin(spark, tmp_path / "kept").materialize("again")
        again.to_parquet(tmp_path / "again-out", checkpoint=tmp_path / "again-ck", **NOW).awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "again-out")).collect()
        return reported(), {row.id: row.asDict().get("n") for row in rows}

    with caplog.at_level(logging.WARNING, "fkjoin"):
        write("a", "id string, lsn bigint, n bigint")
        assert read() == ([], {"a": 1})
        write("b", "id string, lsn bigint, n bigint, more string")
        said = ["table kept: its files have a new field more"]
        assert read() == (said, {"a": 1, "b": 1})
        assert Table.from_fkjoin(spark, tmp_path / "kept")._planned.rest == ("n", "more"), "those of the newest batch"
        write("c", "id string, lsn bigint, more string")
        assert read() == ([], {"a": 1, "b": 1, "c": None}), "a column is not lost, and one that is known not told again"
