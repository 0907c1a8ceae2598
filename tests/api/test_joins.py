"""The join on Spark: traces, restarts, and the topologies that people build."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
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
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from fkjoin.spark.buckets import spark_hash
from fkjoin.stages.counters import metrics_name
from tests.support.queries import run, table_of, write_lines
from tests.support.replay.on_spark import replay_on_spark
from tests.support.replay.traces import Trace, TraceChange, assert_agrees, expected, read_trace, trace_files


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PARTITIONS, "2")
    spark.conf.set(BUCKETS, "2")
    spark.conf.set(INDEX_DIR, str(tmp_path / "index"))


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    values = [0, 1, -1, 77, 2**31 - 1, -(2**31)]
    found = spark.createDataFrame([(value,) for value in values], "v int").select(F.hash("v")).collect()
    assert [row[0] for row in found] == [spark_hash(value) for value in values]


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


def test_a_query_goes_on_from_its_checkpoint_with_its_index_kept_lost_or_too_old(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of two columns of different types, Parquet on the left and JSON lines on the right, with null keys."""
    rng = random.Random(3)
    lefts: dict[Any, Any] = {}
    rights: dict[Any, Any] = {}
    rows: list[Row] = []
    count: dict[str, int] = {}
    saved = tmp_path / "saved"
    sequence = 0
    for number in range(4):
        left_rows, right_rows = [], [{"region": None, "shop": 1, "city": "x", "gone": False, "seq": 0}]
        for _ in range(60):
            sequence += 1
            deleted = rng.random() < 0.2
            region, shop = rng.choice("ns"), rng.randrange(3)
            if rng.random() < 0.7:
                item = (rng.randrange(12), rng.choice(("p", "q")))
                left_rows.append((item[0], item[1], region, shop, rng.randrange(5), deleted, sequence))
                lefts[item] = None if deleted else left_rows[-1][2:5]
            else:
                city = rng.choice(("Aix", "Bonn"))
                right_rows.append({"region": region, "shop": shop, "city": city, "gone": deleted, "seq": sequence})
                rights[region, shop] = None if deleted else city
        schema = "id int, part string, region string, shop bigint, amount int, deleted boolean, seq bigint"
        spark.createDataFrame(left_rows, schema).coalesce(1).write.mode("append").parquet(str(tmp_path / "left"))
        write_lines(tmp_path / "right", str(number), right_rows)
        if number == 2:
            shutil.rmtree(tmp_path / "index")
        if number == 3:
            shutil.rmtree(tmp_path / "index")
            shutil.copytree(saved, tmp_path / "index")
        left = Table.from_files(spark, tmp_path / "left", key=["id", "part"], version="seq", deleted="deleted")
        right = Table.from_files(spark, tmp_path / "right", key=["region", "shop"], version="seq", deleted="gone")
        joined = fk_join(left, right, ["region", "shop"], how="left", name="orders-shops")
        found = run(joined.changes, tmp_path / "checkpoint", metrics_name("orders-shops"))
        rows += found.rows
        count = {name: count.get(name, 0) + value for name, value in found.count.items()}
        if number == 1:
            shutil.copytree(tmp_path / "index", saved)
        got = {key: (tuple(row.left[2:5]), row.right and row.right.city) for key, row in table_of(rows, "id", "part").items()}
        want = {key: (value, rights.get(value[:2])) for key, value in lefts.items() if value is not None}
        assert got == want
    assert count["null-key-dropped"] == 4
    assert count["index-rebuilt"] > 0
    assert count["left-in"] + count["right-in"] == sequence
    assert count["out"] == len(rows)
    assert rows[0]._left_version is not None


def test_a_checkpoint_made_with_other_settings_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "log", "1", [{"id": 1, "up": 2, "v": 1}])

    def self_join(extractor: str) -> Table:
        table = Table.from_files(spark, tmp_path / "log", key="id", version="v")
        return fk_join(table, table, extractor, how="left", name="boss")

    run(self_join("up").changes, tmp_path / "checkpoint")
    write_lines(tmp_path / "log", "2", [{"id": 1, "up": 3, "v": 2}])
    with pytest.raises(Exception, match=r'boss-rekey, extractor was "up" and is now "id"; start this .*new checkpoint'):
        run(self_join("id").changes, tmp_path / "checkpoint")
    spark.conf.set(BUCKETS, "3")
    with pytest.raises(Exception, match=r"buckets was 2 and is now 3; start this .*new checkpoint"):
        run(self_join("up").changes, tmp_path / "checkpoint")


