"""``fkjoin.testing.Driver``: whatever happens on the way, the table is what a batch comes to.

That its interpreter makes what a query makes: tests/lowering/test_interpreters.py.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from fkjoin.testing import CRASH, DUPLICATE, REORDER, Driver
from tests.support.documents import blocks
from tests.support.driven import Change, feed
from tests.support.places import ROOT
from tests.support.plans.topologies import SIDES, Sources
from tests.support.sampling import examples
from tests.support.sessions import small


def order(customer: str | None, amount: int, shop: str | None = None) -> dict[str, Any]:
    return {"customer_id": customer, "amount": amount, "shop": shop}


def visited(of: Sources, folder: Path) -> Enriched:
    """Visits, each with what its visitor has ordered; of columns of the stream's own."""
    (folder / "visits").mkdir(exist_ok=True)
    visits = of.spark.readStream.schema("visitor string, page string").json(str(folder / "visits"))
    spent = of.orders.group_by("customer_id", name="spent").agg(spent=agg.sum("amount"), n=agg.count())
    shown = visits.where("page is not null")
    return spent.enrich(shown, on=shown["visitor"], how="left", name="visited", events_name="visits")


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("shop")
    small(spark, folder)
    return Sources(spark, folder, {})


def test_each_event_is_joined_once_with_the_row_of_its_batch(shop: Sources, tmp_path: Path) -> None:
    driver = Driver(visited(shop, tmp_path))
    assert repr(driver.input("visits")) == "DriverInput[visits; columns: visitor, page]"

    def visit(who: str | None, what: Any = None) -> list[Any]:
        driver.input("visits").event({"visitor": who, "page": "a"})
        return [(change.key, change.operation, *(change.row or {}).values()) for change in driver.run(what)]

    assert visit("c1") == [(None, "insert", "c1", "a", None, None)]
    for number in range(4):
        driver.input("orders").change(f"o{number}", order("c1", 5))
    assert visit("c1", CRASH) == [(None, "insert", "c1", "a", 20, 4)]
    driver.input("orders").change("o1", order("c2", 5))
    assert visit("c2", DUPLICATE) == [(None, "insert", "c2", "a", 5, 1)], "tables come again, events do not"
    assert visit(None, REORDER) == [(None, "insert", None, "a", None, None)]
    assert driver.count["stale-dropped"] == 5
    assert (len(driver.results), driver.table, driver.dead_letters) == (4, {}, [])
    spent = driver.store("spent")
    assert (repr(spent), spent.get("c2")["spent"]) == ("DriverStore[spent]", 5)  # type: ignore[index]
    columns = "customer_id, product, shop, amount, op"
    assert repr(driver.input("orders")) == f"DriverInput[orders; key: order_id; columns: {columns}]"


SHOPS = st.sampled_from(["a", "b", "a b", None])
ORDERS = st.builds(order, st.sampled_from(["c1", "c2", None]), st.integers(0, 4), SHOPS)
NAMED = st.builds(dict, name=st.sampled_from(["Ada", "Bo"]))
CHANGES = st.one_of(
    st.tuples(st.just("orders"), st.sampled_from(["o1", "o2"]), st.none() | ORDERS),
    st.tuples(st.just("returns"), st.sampled_from(["o1", "o2"]), st.none() | ORDERS),
    st.tuples(st.just("customers"), st.sampled_from(["c1", "c2"]), st.none() | NAMED),
)
STEPS = st.lists(
    st.tuples(st.lists(CHANGES, max_size=4), st.sampled_from([None, CRASH, DUPLICATE, REORDER])), min_size=1, max_size=3
)


def chain(shop: Sources) -> Table:
    named = fk_join(shop.orders, shop.customers, "customer_id", "left", ["left.amount", "right.name"], name="chain")
    return named.filter("amount > 0", name="some").group_by("name", name="sums").agg(amount=agg.sum("amount"), n=agg.count())


def merged(shop: Sources) -> Table:
    over = Table.merge(shop.returns.filter("amount > 2", name="large"), shop.orders, name="over")
    rows = "transform(split(shop, ' '), item -> struct(item, amount))"
    return over.flat_map(rows, key="item", name="by_item")


def paired(shop: Sources) -> Table:
    joiner = ["left.amount as had", "right.amount as back"]
    return shop.orders.join(shop.returns, how="outer", joiner=joiner, name="pairs").materialize("pairs")


@pytest.fixture(scope="module")
def drivers(shop: Sources) -> dict[str, Driver]:
    return {build.__name__: Driver(build(shop)) for build in (chain, merged, paired)}


@pytest.mark.parametrize("name", ["chain", "merged", "paired"])
@given(steps=STEPS)
@settings(max_examples=examples(30))
def test_whatever_happens_the_table_is_of_one_batch(drivers: Any, name: str, steps: Any) -> None:
    driver = drivers[name]
    driver.clear()
    final: dict[tuple[str, str], Change] = {}
    for batch, what in steps:
        known = [change for change in batch if change[0] in driver.inputs]
        feed(driver, known)
        driver.run(what)
        final |= {change[:2]: change for change in known}
    table = dict(driver.table)
    if name == "paired":
        kept = {row["order_id"]: row for row in driver.store("pairs").all()}
        assert {key: (row["had"], row["back"]) for key, row in kept.items()} == {
            key: (row["had"], row["back"]) for key, row in table.items()
        }
    driver.clear()
    feed(driver, [change for change in final.values() if change[2] is not None])
    driver.run()
    assert table == driver.table


