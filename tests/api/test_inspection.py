"""Inspection of a table: columns, types, a line, some rows; and advice for users of DataFrames."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import fkjoin
from fkjoin import Table, TopologyError, fk_join, window
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from fkjoin.sinks import preview
from fkjoin.table import HABITS
from tests.support.queries import write_lines
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, validate=True)


ORDERS = "order_id string, customer_id string, amount double, lsn bigint, gone boolean"
CUSTOMERS = "customer_id string, name string, lsn bigint"


def order(name: str, customer: str, amount: float, lsn: int, *, gone: bool = False) -> dict[str, Any]:
    return {"order_id": name, "customer_id": customer, "amount": amount, "lsn": lsn, "gone": gone}


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Table:
    write_lines(tmp_path / "orders", "1", [order("o1", "c1", 10.0, 1), order("o2", "c2", 25.0, 2)])
    return orders_of(spark, tmp_path)


def orders_of(spark: SparkSession, folder: Path, **more: Any) -> Table:
    about: dict[str, Any] = {"key": "order_id", "version": "lsn", "deleted": "gone", "schema": ORDERS, "format": "json"}
    return Table.from_files(spark, folder / "orders", **{**about, **more})


@pytest.fixture
def customers(spark: SparkSession, tmp_path: Path) -> Table:
    rows = [{"customer_id": f"c{number}", "name": name, "lsn": number} for number, name in enumerate(("Ada", "Grace"), 1)]
    write_lines(tmp_path / "customers", "1", rows)
    return Table.from_files(spark, tmp_path / "customers", key="customer_id", version="lsn", schema=CUSTOMERS)


@pytest.fixture
def one_file_a_batch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sources of previews read a file at a time; returns the numbers of batches, as previews take them in."""
    monkeypatch.setattr(preview, "_OF_FILES", {"maxFilesPerTrigger": 1})
    numbers: list[int] = []
    write = preview._Rows.write

    def writing(self: preview._Rows, batch: Any, query: str, number: int) -> None:
        if not self.ended.is_set():
            numbers.append(number)
        write(self, batch, query, number)

    monkeypatch.setattr(preview._Rows, "write", writing)
    return numbers


