"""Several tables summed up by the same key in one store (KIP-150): each as its own aggregate.

Built on joins and sources: tests/api/test_operators.py; on Spark: tests/lowering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import aggregates as agg
from fkjoin import cogroup
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.cogrouped import CoFold, numbered
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.counters import Counters
from fkjoin.stages.regroup import regroup
from fkjoin.state import MemoryStore
from fkjoin.testing import Driver
from tests.support.driven import feed
from tests.support.grouping import SOURCE, TIMES, Change, Grouping
from tests.support.orders import History, tables
from tests.support.sampling import examples

VALUE = pa.schema([("n", pa.int64())])
FOLDS = (
    Fold(VALUE, (Count("rows"), Extreme("least", 0, "min", pa.int64()))),
    Fold(VALUE, (WholeSum("sum", 0, "sum"), Extreme("most", 0, "max", pa.int64()))),
)
STEP = st.tuples(st.booleans(), st.sampled_from("abc"), st.sampled_from(["g1", "g2", None]), st.none() | st.integers(-2, 2))


def whole(rows: Iterable[Change]) -> dict[str, tuple[Any, ...]]:
    """Both aggregates side by side, from nothing; a row's key begins with the number of its table."""
    newest = {change.key: change for change in rows}
    found = {}
    for group in {change.group for change in newest.values() if change.group is not None}:
        mine = [[one for one in newest.values() if one.group == group and one.key[0] == number] for number in "01"]
        first, second = ([one.values[0] for one in rows if one.values[0] is not None] for rows in mine)
        found[group] = (
            len(mine[0]) or None,
            min(first, default=None),
            sum(second) if second else None,
            max(second, default=None),
        )
    return found


@given(steps=st.lists(STEP, max_size=40), cut=st.integers(1, 7))
@settings(max_examples=examples(120))
def test_each_table_has_its_columns_after_every_batch(steps: list[Any], cut: int) -> None:
    sides = [Grouping(VALUE, *fold.columns) for fold in FOLDS]
    both, store = Grouping(VALUE), MemoryStore()
    both.fold = CoFold(FOLDS)  # type: ignore[assignment]
    history = [Change(f"{int(second)}{key}", version, group, (n,)) for version, (second, key, group, n) in enumerate(steps)]
    for start in range(0, len(history), cut):
        part = history[start : start + cut]
        grouped = [
            numbered(regroup(side.messages([c for c in part if c.key[0] == str(at)]), side.rows, side.count, **TIMES), at)
            for at, side in enumerate(sides)
        ]
        both.apply(aggregate(pa.concat_tables(grouped), store, Counters(), CoFold(FOLDS), source=SOURCE, **TIMES))
        assert both.table == whole(history[: start + cut])


def test_a_fold_without_rows_begins_anew() -> None:
    """A table without rows folds its next row from the start, even if its subtractor takes nothing back."""
    key = pa.schema([("g", pa.string())])
    kept = Called("kept", pa.int64(), key, VALUE, True, Starting(0), lambda _, n, kept: kept + n, lambda _, n, kept: kept)
    fold = CoFold((FOLDS[0], Fold(VALUE, (kept,), nullable=True, ordered=True)))
    store, side, seen = MemoryStore(), Grouping(VALUE), []
    for version, (group, n) in enumerate([("g", 5), (None, 0), ("g", 1)]):
        changed = regroup(side.messages([Change("1a", version, group, (n,))]), side.rows, side.count, **TIMES)
        parts = [numbered(changed, 1)]
        if not version:  # the other table keeps the group
            parts.append(numbered(regroup(side.messages([Change("0a", 0, "g", (9,))]), MemoryStore(), Counters(), **TIMES), 0))
        results = aggregate(pa.concat_tables(parts), store, Counters(), fold, source=SOURCE, **TIMES)
        seen += [tuple(column[0].as_py() for column in RowCodec(fold.schema).decode(results.column("value").combine_chunks()))]
    assert seen == [(1, 9, 5), (1, 9, None), (1, 9, 1)]


def test_extremes_of_one_table_are_not_those_of_another() -> None:
    """Each column's values are entries of its own in the store: when one leaves, the next is of the same table."""
    store, sides, table = MemoryStore(), [Grouping(VALUE, *fold.columns) for fold in FOLDS], Grouping(VALUE)
    table.fold = CoFold(FOLDS)  # type: ignore[assignment]
    steps = [[("0a", "g", 1), ("0b", "g", 2)], [("1c", "g", 0), ("1d", "g", 3)], [("0a", None, 0)], [("1d", None, 0)]]
    for version, step in enumerate(steps):
        at = int(step[0][0][0])
        changes = [Change(key, version, group, (n,)) for key, group, n in step]
        grouped = numbered(regroup(sides[at].messages(changes), sides[at].rows, sides[at].count, **TIMES), at)
        table.apply(aggregate(grouped, store, Counters(), CoFold(FOLDS), source=SOURCE, **TIMES))
    assert table.table == {"g": (1, 2, 0, 0)}


@pytest.mark.usefixtures("small_tables")
def test_a_cogroup_is_joined_with_an_aggregate_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """The aggregate's regroup runs twice in the query, each time with counters of its own."""
    orders, customers = tables(spark, tmp_path)
    history = History(tmp_path)
    by_orders = orders.group_by("customer_id", name="by-orders").agg(orders=agg.count())
    by_customers = customers.group_by("customer_id", name="by-customers").agg(known=agg.count())
    both = cogroup(by_orders, by_customers, name="both")
    joined = both.join(by_orders, joiner=["left.known", "right.orders"], name="joined")
    driver = Driver(joined)
    feed(driver, history.write(40))
    driver.run()
    counts = Counter(order["customer_id"] for order in history.orders.values())
    assert driver.table == {
        key: {"known": 1 if key in history.customers else None, "orders": count} for key, count in counts.items()
    }
