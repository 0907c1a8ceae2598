"""Files whose columns are learned otherwise after the start of a query: it goes on with those that it was begun with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, cogroup, fk_join
from tests.support.queries import write_lines

pytestmark = pytest.mark.usefixtures("small_tables")

Put = Callable[[str, str, dict[str, Any]], None]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Add a file of one line to a table's folder."""
    return lambda table, name, row: write_lines(tmp_path / table, name, [row])


def order(name: str, **more: Any) -> dict[str, Any]:
    return {"number": name, "customer": 1, "amount": 5, "open": True, "at": {"city": "Ulm"}, "lsn": 1, **more}


def tables(spark: SparkSession, folder: Path, **schemas: Any) -> tuple[Table, Table]:
    orders, customers = (
        Table.from_files(spark, folder / name, key=key, version="lsn", schema=schemas.get(name))
        for name, key in (("orders", "number"), ("customers", "id"))
    )
    return orders, customers


OPERATORS: dict[str, Callable[[Table, Table], Any]] = {
    "extractor: customer of left table orders is string": lambda o, c: fk_join(o, c, "customer"),
    "condition: open is string, a boolean is needed": lambda o, c: o.filter("open"),
    "sum: amount is string, a number is needed": lambda o, c: o.group_by("customer").sum("amount"),
    "columns: 'at.city' cannot be evaluated over table orders": lambda o, c: o.map_values("at.city"),
    "key: 'at.city' cannot be evaluated over table orders": lambda o, c: o.group_by("at.city").count(),
    "rows: 'array(at.city)' cannot be evaluated": lambda o, c: o.flat_map("array(at.city)", key="col"),
    "tables[1]: c is grouped by customer bigint, and ": lambda o, c: cogroup(
        o.group_by("customer").count(), c.group_by("id as customer", name="c").count("name")
    ),
}


def test_what_a_learned_type_is_refused_for_names_the_files_and_a_given_one_does_not(
    spark: SparkSession, tmp_path: Path, put: Put
) -> None:
    put("orders", "1", order("o1"))
    put("orders", "2", order("o2", customer="x", amount="x", open="x", at="x"))
    put("customers", "1", {"id": 1, "name": "Ada", "lsn": 1})
    learned = tables(spark, tmp_path)
    known = learned[0]._planned.bound.learned
    given = tables(spark, tmp_path, orders=known, customers="id bigint, lsn bigint, name string")
    for message, build in OPERATORS.items():
        with pytest.raises(TopologyError) as raised:
            build(*learned)
        said = str(raised.value)
        assert said.startswith(message)
        assert f"orders from {tmp_path}/orders" in said
        assert said.endswith('give schema= as "fkjoin state columns CHECKPOINT" prints it')
        with pytest.raises(TopologyError) as plain:
            build(*given)
        assert "learned" not in str(plain.value)


MISFITS: Any = [{"customer": "abc"}, {"customer": 5.5}, {"lsn": "x"}, {"open": "x"}, {"at": 7}]


def test_a_query_goes_on_with_the_columns_that_the_command_prints(
    spark: SparkSession, tmp_path: Path, put: Put, state_command: Any
) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def go_on(**schemas: Any) -> None:
        orders, customers = tables(spark, tmp_path, **schemas)
        joined = fk_join(orders.filter("open"), customers, "customer", joiner=["left.at.city", "right.name"], name="joined")
        joined.to_parquet(out, checkpoint=checkpoint, trigger="available-now").awaitTermination()

    put("customers", "1", {"id": 1, "name": "Ada", "lsn": 1})
    put("orders", "1", order("o1", **{"a `name`": {"of a": 1}}))
    go_on()
    for number, changed in enumerate(MISFITS, 2):
        put("orders", f"{number}", order(f"bad{number}", **changed))
    put("orders", "9", order("o2"))
    put("customers", "2", {"id": "abc", "name": "Bob", "lsn": 2})
    with pytest.raises(TopologyError, match="give schema= as"):
        go_on()
    status, lines = state_command("columns", str(checkpoint))
    printed = dict(line.split(": ", 1) for line in lines)
    assert (status, sorted(printed)) == (0, ["customers", "orders"])
    with pytest.raises(TopologyError, match="customers from .* were learned"):
        go_on(orders=printed["orders"])
    go_on(**printed)
    assert sorted(row.number for row in spark.read.parquet(str(out)).collect()) == ["o1", "o2"]
    assert state_command("columns", str(tmp_path))[1] == [f"{tmp_path} keeps no columns of files"]
