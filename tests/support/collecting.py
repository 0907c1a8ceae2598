"""Aggregates of members, random changes of their rows, and a plain recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.folds.bulk import bulk_column, collected_column, first_column
from fkjoin.folds.fold import AggregateColumn
from tests.support import grouping
from tests.support.grouping import Change

VALUE = pa.schema(
    [("n", pa.int64()), ("t", pa.string()), ("x", pa.float64()), ("l", pa.list_(pa.int64())), ("key", pa.string())]
)
N, T, X, L, KEY = range(5)
ALONE: dict[str, Any] = {"descending": False, "delimiter": ""}

COLLECTED: tuple[AggregateColumn, ...] = (
    bulk_column("ns", "count_distinct", N, VALUE, "n"),
    bulk_column("xs", "count_distinct", X, VALUE, "x"),
    bulk_column("ls", "count_distinct", L, VALUE, "l"),
    collected_column("list", "collect_list", T, order=[KEY], schema=VALUE, text="t", **ALONE),
    collected_column("lists", "collect_list", L, order=[KEY], schema=VALUE, text="l", **ALONE),
    collected_column("by_n", "collect_list", T, order=[N, T], schema=VALUE, text="t", descending=True, delimiter=""),
    collected_column("by_t_x", "collect_list", N, order=[T, X, N], schema=VALUE, text="n", **ALONE),
    collected_column("n_set", "collect_set", N, order=[], schema=VALUE, text="n", **ALONE),
    collected_column("x_set", "collect_set", X, order=[], schema=VALUE, text="x", **ALONE),
    collected_column("t_set", "collect_set", T, order=[], schema=VALUE, text="t", **ALONE),
    collected_column("text", "string_agg", T, order=[KEY], schema=VALUE, text="t", descending=True, delimiter=", "),
    first_column("most", "max_by", T, by=N, schema=VALUE, text="n", most=None),
    first_column("least", "min_by", T, by=X, schema=VALUE, text="x", most=None),
    first_column("three", "max_by", T, by=N, schema=VALUE, text="n", most=3),
    first_column("two", "min_by", N, by=T, schema=VALUE, text="t", most=2),
)


def recomputed(changes: Iterable[Change]) -> dict[str, tuple[Any, ...]]:
    """The aggregated table from nothing, by plain Python; compare it with ``comparable``."""
    return grouping.recomputed(changes, _collected)


def _collected(rows: list[tuple[Any, ...]]) -> Iterable[Any]:
    for place in (N, X, L):
        yield len({_equal(row[place]) for row in rows if row[place] is not None})
    by_key = sorted(rows, key=lambda row: row[KEY].encode())
    yield [row[T] for row in by_key if row[T] is not None]
    yield [row[L] for row in by_key if row[L] is not None]
    yield [row[T] for row in _sorted(rows, (N, True), (T, True)) if row[T] is not None]
    yield [row[N] for row in _sorted(rows, (T, False), (X, False), (N, False)) if row[N] is not None]
    for place in (N, X, T):
        values = {_equal(row[place]): row[place] for row in rows if row[place] is not None}.values()
        yield sorted((_plain(value) for value in values), key=_order)
    texts = [row[T] for row in reversed(by_key) if row[T] is not None]
    yield ", ".join(texts) if texts else None
    by_n = [row[T] for row in _sorted(rows, (N, True), (T, False)) if row[N] is not None]
    by_x = [row[T] for row in _sorted(rows, (X, False), (T, False)) if row[X] is not None]
    yield by_n[0] if by_n else None
    yield by_x[0] if by_x else None
    yield by_n[:3]
    yield [row[N] for row in _sorted(rows, (T, False), (N, False)) if row[T] is not None][:2]


def _sorted(rows: list[tuple[Any, ...]], *by: tuple[int, bool]) -> list[tuple[Any, ...]]:
    """Rows by some columns, the last one first: a sort keeps what is equal as it stands."""
    found = list(rows)
    for place, descending in reversed(by):
        found.sort(key=lambda row: _order(row[place]), reverse=descending)
    return found


def _order(value: Any) -> Any:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


def _equal(value: Any) -> Any:
    """Something hashable that is equal where Spark's values are."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def comparable(table: dict[str, tuple[Any, ...]]) -> str:
    """A text that is equal where tables are, not-a-numbers and signs of zeros included."""
    return repr(sorted(table.items()))


VALUES = st.tuples(
    st.none() | st.integers(-2, 2) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    st.none() | st.sampled_from(["", "\0", "a", "a\0", "a\xff", "ab", "b", "\U0001f43c"]),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    st.none() | st.lists(st.integers(0, 1) | st.none(), max_size=2),
)


def _changed(key: str, version: int, group: str | None, values: tuple[Any, ...], ts: int) -> Change:
    return Change(key, version, group, (*values, key), ts)


CHANGES = st.lists(
    st.builds(
        _changed,
        key=st.sampled_from(["a", "b", "c", "d", "a\0", "\U0001f43c"]),
        version=st.integers(0, 40),
        group=st.sampled_from(["g", "h", "", "g\xff", None]),
        values=VALUES,
        ts=st.integers(0, 9),
    ),
    min_size=4,
    max_size=14,
    unique_by=lambda change: (change.key, change.version),
)
