"""Tables that are bound again are what was asked for, whatever has changed since their calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from fkjoin import Table, TopologyError, cogroup, fk_join, window
from fkjoin import aggregates as agg
from fkjoin.analysis.planned import SourceBound, sources_below
from fkjoin.folds.calls import Called
from fkjoin.kafka import Debezium, Json
from fkjoin.lowering.aggregates import AggregateBound
from fkjoin.lowering.as_begun import _calls, bound_again
from fkjoin.plan.physical import reads, stages
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import BUCKETS, EXCLUDED, INDEX_DIR, RETENTION, VALIDATE
from tests.support.queries import write_lines
from tests.support.sessions import conf, small

ORDERS = "order_id string, customer_id string, amount double, at timestamp, of timestamp, lsn bigint"
OTHER_ORDERS = ORDERS.replace("amount double", "amount bigint").replace("at timestamp", "at bigint")
"""Other types of a value whose mean is of the same type, and of the timestamp, which is not a column of the rows."""
CUSTOMERS = "customer_id string, name string, lsn bigint"


class Point(NamedTuple):
    x: int
    y: int


def test_a_format_keeps_copies_of_what_can_be_changed() -> None:
    kind, source, units = StructType().add("at", StringType()), StructType().add("lsn", StringType()), {"at": "millis"}
    formats: list[Any] = [Json(kind, units=units), Debezium(kind, source, units)]
    kind.add("more", StringType())
    source.add("more", StringType())
    units.clear()
    assert [(one.schema.names, one.units) for one in formats] == [(["at"], {"at": "millis"})] * 2
    assert formats[1].source.names == ["lsn"]


class Shop(NamedTuple):
    orders: Table
    customers: Table
    stream: DataFrame


def shop(spark: SparkSession, folder: Path, schema: str = ORDERS) -> Shop:
    """Tables of two files, the first of that schema; what they were given is changed afterwards."""
    small(spark, folder, buckets=2)
    write_lines(folder / "orders", "1", [{"order_id": "o1", "customer_id": "c1", "amount": 1.0, "lsn": 1}])
    write_lines(folder / "customers", "1", [{"customer_id": "c1", "name": "Ada", "lsn": 1}])
    key, options = ["order_id"], {"pathGlobFilter": "*.json"}
    about: dict[str, Any] = {"version": "lsn", "deleted": "lsn < 0", "format": "json"}
    orders = Table.from_files(
        spark, folder / "orders", key=key, schema=schema, timestamp="at", options=options, name="orders", **about
    )
    key[0], options["pathGlobFilter"] = "amount", "*.none"
    customers = Table.from_files(spark, folder / "customers", key="customer_id", schema=CUSTOMERS, name="customers", **about)
    return Shop(orders, customers, spark.readStream.format("rate").load())


def other(given: list[Any]) -> None:
    given[0] = "order_id"


Change = tuple[Callable[[Shop, Any], Table], Callable[[], Any], Callable[[Any], Any]]
CHANGES: dict[str, Change] = {
    "map_values": (lambda of, given: of.orders.map_values(given), lambda: ["amount"], lambda given: given.append("of")),
    "with_columns": (
        lambda of, given: of.orders.with_columns(given),
        lambda: {"twice": "amount * 2", "thrice": F.col("amount") * 3},
        lambda given: given.update(twice="amount * 4"),
    ),
    "fk_join": (lambda of, given: fk_join(of.orders, of.customers, given, spread=2), lambda: ["customer_id"], other),
    "joiner": (
        lambda of, given: fk_join(of.orders, of.customers, "customer_id", joiner=given),
        lambda: ["left.amount"],
        lambda given: given.append("right.name"),
    ),
    "with_children": (lambda of, given: of.customers.with_children(of.orders, given), lambda: ["customer_id"], other),
    "enrich": (
        lambda of, given: of.customers.enrich(of.stream.selectExpr("string(value) as id", "timestamp"), given),
        lambda: ["id"],
        lambda given: given.append("timestamp"),
    ),
    "flat_map": (
        lambda of, given: of.orders.flat_map(lambda key, row: [], key="sku", returns=given),
        lambda: StructType().add("sku", StringType()),
        lambda given: given.add("more", StringType()),
    ),
    "group_by": (lambda of, given: of.orders.group_by(given).count(), lambda: ["customer_id"], other),
    "window": (
        lambda of, given: of.orders.group_by(given, emit="on-close").count(),
        lambda: [window("of", "1 minute"), "customer_id"],
        lambda given: given.append("amount"),
    ),
    "aggregate": (
        lambda of, given: of.orders.group_by("customer_id").aggregate(given, added, added, returns="array<array<string>>"),
        lambda: [["none"]],
        lambda given: given[0].append("one"),
    ),
    "aggregate of an array": (
        lambda of, given: of.orders.group_by("customer_id").aggregate(given, added, added, returns="array<double>"),
        lambda: np.zeros(2),
        lambda given: given.fill(1),
    ),
    "aggregate of a tuple with names": (
        lambda of, given: of.orders.group_by("customer_id").aggregate(given, added, added, returns="struct<x: int, y: int>"),
        lambda: Point(1, 2),
        lambda given: None,
    ),
    "cogroup": (
        lambda of, given: cogroup(
            of.orders.group_by(given, name="means").agg(mean=agg.avg("amount")),
            of.orders.group_by("customer_id", name="counts").agg(n=agg.count()),
            name="both",
        ),
        lambda: ["customer_id"],
        other,
    ),
    "from_stream": (
        lambda of, given: Table.from_stream(of.stream, key="timestamp", version=given).filter("true"),
        lambda: ["value"],
        lambda given: given.append("value + 1"),
    ),
}
"""Calls, what each is given, and what the user does with that afterwards."""


def added(key: Any, value: Any, aggregate: Any) -> Any:
    return aggregate


def again(table: Table) -> Table:
    """The table, all of whose sources are read again, and which is bound again to the end."""
    planned = table._planned
    made: Table = Table._of(bound_again(planned, {one: {} for one in _calls(planned) if one.call is not None}))
    return made


def said_of(table: Table) -> tuple[Any, ...]:
    """A table's node, types and settings; for an aggregate by functions, also the value that a group begins with."""
    planned = table._planned
    columns = planned.bound.fold.columns if isinstance(planned.bound, AggregateBound) else ()
    starts = [str(column.initializer()) for column in columns if isinstance(column, Called)]
    parsed = isinstance(planned.bound, SourceBound) and planned.bound.undecoded is not None
    settings = None if isinstance(planned.bound, SourceBound) else planned.bound.settings
    return planned.node, planned.key_type, planned.row_type, starts, settings, parsed


