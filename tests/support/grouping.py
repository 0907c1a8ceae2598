"""Both stages of an aggregate over memory, random changes, and a plain recomputation."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes, masked, paired
from fkjoin.codec.messages import JOINED, RESULT, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.fold import AggregateColumn, Fold
from fkjoin.folds.sums import Count, DecimalSum, DoubleSum, WholeSum
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.counters import Counters
from fkjoin.stages.regroup import regroup
from fkjoin.state import MemoryStore
from tests.support.changes import newest, take

SOURCE = versions.identity("test")
TIMES: Any = {"now_ms": 0, "retention_ms": 1000}


class Change(NamedTuple):
    """A change of a row of the grouped table; ``group`` None: it contributes to none."""

    key: str
    version: int
    group: str | None
    values: tuple[Any, ...] = ()
    ts: int = 0


class Grouping:
    """Both stages over memory, and the aggregated table as a reader of the results has it."""

    def __init__(self, value: pa.Schema, *columns: AggregateColumn, every: bool = False) -> None:
        self.fold, self.every = Fold(value, columns), every
        self.rows, self.groups, self.count = MemoryStore(), MemoryStore(), Counters()
        self.table: dict[str, tuple[Any, ...]] = {}
        self.sent: list[tuple[str, tuple[Any, ...] | None, int]] = []

    def messages(self, changes: Iterable[Change]) -> pa.Table:
        listed = list(changes)
        there = np.array([change.group is not None for change in listed], bool)
        values = [change.values if change.group is not None else (None,) * len(self.fold.value) for change in listed]
        columns = [pa.array([row[at] for row in values], field.type) for at, field in enumerate(self.fold.value)]
        value = RowCodec(self.fold.value).encode(columns, len(listed))
        group = as_bytes(pa.array([change.group or "" for change in listed], pa.string()))
        return table(
            JOINED,
            as_bytes(pa.array([change.key for change in listed], pa.string())),
            versions.encode(SOURCE, [np.array([change.version for change in listed], np.int64)]),
            masked(paired(group, value), there),
            ~there,
            np.array([change.ts for change in listed], np.int64),
        )

    def batch(self, changes: Iterable[Change]) -> None:
        grouped = regroup(self.messages(changes), self.rows, self.count, every=self.every, as_read=True, **TIMES)
        self.apply(aggregate(grouped, self.groups, self.count, self.fold, source=SOURCE, every=self.every, **TIMES))

    def apply(self, results: pa.Table) -> None:
        assert results.schema.equals(RESULT)
        columns = [c.to_pylist() for c in RowCodec(self.fold.schema).decode(results.column("value").combine_chunks())]
        rows = list(zip(*columns, strict=True)) if columns else []
        for at, one in enumerate(results.to_pylist()):
            group, value = one["key"].decode(), None if one["value"] is None else rows[at]
            take(self.table, group, one["operation"], value, every=True)
            self.sent.append((group, value, one["ts"]))


VALUE = pa.schema(
    [("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(20, 2)), ("t", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)
COLUMNS: tuple[AggregateColumn, ...] = (
    Count("rows"),
    Count("texts", 3),
    WholeSum("n", 0, "sum"),
    WholeSum("n_avg", 0, "avg"),
    DoubleSum("x", 1, "sum"),
    DoubleSum("x_avg", 1, "avg"),
    DecimalSum("d", 2, "sum", 20, 2),
    DecimalSum("d_avg", 2, "avg", 20, 2),
    *(Extreme(f"{kind}_{field.name}", at, kind, field.type) for at, field in enumerate(VALUE) for kind in ("min", "max")),
)


def summed(rows: list[tuple[Any, ...]]) -> Iterable[Any]:
    n, x, d, t, at = ([value for value in column if value is not None] for column in zip(*rows, strict=True))
    yield len(rows)
    yield len(t)
    yield sum(n) if n else None
    yield sum(n) / len(n) if n else None
    yield math.fsum(x) if x else None
    yield float(sum(map(Fraction, x)) / len(x)) if x else None
    yield sum(d, Decimal(0)).quantize(Decimal("0.01")) if d else None
    yield (sum(d, Decimal(0)) / len(d)).quantize(Decimal("0.000001"), ROUND_HALF_UP) if d else None
    for values in (n, x, d, [text.encode() for text in t], at):
        for pick in (min, max):
            found = pick(values) if values else None
            yield found.decode() if isinstance(found, bytes) else found


def recomputed(
    changes: Iterable[Change], columns: Callable[[list[tuple[Any, ...]]], Iterable[Any]] = summed
) -> dict[str, tuple[Any, ...]]:
    """The aggregated table from nothing, by plain Python; ``columns`` makes a group's of its rows."""
    groups: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for change in newest(changes).values():
        if change.group is not None:
            groups[change.group].append(change.values)
    return {group: tuple(columns(rows)) for group, rows in groups.items()}


def recomputed_sums(rows: list[Change]) -> dict[str, Any]:
    wide = [row._replace(values=(*row.values, None, None, None, None)) for row in rows]
    return recomputed(wide)


VALUES = st.tuples(
    st.none() | st.integers(-(1 << 60), 1 << 60) | st.integers(-3, 3),
    st.none() | st.floats(-1e300, 1e300) | st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 5e-324]),
    st.none() | st.decimals(-(10**17), 10**17, places=2) | st.sampled_from([Decimal("0.01"), Decimal("-0.01")]),
    st.none() | st.text(max_size=3) | st.sampled_from(["", "\0", "a", "a\0", "ab", "\U0001f43c"]),
    st.none()
    | st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.timezone.utc)),
)
CHANGES = st.lists(
    st.builds(
        Change,
        key=st.sampled_from("abcde"),
        version=st.integers(0, 40),
        group=st.sampled_from(["g", "h", "", None]),
        values=VALUES,
        ts=st.integers(0, 9),
    ),
    min_size=8,
    max_size=30,
    unique_by=lambda change: (change.key, change.version),
)
