"""``workers-evaluate-steps``: rows of files after steps, by workers and by Spark.

Of topics: integration/test_aggregates.py and integration/test_broker.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import EXCLUDED
from tests.support.orders import CUSTOMER, ORDER, History, tables
from tests.support.queries import run, table_of, values
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("small_tables")


BY = "case when items > 2 then 'c1' else customer_id end"
NAMES = ["buyer", "more", "twice", "some", "region"]
GONE = "op = 'd' or (items between 3 and 4 and amount is null)"
WAYS = (({}, ""), ({}, WORKERS_EVALUATE_STEPS), ({"mode": "PERMISSIVE"}, ""))
"""By workers, and by Spark: without the rule, and of lines that Spark reads itself, with an option of its reader."""


def bought(orders: Table) -> Table:
    """Conditions over row and key, one after the other; columns; and a condition over what they make."""
    some = orders.filter("items > 0 and (amount >= 0.2 or amount is null)").filter("order_id <> 'o3'")
    made = some.map_values(
        [f"{BY} as buyer", "items + 1 as more", "amount * 2 as twice", "if(items > 1, amount, null) as some"]
    )
    return made.filter("more < 5", name="bought")


def wanted(history: History) -> dict[tuple[str], tuple[Any, ...]]:
    """Return what each order buys, by plain Python, with its customer's region."""
    rows = {}
    for key, row in history.orders.items():
        amount, items = row["amount"], row["items"]
        gone = items in (3, 4) and amount is None
        if not gone and 0 < items < 4 and (amount is None or amount >= 0.2) and key != "o3":
            buyer = "c1" if items > 2 else row["customer_id"]
            region = history.customers.get(buyer, {}).get("region")
            twice = None if amount is None else amount * 2
            rows[(key,)] = buyer, items + 1, twice, amount if items > 1 else None, region
    return rows


def parsed_by_workers(table: Table) -> int:
    """The number of the query's sources that workers read."""
    return int(table._plan.frame._jdf.queryExecution().analyzed().toString().count("PackRead"))


@pytest.mark.faults
@pytest.mark.parametrize(("options", "off"), sampled(WAYS, WAYS[:2]))
def test_rows_after_steps_are_those_of_python(spark: SparkSession, tmp_path: Path, options: dict[str, str], off: str) -> None:
    """Deletes and foreign keys may be expressions."""
    history = History(tmp_path)
    history.write(150)
    spark.conf.set(EXCLUDED, off)
    about: Any = {"version": "lsn", "format": "json", "options": options}
    orders = Table.from_files(spark, tmp_path / "orders", key="order_id", schema=ORDER, deleted=GONE, **about)
    customers = Table.from_files(spark, tmp_path / "customers", key="customer_id", schema=CUSTOMER, deleted="op = 'd'", **about)
    columns = [*(f"left.{name}" for name in NAMES[:-1]), "right.region"]
    joined = fk_join(bought(orders), customers, "coalesce(buyer, 'c1')", "left", columns, "it")
    assert parsed_by_workers(joined) == (0 if options else 1 if off else 2)
    found = values(table_of(run(joined.changes, tmp_path / "checkpoint").rows, "order_id"), NAMES)
    assert {key: tuple(row) for key, row in found.items()} == wanted(history)
    assert len({row[-1] for row in wanted(history).values()}) == 3


def test_it_does_not_fire_after_a_step_of_sparks(spark: SparkSession, tmp_path: Path) -> None:
    orders, _ = tables(spark, tmp_path)
    roots = orders.map_values("sqrt(amount) as root", name="roots").filter("root > 1")
    why = "did not fire: map_values sqrt(amount) as root is left to Spark\n"
    assert f"{WORKERS_EVALUATE_STEPS} {why}" in roots.describe()