OTHERS = {BUCKETS: "1", RETENTION: "5000", VALIDATE: "true", EXCLUDED: WORKERS_EVALUATE_STEPS}
"""Settings as of another pipeline."""


def test_what_is_changed_after_a_call_changes_no_table(spark: SparkSession, tmp_path: Path) -> None:
    of = shop(spark, tmp_path)
    assert said_of(of.orders)[-1], "by workers"
    assert of.orders._as_begun(str(tmp_path / "checkpoint"))[0] is of.orders._plan, "nothing is made again or copied"
    tables = {}
    for name, (call, given, change) in CHANGES.items():
        said, argument = said_of(call(of, given())), given()
        tables[name] = call(of, argument), said
        change(argument)
        assert said_of(tables[name][0]) == said, name
    with conf(spark, OTHERS | {INDEX_DIR: str(tmp_path / "elsewhere")}):
        assert said_of(again(of.orders)) == said_of(of.orders)
        for name, (table, said) in tables.items():
            repeated = again(table)
            assert repeated._planned is not table._planned or name == "from_stream", name
            assert said_of(repeated) == said, name
        assert said_of(again(repeated)) == said


def test_a_source_of_other_types_is_known_to_all_that_is_made_of_it(spark: SparkSession, tmp_path: Path) -> None:
    of, others = shop(spark, tmp_path), shop(spark, tmp_path, OTHER_ORDERS)
    read_again = {of.orders._planned: {"schema": others.orders._planned.call.options["schema"]}}  # type: ignore[union-attr]
    for name, (call, given, _) in CHANGES.items():
        if name == "window":
            with pytest.raises(TopologyError, match="timestamp"):
                bound_again(call(of, given())._planned, read_again)
            continue
        table = Table._of(bound_again(call(of, given())._planned, read_again))
        wanted = call(others, given())
        assert said_of(table) == said_of(wanted), name
        assert table._planned.timestamps == wanted._planned.timestamps, name
        assert specs_of(table) == specs_of(wanted), name


def specs_of(table: Table) -> list[tuple[str, str, str]]:
    """The stages of a table, what binds the store of each, and the columns that an aggregate folds, with their types."""
    return [(spec.name, spec.state.identity, repr(getattr(spec, "fold", None))) for spec in stages(table._plan.top)]


def test_a_source_that_is_read_again_is_read_by_all_that_is_made_of_it(spark: SparkSession, tmp_path: Path) -> None:
    of = shop(spark, tmp_path)
    customers = tmp_path / "snapshot"
    spark.createDataFrame([("c1", "Ada")], "customer_id string, name string").write.parquet(str(customers))
    begun = of.customers.with_snapshot(customers)
    tables = {
        "snapshot": begun,
        "materialized": begun.materialize("kept"),
        "view": begun.filter("name is not null"),
        "join": fk_join(of.orders, begun, "customer_id"),
    }
    source = of.customers._planned
    for name, table in tables.items():
        planned = bound_again(table._planned, {source: {}})
        (old,) = [one for one in sources_below(table._planned) if one.name == "customers"]
        (new,) = [one for one in sources_below(planned) if one.name == "customers"]
        assert not set(reads(old.bound.rows)) & set(reads(new.bound.rows)), name
        assert planned.node == table._planned.node, name
