"""``workers-evaluate-steps``: rows of files after steps, by workers and by Spark; of topics: the last test, and integration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.codec.expressions import Part
from fkjoin.codec.messages import CHANGE, column, unpack
from fkjoin.codec.rows import RowCodec
from fkjoin.codec.vectors import Columns, Where
from fkjoin.kafka.formats import Json, reader
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.stepped import Stepped
from fkjoin.spark.topic_records import ReadBytes, TopicRecords
from tests.support.bound import vector, vectors
from tests.support.orders import CUSTOMER, ORDER, History, tables
from tests.support.queries import run, table_of, values
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("own_rules")


def bought(orders: Table) -> Table:
    """Conditions over row and key, one after the other; columns; and a condition over what they make."""
    some = orders.filter("items > 0 and (amount >= 0.2 or amount is null)").filter("order_id <> 'o3'")
    made = some.map_values(["customer_id as buyer", "items + 1 as more", "amount * 2 as twice", "order_id || '!' as loud"])
    return made.filter("more < 5", name="bought")


def star(orders: Table, customers: Table) -> Table:
    north = customers.map_values(["region", "region = 'north' as yes"]).filter("yes", name="north")
    first = fk_join(bought(orders), north, "buyer", "left", ["left.buyer", "left.more", "right.region"], name="first")
    return fk_join(first, customers, "buyer", joiner=["left.more", "left.region", "right.region as any"], name="it")


def view(orders: Table, customers: Table) -> Table:
    return bought(orders).map_values(["buyer", "if(more > 2, twice, null) as twice"], name="it")


def sums(orders: Table, customers: Table) -> Table:
    by = bought(orders).group_by(["buyer", "more > 2 as many"], name="it")
    return by.agg(rows=agg.count(), sum=agg.sum("twice"), first=agg.min("loud"))


def counts(orders: Table, customers: Table) -> Table:
    """Counts of the source itself, of which only the group is read."""
    return orders.group_by("customer_id", name="it").agg(rows=agg.count())


def kept(orders: Table, customers: Table) -> Table:
    return orders.materialize("it")


@pytest.mark.faults
@pytest.mark.parametrize("made", sampled([star, view, sums, counts, kept], [star, sums, kept]))
def test_rows_are_those_that_spark_makes_and_the_state_is_the_same(
    spark: SparkSession, tmp_path: Path, made: Callable[[Table, Table], Table]
) -> None:
    """With the rule in two batches; without it all at once, with a checkpoint of its own: it may have other sources."""
    history, rows = History(tmp_path), list[Row]()
    for _ in range(2):
        history.write(80)
        by_workers = made(*tables(spark, tmp_path))
        assert f"{WORKERS_EVALUATE_STEPS} fired" in by_workers.describe()
        rows += run(by_workers.changes, tmp_path / "on").rows
    spark.conf.set(EXCLUDED, WORKERS_EVALUATE_STEPS)
    table = made(*tables(spark, tmp_path))
    assert f"{WORKERS_EVALUATE_STEPS} did not fire: spark.fkjoin.optimizer.excludedRules names it" in table.describe()
    assert parsed_by_workers(by_workers) > parsed_by_workers(table), "tables without steps are always"
    found = table_of(rows, *table.key)
    wanted = table_of(run(table.changes, tmp_path / "off").rows, *table.key)
    plain = [item for item in rows[0].asDict() if not item.startswith("_")]
    assert values(found, plain) == values(wanted, plain)
    assert len(found) > 1
    if made is kept:
        assert read_state(spark, tmp_path / "on", "it").count() == len(history.orders)


def parsed_by_workers(table: Table) -> int:
    """The number of the query's sources that workers read."""
    return int(table._plan.frame._jdf.queryExecution().analyzed().toString().count("PackLines"))


def test_a_batch_of_the_history_is_what_it_should_be(spark: SparkSession, tmp_path: Path) -> None:
    """Both ways could be wrong in the same way: by plain Python."""
    history = History(tmp_path)
    history.write(150)
    found = table_of(run(view(*tables(spark, tmp_path)).changes, tmp_path / "checkpoint").rows, "order_id")
    wanted = {}
    for key, row in history.orders.items():
        amount, items = row["amount"], row["items"]
        if items > 0 and (amount is None or amount >= 0.2) and key != "o3" and items + 1 < 5:
            twice = None if amount is None or items + 1 <= 2 else amount * 2
            wanted[(key,)] = (row["customer_id"], twice)
    assert {key: (row["buyer"], row["twice"]) for key, row in found.items()} == wanted
    assert wanted