@pytest.fixture
def nothing_left(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Previews leave no folder, index, thread or query behind."""

    def held() -> set[str]:
        return {path.name for path in Path(tempfile.gettempdir()).glob("fkjoin-run-*/checkpoint")}

    before, threads = held(), {thread.name for thread in threading.enumerate()}
    yield
    assert held() == before
    assert list((tmp_path / "index").glob("*/*")) == []
    assert spark.streams.active == []
    assert [thread.name for thread in threading.enumerate() if "preview" in thread.name] == []
    assert len({thread.name for thread in threading.enumerate() if thread.name.startswith("fkjoin")} - threads) == 0


def shown(found: DataFrame) -> list[tuple[Any, ...]]:
    assert not found.isStreaming
    return sorted(tuple(row) for row in found.collect())


def test_columns_and_types_are_those_of_changes_and_nothing_is_lowered(orders: Table, customers: Table) -> None:
    joined = fk_join(orders, customers, "customer_id", joiner=["left.amount", "right.name"], name="joined")
    sums = joined.group_by("name", name="sums").agg(total=agg.sum("amount"))
    for table in (orders, fk_join(orders, customers, "customer_id"), sums):
        columns, schema, text = table.columns, table.schema, repr(table)
        assert "_plan" not in vars(table), text
        changes = [(one.name, one.dataType) for one in table.changes.schema if not one.name.startswith("_")]
        assert [(one.name, one.dataType) for one in schema] == changes
        assert columns == schema.names
    assert joined.columns == ["order_id", "amount", "name"]


def test_a_table_reads_as_its_columns_types_and_emission(spark: SparkSession, orders: Table, customers: Table) -> None:
    joined = fk_join(orders, customers, "customer_id", joiner=["left.amount", "right.name"], name="joined", emit="on-update")
    row = "row: customer_id string, amount double"
    assert repr(orders) == f"Table[orders; key: order_id string; {row}; emit: changes as they are read]"
    assert repr(joined) == "Table[joined; key: order_id string; row: amount double, name string; emit: on-update]"
    wide = f"struct({', '.join(f'amount as field_{at}' for at in range(20))}) as wide"
    assert repr(orders.map_values(wide)).endswith("field_4:doub…; emit: on-change]")
    assert "10 more; emit" in repr(orders.map_values([f"amount + {number} as c{number}" for number in range(30)]))
    assert repr(orders.map_values("order_id")).endswith("row: none; emit: on-change]")
    assert repr(window("at", "10 minutes", "5 minutes")) == "window(at, 10 minutes, 5 minutes)"
    assert repr(orders.group_by(["customer_id", "amount > 3 as much"], "amount")) == (
        "Grouped[orders by customer_id, amount > 3 as much, of amount]"
    )


def test_grouped_rows_are_a_table_when_their_aggregates_are_named(orders: Table) -> None:
    grouped = orders.group_by("customer_id")
    for name in ("to_parquet", "to", "filter", "changes", "schema"):
        with pytest.raises(AttributeError, match=rf"^a Grouped has no {name}; write \.agg\(…\) first, which makes a Table$"):
            getattr(grouped, name)
        assert getattr(grouped.agg(orders=agg.count()), name)
    for name in ("colums", "_planned"):
        with pytest.raises(AttributeError, match=f"'Grouped' object has no attribute '{name}'"):
            getattr(grouped, name)


def test_each_habit_of_dataframes_is_refused_and_what_is_named_is_one(
    spark: SparkSession, orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "preview", functools.cache(Table.preview))
    checkpoint = tmp_path / "kept"
    table, more = orders.filter("true", name="some"), orders_of(spark, tmp_path, name="more")
    about: Any = {"checkpoint": checkpoint, "trigger": "available-now"}
    table.materialize("kept").to_parquet(tmp_path / "changes", **about).awaitTermination()
    names: dict[str, Any] = {"fkjoin": fkjoin, "spark": spark, "fk_join": fk_join}
    names |= {"table": table, "other": more, "extractor": "customer_id", "key": "customer_id"}
    names |= {"condition": "amount > 1", "name": "kept"}
    names |= {"columns": ["amount"], "more": {"twice": "2 * amount"}, "wanted": {"total": agg.sum("amount")}}
    names["checkpoint"] = str(checkpoint)
    for number, (habit, way) in enumerate(HABITS.items()):
        with pytest.raises(AttributeError, match=f"^a Table has no {habit}; call {re.escape(way)}$"):
            getattr(table, habit)
        for code in way.split(", or "):
            folders = {"path": tmp_path / f"out{number}", "folder": tmp_path / f"ck{number}"}
            result = eval(code, names | folders)
            if isinstance(result, StreamingQuery):
                result.stop()
    usual = "show collect count withColumn where write writeStream toPandas groupBy"
    assert set(usual.split()) <= HABITS.keys()


def test_a_column_is_named_and_not_taken(orders: Table) -> None:
    says = "write 'amount', an SQL text with it, or F.col('amount')"
    with pytest.raises(TypeError, match=re.escape(says)):
        orders["amount"]
    with pytest.raises(AttributeError, match=re.escape(says)):
        orders.filter(orders.amount > 1)  # type: ignore[attr-defined]
    for condition in ("amount > 1", F.col("amount") > 1):
        assert orders.filter(condition, name="large").columns == orders.columns
    assert orders.select("amount").columns == [*orders.key, "amount"]
    with pytest.raises(TypeError, match="a Table has no items; its columns are "):
        orders[0]
    with pytest.raises(TypeError, match="a Table has no items; ask for 'amount' in table.columns"):
        "amount" in orders  # noqa: B015
    assert "amount" in orders.columns
    with pytest.raises(TypeError, match="'Table' object is not iterable"):
        list(orders)  # type: ignore[call-overload]


def test_other_names_are_refused_as_python_does_and_an_error_in_a_property_is_its_own(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AttributeError, match="'Table' object has no attribute 'colums'"):
        orders.colums  # type: ignore[attr-defined]  # noqa: B018
    monkeypatch.setattr("fkjoin.lowering.handle.plan", lambda planned: planned.nonsense)
    with pytest.raises(AttributeError, match="nonsense"):
        orders.changes  # noqa: B018


@pytest.mark.usefixtures("nothing_left")
def test_a_preview_is_the_table_as_it_is_now(spark: SparkSession, tmp_path: Path, orders: Table, customers: Table) -> None:
    changes = [order("o2", "c1", 26.0, 3), order("o1", "c1", 10.0, 4, gone=True)]
    changes += [order("o3", "c2", 1.0, 5), order("o3", "c2", 0.0, 1)]
    write_lines(tmp_path / "orders", "2", changes)
    assert shown(orders.preview()) == [("o2", "c1", 26.0), ("o3", "c2", 1.0)]
    joined = fk_join(orders, customers, "customer_id", joiner=["left.amount", "right.name"], emit="periodic 1 hour")
    found = joined.preview()
    assert found.columns == joined.columns
    assert shown(found) == [("o2", 26.0, "Ada"), ("o3", 1.0, "Grace")]


def test_a_table_may_be_looked_at_while_queries_of_it_run(orders: Table, tmp_path: Path) -> None:
    query = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="1 hour")
    try:
        assert len(shown(orders.preview())) == 2
        assert query.isActive
    finally:
        query.stop()


@pytest.mark.usefixtures("nothing_left")
def test_a_preview_ends_when_it_has_its_rows_or_has_read_enough(
    spark: SparkSession, tmp_path: Path, one_file_a_batch: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come, change and go from batch to batch."""
    monkeypatch.setattr(preview, "MOST_BATCHES", 3)
    more = [order("o2", "c1", 2.5, 4), order("o3", "c1", 3.0, 5)]
    for number, rows in enumerate(
        [
            [order("o1", "c1", 1.0, 1), order("o2", "c1", 2.0, 2)],
            [order("o1", "c1", 1.0, 3, gone=True), *more],
            [order("o4", "c1", 3.0, 6)],
            [order("o5", "c1", 4.0, 7)],
        ]
    ):
        write_lines(tmp_path / "orders", str(number), rows)
        # Files with smaller times are read first.
        os.utime(tmp_path / "orders" / f"{number}.json", (number, number))
    table = orders_of(spark, tmp_path)
    assert shown(table.preview(3)) == [("o2", "c1", 2.5), ("o3", "c1", 3.0), ("o4", "c1", 3.0)]
    assert one_file_a_batch == [0, 1, 2]
    nothing = table.filter("amount > 9").preview()
    assert one_file_a_batch[3:] == [0, 1, 2]
    assert shown(nothing) == []
    assert nothing.columns == ["order_id", "customer_id", "amount"]


@pytest.mark.usefixtures("nothing_left")
def test_a_preview_that_fails_says_why_and_leaves_nothing(spark: SparkSession, tmp_path: Path, orders: Table) -> None:
    with pytest.raises(StreamingQueryException, match=r"DIVIDE_BY_ZERO|division by zero"):
        orders_of(spark, tmp_path, on_error="fail").map_values("amount / (amount - 10) as x").preview()
    for n in (0, -1, 1.5, "20", True):
        with pytest.raises(TopologyError, match=r"^n: .+ is not a whole number of at least 1$"):
            orders.preview(n)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_left")
def test_a_stream_of_ones_own_and_learned_columns_are_previewed(spark: SparkSession, tmp_path: Path, orders: Table) -> None:
    stream = spark.readStream.schema(ORDERS).json(str(tmp_path / "orders"))
    own = Table.from_stream(stream, key="order_id", version="lsn", deleted="gone", name="own")
    learned = orders_of(spark, tmp_path, schema=None)
    assert shown(own.preview()) == [("o1", "c1", 10.0), ("o2", "c2", 25.0)]
    assert learned.columns == ["order_id", "amount", "customer_id"]
    assert shown(learned.preview()) == [("o1", 10.0, "c1"), ("o2", 25.0, "c2")]


def test_tables_and_events_are_not_made_by_their_classes() -> None:
    with pytest.raises(TypeError, match=r"^make a Table with Table\.from_files, from_kafka, from_delta, from_stream or"):
        Table()
    with pytest.raises(TypeError, match="write table.enrich"):
        Enriched()


def test_a_notebook_shows_the_picture_and_the_columns_with_their_types(orders: Table) -> None:
    odd = orders.map_values(["amount", "named_struct('<b>', amount) as nested"], name="odd")._repr_html_()
    assert odd.startswith("<svg ")
    assert re.findall("<tr>(<td>.*?)</tr>", odd) == [
        '<td>order_id</td><td title="string">string</td><td>key</td>',
        '<td>amount</td><td title="double">double</td><td></td>',
        '<td>nested</td><td title="struct&lt;&lt;b&gt;:double&gt;">struct&lt;&lt;b&gt;:double&gt;</td><td></td>',
    ]