def test_several_joins_on_one_table_and_joins_of_joins_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """orders ⋈ customers ⋈ regions and orders ⋈ (customers ⋈ regions), united."""
    steps: list[dict[str, list[dict[str, Any]]]] = [
        {
            "orders": [{"o": f"o{n}", "c": f"c{n % 4}", "v": n} for n in range(8)],
            "customers": [{"c": f"c{n}", "r": "ns"[n % 2], "v": n} for n in range(3)],
            "regions": [{"r": "n", "name": "north", "v": 1}],
        },
        {
            "orders": [{"o": "o1", "c": "c2", "v": 11}, {"o": "o2", "op": "d", "v": 12}],
            "customers": [
                {"c": "c0", "r": "s", "v": 11},
                {"c": "c3", "r": "n", "v": 12},
                {"c": "c1", "op": "d", "v": 13},
            ],
            "regions": [{"r": "s", "name": "south", "v": 2}, {"r": "n", "op": "d", "v": 3}],
        },
    ]
    schemas = {
        "orders": "o string, c string, op string, v bigint",
        "customers": "c string, r string, op string, v bigint",
        "regions": "r string, name string, op string, v bigint",
    }
    final: dict[str, dict[Any, Any]] = {name: {} for name in schemas}
    rows: list[Row] = []
    for number, step in enumerate(steps):
        for name, lines in step.items():
            write_lines(tmp_path / name, str(number), lines)
            for line in lines:
                key = line[schemas[name].split()[0]]
                final[name][key] = None if line.get("op") == "d" else line
        tables = {
            name: Table.from_files(
                spark,
                tmp_path / name,
                key=schema.split()[0],
                version="v",
                deleted="op = 'd'",
                schema=schema,
                format="json",
            )
            for name, schema in schemas.items()
        }
        placed = fk_join(tables["customers"], tables["regions"], "r", how="left")
        first = fk_join(tables["orders"], tables["customers"], "c", how="left")
        chains = {
            "chain": fk_join(first, tables["regions"], "right.r", how="left", joiner=["left.left.c", "right.name"]),
            "nested": fk_join(
                tables["orders"], placed, F.col("c"), how="inner", joiner=["left.c as c", "right.right.name as name"]
            ),
        }
        frames = [
            table.changes.select(F.lit(name).alias("join"), "o", "c", "name", "_operation") for name, table in chains.items()
        ]
        rows += run(frames[0].unionAll(frames[1]), tmp_path / "checkpoint").rows
        live = {name: {key: row for key, row in table.items() if row is not None} for name, table in final.items()}

        def region(customer: str, live: dict[str, dict[Any, Any]] = live) -> str | None:
            row = live["regions"].get(live["customers"].get(customer, {}).get("r"))
            return row and row["name"]

        want = {("chain", o): (row["c"], region(row["c"])) for o, row in live["orders"].items()}
        want |= {
            ("nested", o): (row["c"], region(row["c"])) for o, row in live["orders"].items() if row["c"] in live["customers"]
        }
        got = {key: (row.c, row.name) for key, row in table_of(rows, "join", "o").items()}
        assert got == want
    assert chains["chain"]._planned.node.parts == 3


def test_callables_extract_and_join_and_only_changed_results_are_sent(spark: SparkSession, tmp_path: Path) -> None:
    """A self join by Python callables, whose joined value hides most changes of the rows."""

    def boss(key: str, row: Row) -> str | None:
        return row.path.rsplit("/", 1)[0] if "/" in key else None

    def label(left: Row, right: Row | None) -> str | None:
        return None if right is None else f"{left.title} under {right.title}"

    lines = [
        [{"path": "a", "title": "A", "n": 1, "v": 1}, {"path": "a/b", "title": "B", "n": 1, "v": 2}],
        [{"path": "a/b", "title": "B", "n": 2, "v": 3}, {"path": "a/b/c", "title": "C", "n": 1, "v": 4}],
        [{"path": "a", "title": "AA", "n": 1, "v": 5}, {"path": "a/b/c", "title": "C", "n": 7, "v": 6}],
    ]
    sent = []
    for number, part in enumerate(lines):
        write_lines(tmp_path / "tree", str(number), part)
        tree = Table.from_files(spark, tmp_path / "tree", key="path", version="v", timestamp="v")
        joined = fk_join(tree, tree, boss, how="left", joiner=label, name="boss-of")
        found = run(joined.changes, tmp_path / "checkpoint", metrics_name("boss-of"))
        sent.append(sorted((row.path, row._operation, row.value, row._timestamp) for row in found.rows))
    assert sent == [
        [("a/b", "insert", "B under A", 2)],
        [("a/b/c", "insert", "C under B", 4)],
        [("a/b", "update", "B under AA", 5)],
    ]
    assert found.count["idempotent-update-skip"] == 1
    assert joined.changes.schema["value"].dataType.simpleString() == "string"


def test_a_joiner_without_a_declared_type_gives_json(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "log", "1", [{"id": 1, "up": 2, "v": 1}, {"id": 2, "up": None, "v": 2}])
    table = Table.from_files(spark, tmp_path / "log", key="id", version="v")
    joined = fk_join(table, table, lambda key, row: row.up, joiner=lambda left, right: {"of": left.id, "up": right})
    (row,) = run(joined.changes, tmp_path / "checkpoint").rows
    assert (row.id, json.loads(row.value)) == (1, {"of": 1, "up": {"id": 2, "up": None}})


def test_left_rows_of_one_foreign_key_may_be_spread_over_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Three batches with a check of all stores; the last of them in another query, from the checkpoint."""
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
    found = look_up(saved_stores(spark, checkpoint), "joined", "20")
    assert {"subscription": 1, "right": 1}.items() <= Counter(one["kind"] for one in found).items()
    (result,) = (one for one in found if one["kind"] == "result")
    assert (result["row"], result["timestamp"], result["gone"]) == (None, None, False)
    says = ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    assert remarks(saved_stores(spark, checkpoint), "joined", found) == says
    stored = entries(spark, named("joined-subscription", saved_stores(spark, checkpoint))).where("kind = 'subscription'")
    assert stored.where("""foreign_key = '"hot"'""").select("bucket").distinct().count() == 3
    write_lines(customers, "3", [{"customer": "hot", "name": "hot", "v": 3}])
    with pytest.raises(Exception, match=r"spread"):
        run(joined(2).changes, checkpoint)
