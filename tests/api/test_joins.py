"""The join on Spark: restarts, settings of a checkpoint, and functions of users.

Joins of joins: tests/api/test_operators.py; traces: tests/replay and integration/test_join.py.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join
from fkjoin.checkpoint.entries import look_up, remarks
from fkjoin.checkpoint.saved import entries, saved_stores
from fkjoin.checkpoint.stores import named
from fkjoin.checkpoint.upkeep import verify
from fkjoin.sessions.settings import BUCKETS
from fkjoin.spark.buckets import spark_hash
from fkjoin.stages.counters import metrics_name
from fkjoin.testing import Driver
from tests.support.orders import History, batch_join, tables
from tests.support.queries import run, table_of, write_lines
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, partitions=2)


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    values = [0, 1, -1, 77, 2**31 - 1, -(2**31)]
    found = spark.createDataFrame([(value,) for value in values], "v int").select(F.hash("v")).collect()
    assert [row[0] for row in found] == [spark_hash(value) for value in values]


def test_a_query_goes_on_from_its_checkpoint_with_its_index_lost_or_too_old(spark: SparkSession, tmp_path: Path) -> None:
    history, index = History(tmp_path), tmp_path / "index"
    columns, rows, count = ["left.items", "right.region"], list[Row](), Counter[str]()
    for number in range(3):
        history.write(60)
        if number == 1:
            index.rename(tmp_path / "old")
        if number == 2:
            shutil.rmtree(index)
            (tmp_path / "old").rename(index)
        joined = fk_join(*tables(spark, tmp_path), "customer_id", joiner=columns, name="joined")
        batch = run(joined.changes, tmp_path / "checkpoint", metrics_name("joined"))
        rows += batch.rows
        count.update(batch.count)
        last = table_of(rows, "order_id").items()
        assert {key: {"items": row["items"], "region": row.region} for (key,), row in last} == batch_join(history)
        assert (batch.count["index-rebuilt"] > 0) == (number == 1), "an index that is too old reads the rest of its log"
    assert count["left-in"] + count["right-in"] == history.lsn
    assert count["out"] == len(rows)
    assert rows[0]._left_version is not None


def test_callables_extract_and_join_and_only_changed_results_are_sent(spark: SparkSession, tmp_path: Path) -> None:
    """A self join by Python callables, whose joined value hides most changes of the rows; without a type it is JSON."""

    def boss(key: str, row: Row) -> str | None:
        return row.path.rsplit("/", 1)[0] if "/" in key else None

    def label(left: Row, right: Row | None) -> str | None:
        return None if right is None else f"{left.title} under {right.title}"

    (tmp_path / "tree").mkdir()
    about: Any = {"schema": "path string, title string, n int, v bigint", "format": "json", "name": "tree"}
    tree = Table.from_files(spark, tmp_path / "tree", key="path", version="v", timestamp="v", **about)
    joined = fk_join(tree, tree, boss, how="left", joiner=label, name="boss-of")
    untyped = fk_join(tree, tree, boss, joiner=lambda left, right: {"of": left.path, "under": right})
    labels, objects, sent = Driver(joined), Driver(untyped), list[Any]()
    for batch in (
        [("a", "A", 1, 1), ("a/b", "B", 1, 2)],
        [("a/b", "B", 2, 3), ("a/b/c", "C", 1, 4)],
        [("a", "AA", 1, 5), ("a/b/c", "C", 7, 6)],
    ):
        for driver in (labels, objects):
            for path, title, n, time in batch:
                driver.input("tree").change(path, {"title": title, "n": n}, timestamp=time)
        objects.run()
        sent += [(change.key, change.operation, change.row, change.timestamp) for change in labels.run()]
    assert sent == [
        ("a/b", "insert", {"value": "B under A"}, 2),
        ("a/b/c", "insert", {"value": "C under B"}, 4),
        ("a/b", "update", {"value": "B under AA"}, 5),
    ]
    assert labels.count["idempotent-update-skip"] == 2
    under = {"path": "a", "title": "AA", "n": 1}
    assert json.loads(objects.table["a/b"]["value"]) == {"of": "a/b", "under": under}
    assert joined.changes.schema["value"].dataType.simpleString() == "string"


def test_left_rows_of_one_foreign_key_may_be_spread_over_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches with a check of all stores, the last of them in another query; other settings are refused."""
    spark.conf.set(BUCKETS, "4")
    checkpoint = tmp_path / "checkpoint"

    def write(number: int, name: str, *orders: tuple[str, str]) -> None:
        lines = [{"order_id": key, "customer_id": customer, "lsn": number} for key, customer in orders]
        write_lines(tmp_path / "orders", str(number), lines)
        write_lines(tmp_path / "customers", str(number), [{"customer_id": "hot", "region": name, "lsn": number}])

    def joined(spread: int) -> Table:
        orders, customers = tables(spark, tmp_path, deleted=None)
        joiner = ["right.region"]
        return fk_join(orders, customers, "customer_id", "left", joiner, "joined", spread=spread, validate=True)

    write(1, "hot", *[(f"o{number}", "hot") for number in range(40)])
    assert "left rows of a foreign key over 3 buckets" in joined(3).describe()
    first = run(joined(3).changes, checkpoint)
    write(2, "warm", *[(f"o{number}", "cold") for number in range(10)])
    second = run(joined(3).changes, checkpoint)
    regions = {key: row.region for (key,), row in table_of([*first.rows, *second.rows], "order_id").items()}
    assert regions == {f"o{number}": None if number < 10 else "warm" for number in range(40)}
    assert verify(spark, checkpoint) == []
    state = saved_stores(spark, checkpoint)
    known = look_up(state, "joined", "o20")
    kinds = {entry["kind"]: entry for entry in known}
    assert {"subscription", "right"} <= kinds.keys()
    result = kinds["result"]
    assert (result["row"], result["timestamp"], result["gone"]) == (None, None, False)
    says = ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    assert remarks(state, "joined", known) == says
    stored = entries(spark, named("joined-subscription", state)).where("kind = 'subscription'")
    assert stored.where("""foreign_key = '"hot"'""").select("bucket").distinct().count() == 3
    write(3, "hot")
    with pytest.raises(Exception, match=r"spread"):
        run(joined(2).changes, checkpoint)
    spark.conf.set(BUCKETS, "5")
    with pytest.raises(Exception, match=r"buckets was 4 and is now 5; start this .*new checkpoint"):
        run(joined(3).changes, checkpoint)
