"""Aggregates of ``fkjoin.aggregates`` in memory, for users' tests; ``fkjoin.testing`` has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.analysis.wanted import Wanted, column_of
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, Bools, Bytes, as_bytes
from fkjoin.codec.messages import GROUPED, JOINED, RESULT, table
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import FkJoinError
from fkjoin.folds.fold import Fold
from fkjoin.kit import Event, Kit, Output, Row
from fkjoin.stages import Counters, aggregate, regroup
from fkjoin.stages.regroup import contributions

_TIMES: dict[str, Any] = {"now_ms": 0, "retention_ms": 24 * 60 * 60 * 1000}
_GROUP = pa.schema([("group", pa.string())])


@dataclass(frozen=True)
class _Having:
    """A condition of the user's own in the place of ``Having``."""

    condition: Callable[[Row], bool]

    def holds(self, schema: pa.Schema, results: list[pa.Array], keys: Bytes, among: Bools) -> Bools:
        rows = zip(*(one.to_pylist() for one in results), strict=True)
        named = (dict(zip(schema.names, row, strict=True)) for row in rows)
        return np.array([there and bool(self.condition(row)) for row, there in zip(named, among, strict=True)], bool)


@dataclass
class MembersTest(Kit):
    """Aggregates in bulk (``group_by(…).agg(…)``) whose state is in memory; feed it ``change(…)``.

    Parameters
    ----------
    group : str or callable
        See ``AggregateTest``.
    schema : pyarrow.Schema
        The columns of the rows that aggregates are of.
    columns : mapping of str to Wanted
        Aggregates of columns, by the names of the result's columns.
    having : callable, optional
        A callable of the result's row, as a dict, that tells whether the group has one.
    seed : int, default 0
        See ``JoinTest``.

    Attributes
    ----------
    table : dict of str to dict
        The results by group, as a reader of the outputs has them.
    outputs : list of Output
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> from fkjoin import aggregates as agg
    >>> test = MembersTest("customer", pa.schema([("sku", pa.string())]), {"skus": agg.collect_set("sku")})
    >>> outputs = test.feed(change("o1", {"customer": "c1", "sku": "b"}), change("o2", {"customer": "c1", "sku": "a"}))
    >>> test.table
    {'c1': {'skus': ['a', 'b']}}
    """

    group: str | Callable[[str, Row], str | None]
    schema: pa.Schema
    columns: Mapping[str, Wanted]
    having: Callable[[Row], bool] | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("regroup", "aggregate")

    def __post_init__(self) -> None:
        super().__post_init__()
        places = {name: at for at, name in enumerate(self.schema.names)}
        for title, wanted in self.columns.items():
            for one in (wanted.column, *wanted.order):
                if one is not None and one not in places:
                    raise FkJoinError(f"columns: {title} is of {one!r}, and the schema has {', '.join(places)}")
        value = pa.schema([*self.schema, ("key of the row", pa.string())])
        made = (column_of(title, wanted, places, [len(places)], value) for title, wanted in self.columns.items())
        having: Any = None if self.having is None else _Having(self.having)
        self._fold = Fold(value, tuple(made), having=having)

    def _read(self, value: bytes) -> Any:
        columns = RowCodec(self._fold.schema).decode(pa.array([value], BYTES))
        return {name: column[0].as_py() for name, column in zip(self._fold.schema.names, columns, strict=True)}

    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        changed = regroup(self._rows(batch), self._stores[0], self.count, **_TIMES)
        return self._aggregated(changed) if stages == 2 else RESULT.empty_table()

    def _reordered(self, batch: list[Event]) -> list[pa.Table]:
        changed = [regroup(part, self._stores[0], self.count, **_TIMES) for part in self._portions(self._rows(batch))]
        return [self._aggregated(part) for part in self._portions(pa.concat_tables([GROUPED.empty_table(), *changed]))]

    def _aggregated(self, changed: pa.Table) -> pa.Table:
        how: Any = {"source": versions.identity("groups"), "guarded": True}
        return aggregate(changed, self._stores[1], self.count, self._fold, **how, **_TIMES)

    def _rows(self, batch: Iterable[Event]) -> pa.Table:
        events = list(batch)
        rows = [event.row or {} for event in events]
        there = np.array([event.row is not None for event in events], bool)
        keys = pa.array([event.key for event in events], pa.string())
        values = [pa.array([row.get(one.name) for row in rows], one.type) for one in self.schema]
        groups = pa.array([self._group(event) for event in events], pa.string())
        value = contributions(_GROUP, [groups], self._fold.value, [*values, keys], there)
        number = np.array([event.version for event in events], np.int64)
        version = versions.encode(versions.identity("left"), [number])
        return table(JOINED, as_bytes(keys), version, value, ~there, np.zeros(len(events), np.int64))

    def _group(self, event: Event) -> str | None:
        if event.row is None:
            return None
        found = self.group(event.key, event.row) if callable(self.group) else event.row.get(self.group)
        if not isinstance(found, str | None):
            raise FkJoinError(f"{event.key!r} is in group {found!r}, which is no text, and groups are texts here")
        return found
