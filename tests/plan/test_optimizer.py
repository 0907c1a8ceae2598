"""The optimizer's rules change no result: topologies with a rule and without it, over the same changes, in memory.

What a rule makes of a topology: tests/plan/test_rules.py.  The same on Spark: tests/lowering/test_interpreters.py.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.checkpoint.saved import entries, saved_stores
from fkjoin.errors import SessionError
from fkjoin.plan import rules as known
from fkjoin.plan.rules import RULES
from fkjoin.sessions.settings import EXCLUDED
from fkjoin.testing import Driver
from tests.support.interpreters import History, Interpreted
from tests.support.orders import History as Orders
from tests.support.orders import batch_join, tables
from tests.support.places import ROOT
from tests.support.plans.probe import rules
from tests.support.plans.topologies import TOPOLOGIES, Sources
from tests.support.sampling import EVERY, sampled
from tests.support.sessions import small


def joiner_of_structs(of: Sources) -> Table:
    """Structs and fields of structs, each of which may be null, and right rows that may not be there."""
    columns = ["left.product", F.col("left.product.n").alias("n"), "right.region", "left.amount * 2 as twice"]
    loud = "coalesce(right.region, 'nowhere') || '!' as loud"
    return fk_join(of.orders, of.customers, "customer_id", "left", [*columns, loud], name="it")


def sums_of_a_view_with_rows(of: Sources) -> Table:
    """Sums of a view that has the key, and one whole row."""
    joined = fk_join(of.orders, of.customers, "customer_id", "left", name="joined")
    some = joined.filter("left.amount > 0 or right.region = '1'")
    seen = some.map_values(["order_id as named", "right", "left.product.id", "left.product as p"], name="seen")
    by = seen.filter("named <> 'a'").group_by(["right.region is null as nowhere", "p.n as n"], name="it")
    return by.agg(rows=agg.count(), first=agg.min("id"), last=agg.max("named"))


def filter_of_rows_on_whose_joiner_throws(of: Sources) -> Table:
    """A change on which the joiner throws leaves the last row as it is, so that no filter may come before it."""
    columns = ["left.product.n", "100 / left.product.n as share", "right.region"]
    return fk_join(of.orders, of.customers, "customer_id", joiner=columns, name="joined").filter("n > 0", name="it")


def filter_after_one_that_throws(of: Sources) -> Table:
    joined = fk_join(of.orders, of.customers, "customer_id", name="joined")
    return joined.filter("4 / left.product.n > 1").filter("right.region <> '1'", name="it")


def star_over_a_join_with_a_join_on_its_right(of: Sources) -> Table:
    """Versions of several parts on both sides."""
    third = fk_join(of.shops, of.products, F.lit("1"), "left", name="third")
    first = fk_join(of.joined, of.regions, "right.region", "left", name="first")
    return fk_join(first, third, "left.left.shop", "left", name="it").materialize("kept")


def sums_of_a_star_with_one_table_twice(of: Sources) -> Table:
    named = of.orders.map_values(["customer_id", "shop as other", "amount"], name="named")
    joiner = ["left.amount", "left.other", "right.name"]
    first = fk_join(named, of.customers, "customer_id", joiner=joiner, name="first")
    both = fk_join(first, of.customers, F.col("other"), name="both")
    return both.group_by("left.name", name="it").agg(rows=agg.count(), sum=agg.sum("left.amount"))


def count_of_a_star_by_its_key(of: Sources) -> Table:
    """No column of the joined row is read."""
    first = fk_join(of.orders, of.customers, "customer_id", joiner=["left.shop", "right.name"], name="first")
    both = fk_join(first, of.shops, "shop", joiner=["left.shop", "left.name"], name="both")
    return both.group_by("order_id", name="it").count()


def every_update_of_a_view(of: Sources) -> Table:
    """The join sends no update for another name of the same row."""
    joined = fk_join(of.orders, of.customers, "customer_id", joiner=["right.region > '1' as far"], name="joined")
    return joined.filter("far is not null", name="it", emit="on-update")


def every_update_of_a_star(of: Sources) -> Table:
    """Another name of a customer updates the sums of its orders."""
    first = fk_join(of.orders, of.customers, "customer_id", joiner=["left.shop", "left.amount", "right.name"], name="first")
    both = fk_join(first, of.shops, "shop", joiner=["left.amount", "left.name", "right.town"], name="both")
    return both.group_by(["order_id", "town"], name="it", emit="on-update").sum("amount")


def join_of_a_star_without_right_rows(of: Sources) -> Table:
    """A right row that is not there is null, not a struct of nulls."""
    first = fk_join(of.orders, of.customers, "customer_id", "left", name="first")
    both = fk_join(first, of.shops, "left.shop", "left", name="both")
    joiner = ["left.left.right as customer", "left.right.town"]
    return fk_join(both, of.products, "right.town", "left", joiner, "it")


OWN: dict[Callable[[Sources], Table], str] = {
    joiner_of_structs: known.RESOLVE_MAKES_ROWS,
    sums_of_a_view_with_rows: known.RESOLVE_MAKES_ROWS,
    filter_of_rows_on_whose_joiner_throws: known.FILTER_GOES_BELOW_JOIN,
    filter_after_one_that_throws: known.FILTER_GOES_BELOW_JOIN,
    star_over_a_join_with_a_join_on_its_right: known.JOINS_SHARE_STAGES,
    sums_of_a_star_with_one_table_twice: known.JOINS_SHARE_STAGES,
    join_of_a_star_without_right_rows: known.ANSWERS_KEEP_WHAT_IS_READ,
    count_of_a_star_by_its_key: known.ANSWERS_KEEP_WHAT_IS_READ,
    every_update_of_a_view: known.VIEW_READS_ANSWERS,
    every_update_of_a_star: known.ANSWERS_KEEP_WHAT_IS_READ,
}
"""Topologies, and the rule that each is also built without."""
BUILDERS: dict[str, Callable[[Any], Any]] = {name: one.build for name, one in TOPOLOGIES.items()}
BUILDERS |= {build.__name__: build for build in OWN}
PAIRS = [(name, f"without {rule}") for name, one in TOPOLOGIES.items() for rule in one.without if "job" not in name]
FIRST = list({choice: (name, choice) for name, choice in reversed(PAIRS)}.values())
ELSEWHERE = (known.SINKS_SHARE_A_QUERY, known.STAGES_SHARE_AN_OPERATOR)
"""Rules that are for jobs, and for one bucket: tests/lowering/test_interpreters.py."""
OTHERS = [(build.__name__, f"without {rule}") for build, rule in OWN.items()]
CHOICES_OF_OTHERS = {choice for _, choice in OTHERS}
SAMPLE = [*OTHERS, *(pair for pair in FIRST if pair[1] not in CHOICES_OF_OTHERS)]
EVERY_PAIR = [*PAIRS, *OTHERS, ("join_with_an_aggregate_of_itself", "no rules")]
BATCHES = 6 if EVERY else 2
"""Batches of a history; in later ones rows of the first one change."""


def tables_after(table: Table, history: History) -> list[tuple[Counter[str], dict[Any, dict[str, Any]]]]:
    """The changes of each batch, and the table after it."""
    driver, tables = Driver(table), []
    for batch in history:
        for name, changes in batch.items():
            for change in changes:
                fed = driver.input(name)
                if change.problem is not None:
                    fed.unusable("{", change.problem)
                elif change.row is None:
                    fed.delete(change.key, version=change.version)
                else:
                    fed.change(change.key, change.row, version=change.version)
        changes = Counter(map(repr, driver.run()))
        tables.append((changes, dict(driver.table)))
    return tables


@pytest.mark.faults
@pytest.mark.parametrize(("name", "choice"), sampled(EVERY_PAIR, SAMPLE))
def test_a_table_is_the_same_without_a_rule(spark: SparkSession, tmp_path: Path, name: str, choice: str) -> None:
    small(spark, tmp_path, buckets=2)
    history, seen = None, []
    for rules_of_session in ("all rules", choice):
        with rules(spark, rules_of_session):
            table = BUILDERS[name](Sources(spark, tmp_path, {}))
            history = history or Interpreted(table).history(random.Random(name), BATCHES, 40, 0.1, ties=False)
            seen.append(tables_after(table, history))
    assert seen[0] == seen[1]
    assert any(table for _, table in seen[0])


def test_each_rule_of_tables_is_left_out_of_a_topology_and_documented() -> None:
    assert {choice for _, choice in FIRST} == {f"without {rule}" for rule in RULES if rule not in ELSEWHERE}
    text = (ROOT / "docs" / "optimizer.md").read_text()
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []


@pytest.mark.usefixtures("small_tables")
def test_a_rule_that_there_is_not_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    orders, _ = tables(spark, tmp_path)
    spark.conf.set(EXCLUDED, "view-reads-answer")
    with pytest.raises(SessionError, match="there is no rule 'view-reads-answer'; did you mean 'view-reads-answers'"):
        orders.filter("true")


@pytest.mark.usefixtures("small_tables")
def test_a_filter_below_a_join_keeps_rows_out_of_its_stores_and_can_be_switched(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, validate=True)
    history, checkpoint = Orders(tmp_path), tmp_path / "checkpoint"

    def write() -> None:
        """Some changes, after which the table is a batch join."""
        history.write(60)
        joiner, out = ["left.items", "right.region"], tmp_path / "out"
        joined = fk_join(*tables(spark, tmp_path), "customer_id", joiner=joiner, name="joined")
        some = joined.filter("items > 2").filter("region = 'north'", name="north")
        north = some.materialize("north")
        north.to_parquet(out, checkpoint=checkpoint, trigger="available-now").awaitTermination()
        rows = read_state(spark, checkpoint, "north").collect()
        joined_rows = batch_join(history).items()
        wanted = {key for key, row in joined_rows if row["items"] > 2 and row["region"] == "north"}
        assert {row.order_id for row in rows} == wanted

    write()
    below = Counter[str]()
    for store in saved_stores(spark, checkpoint):
        below.update(entry.kind for entry in entries(spark, store).collect() if not entry.gone)
    assert below["left"] == sum(order["items"] > 2 for order in history.orders.values())
    assert below["right"] == sum(customer["region"] == "north" for customer in history.customers.values())
    for excluded in (known.FILTER_GOES_BELOW_JOIN, ""):
        spark.conf.set(EXCLUDED, excluded)
        write()


def test_an_answer_that_leaves_the_joined_row_as_it_was_changes_no_group(spark: SparkSession, tmp_path: Path) -> None:
    of = Sources(spark, tmp_path, {})
    orders = of.files("orders", "order_id", "order_id string, customer_id string, amount int, at timestamp", timestamp="at")
    joiner = ["left.amount > 10 as large", "right.region"]
    joined = fk_join(orders, of.customers, "customer_id", joiner=joiner, name="joined")
    driver = Driver(joined.group_by("region", name="counted").count())
    driver.input("customers").change("c1", {"region": "north"})
    counts = []
    for second, amount in enumerate((20, 30)):
        at = datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.timezone.utc)
        driver.input("orders").change("o1", {"customer_id": "c1", "amount": amount}, timestamp=at)
        counts.append([change.row["count"] for change in driver.run() if change.row])
    assert counts == [[1], []]


def test_a_foreign_key_in_a_struct_is_no_column_that_is_called_as_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    of = Sources(spark, tmp_path, {})
    orders = of.files("orders", "order_id", "order_id string, customer_id string, `a.b` string, a struct<b: string>")
    first = fk_join(orders, of.customers, "customer_id", name="first")
    second = fk_join(first, of.products, "left.a.b", name="second")
    assert second._plan.joins is not None
    assert [key.path for key in second._plan.joins.bound or ()] == [("customer_id",), ("a", "b")]
