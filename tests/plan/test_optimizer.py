"""The optimizer's rules: each fires where it may, says why where not, can be switched off, and changes no result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.checkpoint.upkeep import verify
from fkjoin.errors import SessionError
from fkjoin.plan.rules import RULES
from fkjoin.sessions.settings import EXCLUDED, OPTIMIZE
from tests.support.orders import History, tables
from tests.support.places import ROOT
from tests.support.queries import run, table_of, write_lines
from tests.support.sampling import EVERY, sampled

pytestmark = pytest.mark.usefixtures("own_rules")


def viewed(orders: Table, customers: Table) -> Table:
    """A filter over key, left and right row, and columns made of what it lets through: of a left join, unmatched rows too."""
    joined = fk_join(orders, customers, "customer_id", "left", name="joined")
    some = joined.filter("left.items > 1 or right.region = 'north' or order_id = 'o1'")
    return some.map_values(["order_id as its_key", "left.items * 10 as tens", "upper(right.region) as region"], name="it")


def viewed_with_a_joiner(orders: Table, customers: Table) -> Table:
    joined = fk_join(orders, customers, "customer_id", joiner=["left.items", "right.region"], name="joined")
    return joined.filter("items > 1 and region is not null", name="it")


@pytest.mark.nightly
@pytest.mark.faults
@pytest.mark.parametrize("made", sampled([viewed, viewed_with_a_joiner], [viewed]))
def test_a_view_reads_answers_and_comes_out_the_same(
    spark: SparkSession, tmp_path: Path, made: Callable[[Table, Table], Table]
) -> None:
    """Without the rule, in a sample, in one batch.  Of aggregates: tests/api/test_aggregates.py, a join is summed up."""
    rule = "view-reads-answers"
    history, seen = History(tmp_path), {name: list[Row]() for name in ("", rule)}
    for part in range(2):
        history.write(70)
        found = {}
        for excluded, rows in seen.items():
            if excluded and not part and not EVERY:
                continue
            spark.conf.set(EXCLUDED, excluded)
            table = made(*tables(spark, tmp_path))
            text = table.describe()
            if excluded:
                assert f"{rule} did not fire: spark.fkjoin.optimizer.excludedRules names it" in text
                assert "store joined-resolve\n" in text
            else:
                assert f"{rule} fired" in text
                assert "store joined-resolve\n" not in text
                assert ", in place of joined-resolve" in text
            rows += run(table.changes, tmp_path / f"ck{excluded}").rows
            plain = [name for name in rows[0].asDict() if not name.startswith("_")]
            found[excluded] = {key: [row[name] for name in plain] for key, row in table_of(rows, *table.key).items()}
        assert all(one == found[""] for one in found.values())
        assert found[""]
    assert set(found) == {"", rule}


def joins_of_joins(orders: Table, customers: Table, regions: Table) -> Table:
    """Two operators that read the answers of the one before, as they are."""
    joined = fk_join(orders, customers, "customer_id", "left", name="joined")
    columns = ["left.left.items", "left.left.customer_id", "right.n"]  # without the one that names the region
    both = fk_join(joined, regions, "right.region", "left", columns, "both")
    return customers.with_children(both, "customer_id", column="orders", name="book")


def joins_of_views(orders: Table, customers: Table, regions: Table) -> Table:
    """Joins of rows that Spark has evaluated: a filter, columns, a function for the foreign key, sums of expressions."""
    joined = fk_join(orders, customers, "customer_id", "left", name="joined")
    seen = joined.filter("left.items > 1 or right.region = 'north'").map_values(["left.items", "right.region"], name="seen")
    both = fk_join(seen, regions, lambda key, row: row["region"], joiner=["left.items * 2 as twice", "right.n"], name="both")
    return both.filter("n > 1").group_by("n % 2 as odd", name="sums").agg(rows=agg.count(), sum=agg.sum("twice * n"))


@pytest.mark.nightly
@pytest.mark.faults
@pytest.mark.parametrize("made", sampled([joins_of_joins, joins_of_views], [joins_of_joins]))
def test_a_join_and_an_aggregate_of_a_join_read_its_answers_and_come_out_the_same(
    spark: SparkSession, tmp_path: Path, made: Callable[[Table, Table, Table], Table]
) -> None:
    """Without the rules in one batch, with them in two; the law of answers: tests/stages/test_contribute.py."""
    history = History(tmp_path)
    found: dict[str, list[Row]] = {"with": [], "without": []}

    def go_on(how: str) -> None:
        spark.conf.set(OPTIMIZE, str(how == "with").lower())
        about: dict[str, Any] = {
            "key": "region",
            "version": "lsn",
            "schema": "region string, n bigint, lsn bigint",
            "format": "json",
        }
        regions = Table.from_files(spark, tmp_path / "regions", **about)
        table = made(*tables(spark, tmp_path), regions)
        text = table.describe()
        assert text.count("-reads-answers fired") == (2 if how == "with" else 0)
        assert text.count("answers-keep-what-is-read fired") == (1 if how == "with" else 0)
        assert ("resolve       repartition" in text) == (how == "without"), "with the rules nothing is resolved in between"
        found[how] += run(table.changes, tmp_path / how).rows

    for part in range(2):
        history.write(70)
        rows = [{"region": region, "n": n + 2 * part, "lsn": part} for n, region in enumerate(("north", "south"))]
        write_lines(tmp_path / "regions", str(part), rows)
        go_on("with")
    go_on("without")
    spark.conf.set(OPTIMIZE, "true")
    key = "customer_id" if made is joins_of_joins else "odd"
    plain = [name for name in found["with"][0].asDict() if not name.startswith("_")]
    tables_ = [{row[key]: [row[name] for name in plain] for row in table_of(rows, key).values()} for rows in found.values()]
    assert tables_[0] == tables_[1]
    assert tables_[0]


def test_who_reads_the_join_and_what_is_made_of_it_gets_both(spark: SparkSession, tmp_path: Path) -> None:
    """The join stands twice in the query: for the aggregate without resolve, and with it."""
    history = History(tmp_path)
    history.write(80)
    orders, customers = tables(spark, tmp_path)
    joined = fk_join(orders, customers, "customer_id", name="joined")
    regions = joined.group_by("right.region", name="regions").agg(n=agg.count())
    both = fk_join(joined, regions, "right.region", joiner=["left.right.region", "right.n"], name="both")
    found = {key[0]: row["n"] for key, row in table_of(run(both.changes, tmp_path / "ck").rows, "order_id").items()}
    assert verify(spark, tmp_path / "ck") == []
    homes = {folder.name for folder in (tmp_path / "index").glob("*/joined-rekey/*")}
    assert len(homes) == 4, "two buckets, twice: neither rebuilds the other's index"
    region_of = {
        key: history.customers[order["customer_id"]]["region"]
        for key, order in history.orders.items()
        if order["customer_id"] in history.customers
    }
    wanted = list(region_of.values())
    assert found == {key: wanted.count(region) for key, region in region_of.items() if region is not None}


def test_why_a_rule_did_not_fire_is_said(spark: SparkSession, tmp_path: Path) -> None:
    orders, customers = tables(spark, tmp_path)
    joined = fk_join(orders, customers, "customer_id", name="joined")

    def said(table: Table) -> str:
        return next(line for line in table.describe().splitlines() if line.startswith("  rule")).split("fire: ")[1]

    assert said(joined.materialize("kept").filter("true")) == "joined keeps its rows, as kept"
    held = fk_join(orders, customers, "customer_id", name="held", emit="periodic")
    assert said(held.filter("true")) == "held is held back"
    spark.conf.set(OPTIMIZE, "false")
    assert said(joined.filter("true")) == "spark.fkjoin.optimize is false"
    assert "reads-answers" not in orders.filter("true").describe(), "it is of no join"
    spark.conf.set(OPTIMIZE, "true")
    spark.conf.set(EXCLUDED, "view-reads-answer")
    with pytest.raises(SessionError, match="there is no rule 'view-reads-answer'; did you mean 'view-reads-answers'"):
        joined.filter("true")


def test_every_rule_is_documented() -> None:
    text = (ROOT / "docs" / "optimizer.md").read_text()
    for rule in RULES:
        assert f"`{rule}`" in text
