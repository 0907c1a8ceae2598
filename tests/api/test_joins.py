"""The join on Spark: traces, restarts, and the topologies that people build."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
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
from tests.support.driven import feed
from tests.support.queries import run, table_of, write_lines
from tests.support.replay.traces import (
    Trace,
    TraceChange,
    assert_agrees,
    expected,
    joined_value,
    outcome,
    read_trace,
    trace_files,
)
from tests.support.sessions import small

_SCHEMA = "index bigint, left boolean, key string, foreign_key string, value string, ts bigint"


def replay_on_spark(spark: SparkSession, trace: Trace, events_per_batch: int, folder: Path) -> list[dict[str, Any]]:
    """Replay it in an empty folder.

    A batch has the last result of each key alone, and the keys come in no particular order.
    """
    cuts = list(trace.batches(events_per_batch))
    log = folder / "log"
    log.mkdir(parents=True)
    for number, cut in enumerate(cuts):
        part = log / f"{number:08}.json"
        lines = [json.dumps(asdict(event)) + "\n" for event in cut]
        part.write_text("".join(lines), encoding="utf-8")
        os.utime(part, (number, number))
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(log))
    left, right = _side(stream, "left"), _side(stream, "right")
    joined = fk_join(left, right, "foreign_key", how=trace.how, name="replay")
    target = folder / "joined"
    joined.to_parquet(target, checkpoint=folder / "ck", trigger="available-now").awaitTermination()
    number = F.split("batch", "-")[0].cast("int")
    rows = spark.read.parquet(str(target)).withColumn("number", number).orderBy("number").collect()
    return outcome((cuts[row["number"]][-1].index, *_result(row)) for row in rows)


def _side(stream: DataFrame, side: str) -> Table:
    chosen = stream.where("left" if side == "left" else "not left").drop("left")
    return Table.from_stream(
        chosen,
        key="key",
        version="index",
        deleted="value is null",
        timestamp="ts",
        name=side,
        log="trace",
    )


def _result(row: Row) -> tuple[str, Any, int]:
    if row["_operation"] == "delete":
        return row["key"], None, row["_timestamp"]
    right = row["right"]
    value = joined_value(row["left"]["value"], right and right["value"])
    return row["key"], value, row["_timestamp"]


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, partitions=2)


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    values = [0, 1, -1, 77, 2**31 - 1, -(2**31)]
    found = spark.createDataFrame([(value,) for value in values], "v int").select(F.hash("v")).collect()
    assert [row[0] for row in found] == [spark_hash(value) for value in values]


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "size", "buckets"), [("inner", 40, 2), ("left", 97, 3)])
def test_all_traces_in_one_query_give_the_final_tables_and_subsequences(
    spark: SparkSession, tmp_path: Path, how: Any, size: int, buckets: int
) -> None:
    """Each trace has keys of its own; the cuts fall where they may."""
    spark.conf.set(BUCKETS, str(buckets))
    paths = [path for path in trace_files() if path.name.startswith(how)]
    events: list[TraceChange] = []
    for number, path in enumerate(paths):
        for event in read_trace(path).events:
            foreign_key = None if event.foreign_key is None else f"{number}|{event.foreign_key}"
            events.append(replace(event, index=len(events), key=f"{number}|{event.key}", foreign_key=foreign_key))
    *results, last = replay_on_spark(spark, Trace(how, tuple(events)), size, tmp_path / "traces")
    for number, path in enumerate(paths):
        prefix = f"{number}|"
        own = [line for line in results if line["key"].startswith(prefix)]
        renamed = [line | {"key": line["key"].removeprefix(prefix)} for line in own]
        table = {key.removeprefix(prefix): value for key, value in last["final"].items() if key.startswith(prefix)}
        assert_agrees([*renamed, {"final": table}], expected(path))


def test_a_query_goes_on_from_its_checkpoint_with_its_index_lost_or_too_old(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of two columns of different types, Parquet on the left and JSON lines on the right, with null keys."""
    rng = random.Random(3)
    lefts: dict[Any, Any] = {}
    rights: dict[Any, Any] = {}
    rows: list[Row] = []
    count: Counter[str] = Counter()
    for number in range(3):
        left_rows, right_rows = [], [{"region": None, "shop": 1, "city": "x", "gone": False, "seq": 0}]
        for sequence in range(60 * number + 1, 60 * number + 61):
            deleted, region, shop = rng.random() < 0.2, rng.choice("ns"), rng.randrange(3)
            if rng.random() < 0.7:
                item = rng.randrange(12), rng.choice("pq")
                left_rows.append((*item, region, shop, rng.randrange(5), deleted, sequence))
                lefts[item] = None if deleted else left_rows[-1][2:5]
            else:
                city = rng.choice(("Aix", "Bonn"))
                right_rows.append({"region": region, "shop": shop, "city": city, "gone": deleted, "seq": sequence})
                rights[region, shop] = None if deleted else city
        schema = "id int, part string, region string, shop bigint, amount int, deleted boolean, seq bigint"
        spark.createDataFrame(left_rows, schema).coalesce(1).write.mode("append").parquet(str(tmp_path / "left"))
        write_lines(tmp_path / "right", str(number), right_rows)
        if number == 1:
            (tmp_path / "index").rename(tmp_path / "old")
        if number == 2:
            shutil.rmtree(tmp_path / "index")
            (tmp_path / "old").rename(tmp_path / "index")
        left = Table.from_files(spark, tmp_path / "left", key=["id", "part"], version="seq", deleted="deleted")
        right = Table.from_files(spark, tmp_path / "right", key=["region", "shop"], version="seq", deleted="gone")
        joined = fk_join(left, right, ["region", "shop"], how="left", name="orders-shops")
        found = run(joined.changes, tmp_path / "checkpoint", metrics_name("orders-shops"))
        rows += found.rows
        count.update(found.count)
        got = {key: (tuple(row.left[2:5]), row.right and row.right.city) for key, row in table_of(rows, "id", "part").items()}
        assert got == {key: (value, rights.get(value[:2])) for key, value in lefts.items() if value is not None}
        assert (found.count["index-rebuilt"] > 0) == (number == 1), "an index that is too old reads the rest of its log"
    assert count["null-key-dropped"] == 3
    assert count["left-in"] + count["right-in"] == 180
    assert count["out"] == len(rows)
    assert rows[0]._left_version is not None


