"""Aggregates of ``fkjoin.aggregates`` in memory, for users' tests; ``fkjoin.testing`` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.analysis.wanted import Wanted, column_of
from fkjoin.checkpoint.user_keys import fitting
from fkjoin.codec.arrays import BYTES, Bools, Bytes
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import FkJoinError
from fkjoin.folds.fold import Fold
from fkjoin.stages import Counters
from fkjoin.testing.groups import GroupKit
from fkjoin.testing.kit import Change, Result, Row, named_by, value_in


@dataclass(frozen=True)
class _Having:
    """A condition of the user's own in the place of ``Having``."""

    condition: Callable[[Row], bool]

    def holds(self, schema: pa.Schema, results: list[pa.Array], keys: Bytes, among: Bools) -> Bools:
        rows = zip(*(one.to_pylist() for one in results), strict=True)
        named = (dict(zip(schema.names, row, strict=True)) for row in rows)
        return np.array([there and bool(self.condition(row)) for row, there in zip(named, among, strict=True)], bool)


@dataclass
class MembersTest(GroupKit):
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
        The results by group, as a reader of the results has them.
    results : list of Result
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> from fkjoin import aggregates as agg
    >>> test = MembersTest("customer", pa.schema([("sku", pa.string())]), {"skus": agg.collect_set("sku")})
    >>> results = test.feed(change("o1", {"customer": "c1", "sku": "b"}), change("o2", {"customer": "c1", "sku": "a"}))
    >>> test.table
    {'c1': {'skus': ['a', 'b']}}
    """

    group: str | Callable[[str, Row], str | None]
    schema: pa.Schema
    columns: Mapping[str, Wanted]
    having: Callable[[Row], bool] | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

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

    def _values(self, changes: list[Change]) -> list[pa.Array]:
        values = [
            pa.array([None if row is None else row[one.name] for _, _, row, _ in changes], one.type) for one in self.schema
        ]
        return [*values, pa.array([change.key for change in changes], pa.string())]

    def _require_row(self, change: Change) -> None:
        super()._require_row(change)
        row, whose = change.row or {}, f"the row of {change.key!r}"
        for one in self.schema:
            fitting(whose, one, [value_in(row, one.name, "schema", whose)], nulls=True)

    def _group(self, change: Change) -> str | None:
        return named_by(self.group, change, "group")