def test_deletes_and_foreign_keys_may_be_expressions(spark: SparkSession, tmp_path: Path) -> None:
    """Spark evaluates them where it reads the lines itself: with an option that only its reader knows."""
    history, found = History(tmp_path), list[Any]()
    history.write(100)
    for options, off in (({}, ""), ({}, WORKERS_EVALUATE_STEPS), ({"mode": "PERMISSIVE"}, "")):
        spark.conf.set(EXCLUDED, off)
        about: Any = {"version": "lsn", "format": "json", "options": options}
        gone = "op = 'd' or (items between 3 and 4 and amount is null)"
        orders = Table.from_files(spark, tmp_path / "orders", key="order_id", schema=ORDER, deleted=gone, **about)
        customers = Table.from_files(
            spark, tmp_path / "customers", key="customer_id", schema=CUSTOMER, deleted="op in ('d', 'x')", **about
        )
        by = "case when items > 2 then 'c1' else customer_id end"
        joined = fk_join(orders, customers, by, "left", ["left.items", "right.region"], "it")
        assert (orders._plan.undecoded is None) == bool(options or off)
        assert parsed_by_workers(joined) == (0 if options or off else 2)
        rows = table_of(run(joined.changes, tmp_path / f"checkpoint{len(found)}").rows, "order_id")
        found.append({key: (row["items"], row["region"]) for key, row in rows.items()})
    assert found[0] == found[1] == found[2]
    kept = [key for key, row in history.orders.items() if not (row["items"] in (3, 4) and row["amount"] is None)]
    assert sorted(found[0]) == sorted((key,) for key in kept)
    assert 0 < len(kept) < len(history.orders)


def test_why_it_does_not_fire(spark: SparkSession, tmp_path: Path) -> None:
    orders, customers = tables(spark, tmp_path)
    left = f"{WORKERS_EVALUATE_STEPS} did not fire: "
    assert f"{left}filter upper(order_id) = 'O1' is left to Spark\n" in orders.filter("upper(order_id) = 'O1'").describe()
    odd = orders.map_values("sqrt(amount) as root", name="odd")
    assert f"{left}map_values sqrt(amount) as root is left to Spark\n" in odd.describe()
    assert f"{left}map_values sqrt(amount) as root is left to Spark\n" in odd.filter("root > 1").describe(), "so are its rows"
    roots = orders.group_by("customer_id").agg(sum=agg.sum("sqrt(amount)"))
    assert f"{left}what a row contributes is left to Spark\n" in roots.describe()
    joined = fk_join(orders, customers, "customer_id", name="joined")
    assert WORKERS_EVALUATE_STEPS not in joined.filter("left.items > 1").describe(), "a join's rows are not in files"
    kept, summed = orders.filter("items > 1").materialize("kept"), orders.group_by("items").agg(n=agg.count())
    for table in (kept, summed):
        assert table.describe().count(WORKERS_EVALUATE_STEPS) == 1
        assert table.filter("true").describe().count(WORKERS_EVALUATE_STEPS) == 1, "what is in a store is not in files, either"
    assert f"{WORKERS_EVALUATE_STEPS} fired" in fk_join(orders.filter("items > 1"), customers, "customer_id").describe()
    assert parsed_by_workers(fk_join(orders, customers, "coalesce(customer_id, 'c1')", name="by")) == 2
    spark.conf.set(EXCLUDED, WORKERS_EVALUATE_STEPS)
    assert parsed_by_workers(fk_join(orders, customers, "coalesce(customer_id, 'c1')", name="by")) == 1
    assert parsed_by_workers(fk_join(orders, customers, "customer_id", name="by")) == 2, "as ever"


def test_records_of_topics_take_steps_as_well(spark: SparkSession) -> None:
    """A tombstone, a record that cannot be used and one that is left out among them."""
    read_value = reader(Json("fk string, n bigint"))
    assert read_value is not None
    records = TopicRecords("topic", ReadBytes("key", text=True), read_value, b"12345678", fail=False)
    rows = spark.createDataFrame([], "fk string, n bigint, key string")
    condition, columns = (
        vector(rows["n"] > 1, rows, rows.columns),
        vectors({"by": rows["fk"], "it": rows["key"]}, rows, rows.columns),
    )
    assert condition is not None
    assert columns is not None
    key = pa.schema([("key", pa.string())])
    steps = Stepped(records).then((Where(condition),)).then((columns,))
    by = Columns((("k0", Part("AttributeReference", pa.string(), argument="by")),))
    values = [b'{"fk": "a", "n": 2}', b'{"fk": "b", "n": 1}', None, b"[", b'{"fk": "c"}', b'{"n": 5}']
    batch: Any = pa.record_batch(
        {
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
            "timestamp": pa.array([0] * len(values), pa.timestamp("us", "UTC")),
            "key": pa.array([f"k{place}".encode() for place in range(len(values))], pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    pack = PackChanges(key, pa.schema([("k0", pa.string())]), columns.schema, 1)
    made = [payload for one in steps.packing(pack, by)(iter([batch])) for payload in one.column("payload").to_pylist()]
    (changes,) = [unpack(payload) for payload in made if payload]
    assert changes.schema.equals(CHANGE)
    found = RowCodec(columns.schema).decode(column(changes, "value"))
    assert [column.to_pylist() for column in found] == [["a", None, None, None, None], ["k0", None, None, None, "k5"]]
    assert column(changes, "value").is_valid().to_pylist() == [True, False, False, False, True]
    assert column(changes, "foreign_key").is_valid().to_pylist()[0::4] == [True, False], "the last one has no customer"