SCHEMAS = {"orders": "o string, c string", "customers": "c string, r string", "regions": "r string, name string"}
STEPS: list[list[tuple[str, str, Any]]] = [
    [
        *(("orders", f"o{n}", {"c": f"c{n % 4}"}) for n in range(8)),
        *(("customers", f"c{n}", {"r": "ns"[n % 2]}) for n in range(3)),
        ("regions", "n", {"name": "north"}),
    ],
    [
        *(("orders", "o1", {"c": "c2"}), ("orders", "o2", None)),
        *(("customers", "c0", {"r": "s"}), ("customers", "c3", {"r": "n"}), ("customers", "c1", None)),
        *(("regions", "s", {"name": "south"}), ("regions", "n", None)),
    ],
]


@pytest.mark.parametrize("nested", [False, True])
def test_joins_of_joins_are_the_batch_join(spark: SparkSession, tmp_path: Path, nested: bool) -> None:
    """(orders ⋈ customers) ⋈ regions, or orders ⋈ (customers ⋈ regions)."""
    tables = {}
    for name, schema in SCHEMAS.items():
        (tmp_path / name).mkdir()
        about: Any = {"key": schema[0], "version": "v", "schema": f"{schema}, v bigint", "format": "json", "name": name}
        tables[name] = Table.from_files(spark, tmp_path / name, **about)
    orders, customers, regions = tables.values()
    if nested:
        placed = fk_join(customers, regions, "r", how="left")
        joined = fk_join(orders, placed, F.col("c"), joiner=["left.c as c", "right.right.name as name"])
    else:
        first = fk_join(orders, customers, "c", how="left")
        joined = fk_join(first, regions, "right.r", how="left", joiner=["left.left.c", "right.name"])
        assert joined._planned.node.parts == 3
    driver = Driver(joined)
    now: dict[str, dict[str, Any]] = {name: {} for name in SCHEMAS}
    for step in STEPS:
        for name, key, row in step:
            now[name][key] = row
        feed(driver, step)
        driver.run()
        wanted = {}
        for key, order in now["orders"].items():
            customer = order and now["customers"].get(order["c"])
            region = customer and now["regions"].get(customer["r"])
            if order and (customer or not nested):
                wanted[key] = {"c": order["c"], "name": region and region["name"]}
        assert driver.table == wanted


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
    orders, customers, checkpoint = tmp_path / "orders", tmp_path / "customers", tmp_path / "checkpoint"
    write_lines(orders, "1", [{"id": row, "customer": "hot" if row < 40 else "cold", "v": 1} for row in range(60)])
    write_lines(customers, "1", [{"customer": name, "name": name, "v": 1} for name in ("hot", "cold")])

    def joined(spread: int) -> Table:
        left = Table.from_files(spark, orders, key="id", version="v", schema="id int, customer string, v int")
        right = Table.from_files(spark, customers, key="customer", version="v", schema="customer string, name string, v int")
        return fk_join(left, right, "customer", joiner=["right.name"], name="joined", spread=spread, validate=True)

    assert "left rows of a foreign key over 3 buckets" in joined(3).describe()
    first = run(joined(3).changes, checkpoint)
    write_lines(customers, "2", [{"customer": "hot", "name": "warm", "v": 2}])
    write_lines(orders, "2", [{"id": row, "customer": "cold", "v": 2} for row in range(10)])
    second = run(joined(3).changes, checkpoint)
    names = {key[0]: row["name"] for key, row in table_of([*first.rows, *second.rows], "id").items()}
    assert names == {row: "warm" if 10 <= row < 40 else "cold" for row in range(60)}
    assert verify(spark, checkpoint) == []
    state = saved_stores(spark, checkpoint)
    found = look_up(state, "joined", "20")
    assert {"subscription": 1, "right": 1}.items() <= Counter(one["kind"] for one in found).items()
    (result,) = (one for one in found if one["kind"] == "result")
    assert (result["row"], result["timestamp"], result["gone"]) == (None, None, False)
    says = ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    assert remarks(state, "joined", found) == says
    stored = entries(spark, named("joined-subscription", state)).where("kind = 'subscription'")
    assert stored.where("""foreign_key = '"hot"'""").select("bucket").distinct().count() == 3
    write_lines(customers, "3", [{"customer": "hot", "name": "hot", "v": 3}])
    with pytest.raises(Exception, match=r"spread"):
        run(joined(2).changes, checkpoint)
    spark.conf.set(BUCKETS, "5")
    with pytest.raises(Exception, match=r"buckets was 4 and is now 5; start this .*new checkpoint"):
        run(joined(3).changes, checkpoint)