def test_what_happens_to_a_batch_does_happen(drivers: dict[str, Driver]) -> None:
    """Each is red if it is left out: stages run once more, changes come that are stale, and in other batches."""
    driver = drivers["paired"]
    driver.clear()
    feed(driver, [("orders", "o1", order("c1", 1)), ("returns", "o1", order("c1", 2))])
    runs: list[int] = []
    query: Any = driver._queries
    stage = type(query.stages[0].memory_stage)
    run_of = stage.run

    def counting(self: Any, *arguments: Any) -> Any:
        runs.append(sum(len(store) for store in self.stores.values()))
        return run_of(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "run", counting)
        assert [change.operation for change in driver.run(CRASH)] == ["insert"]
        assert runs == [0, 0], "what the lost batch wrote is lost"
        assert driver.count["stale-dropped"] == 0
        assert driver.run(DUPLICATE) == []
        assert driver.count["stale-dropped"] == 2
        runs.clear()
        feed(driver, [("orders", f"o{at}", order("c1", at + 10)) for at in range(8)])
        assert len(driver.run(REORDER)) == 8
        assert len(runs) == 4, "ten changes, three at a time"
        assert driver.count["stale-dropped"] > 2


def test_a_moved_clock_ends_intervals_and_timestamps_are_carried_on(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    orders = Sources(spark, tmp_path, {}).files("orders", *SIDES["orders"], timestamp="lsn")
    table = orders.group_by("customer_id", name="slow", emit="periodic 1 minute").agg(n=agg.count())
    driver = Driver(table)
    driver.input("orders").change("o1", order("c1", 1), timestamp=70)
    assert driver.run() == []
    assert driver.advance("59 seconds") == []
    driver.input("orders").change("o2", order("c1", 1), timestamp=90)
    assert driver.advance(timedelta(seconds=1)) == [("c1", "insert", {"n": 2}, 90)]
    assert (driver.advance("5 minutes"), driver.now) == ([], timedelta(minutes=6))
    driver.input("orders").delete("o1", timestamp=95)
    driver.input("orders").delete("o2", timestamp=99)
    assert driver.run(CRASH) == []
    assert driver.advance("1 minute") == [("c1", "delete", None, 99)]
    assert driver.results == [("c1", "insert", {"n": 2}, 90), ("c1", "delete", None, 99)]


def test_the_example_in_the_how_to_is_true(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    for name in ("orders", "customers", "clicks"):
        (tmp_path / name).mkdir()
    there = {"spark": spark, "folder": tmp_path}
    for code in ("Driver(revenue)", "Driver(seen)"):
        (block,) = (block for block in blocks(ROOT / "docs" / "testing.md") if code in block.text)
        exec(block.text, there)


def test_what_is_wrong_is_refused_and_the_way_out_is_one(shop: Sources, tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="table: a Table is needed, this is a dict"):
        Driver({})  # type: ignore[arg-type]
    events = Driver(visited(shop, tmp_path)).input("visits")
    driver = Driver(paired(shop))
    orders = driver.input("orders")
    refused: list[tuple[Any, str]] = [
        (lambda: fk_join(shop.orders, shop.customers, "customer_id", "banana"), "banana"),  # type: ignore[arg-type]
        (lambda: driver.input("order"), "no source 'order'; did you mean 'orders'"),
        (lambda: orders.change("o1", {"amout": 1}), "orders has no column 'amout'; did you mean 'amount'"),
        (lambda: orders.change("o1", {"amount": "x"}), "'x' cannot be a value of column amount, which"),
        (lambda: orders.change("o1", {"order_id": "o2"}), "order_id is 'o2', and the key is 'o1'"),
        (lambda: orders.change(1, {}), "key: 1 cannot be a value of column order_id"),
        (lambda: orders.change("o1", None), "delete"),
        (lambda: orders.change("o1", {}, timestamp=1), "orders has no timestamps"),
        (lambda: orders.delete(None), "a key has no nulls"),
        (lambda: orders.delete("o1", version="1"), "version: '1' is not a whole number"),
        (lambda: orders.event({}), "event: orders is a table; feed its rows with change"),
        (lambda: events.change("c1", {}), "input: visits are events, which have no key; feed them with event"),
        (lambda: events.delete("c1"), "input: visits are events"),
        (lambda: events.unusable("{", "no JSON"), "input: visits are events"),
        (lambda: events.event({"pag": "a"}), "visits has no column 'pag'; did you mean 'page'"),
        (lambda: events.event({"page": 1}), "event: 1 cannot be a value of column page, which is string"),
        (lambda: events.event("a"), "event: 'a' is not a dict of columns"),
        (lambda: driver.run("CRASH"), "none of CRASH, DUPLICATE, REORDER"),
        (lambda: driver.advance("soon"), "'soon' is not a duration"),
        (lambda: driver.advance("-1 s"), "must be a duration"),
        (lambda: driver.store("pair"), "did you mean 'pairs'"),
        (lambda: driver.store("pairs").get(1), "cannot be a value of column order_id"),
    ]
    for call, said in refused:
        with pytest.raises(FkJoinError, match=said):
            call()
    assert driver.run() == []
    assert driver.store("pairs").get("o9") is None
    events.event({})
    orders.delete("o1")
    assert driver.advance("1 second") == []
    driver = Driver(shop.files("timed", "id", "id int", timestamp="lsn"))
    driver.input("timed").change(1, {}, timestamp=7)
    (change,) = driver.run()
    assert (change.key, change.operation, change.timestamp) == (1, "upsert", 7)
