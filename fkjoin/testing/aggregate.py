"""An aggregate by functions, in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fkjoin.codec.arrays import BYTES
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.fold import Fold
from fkjoin.stages import Counters
from fkjoin.testing.groups import GROUP, GroupKit
from fkjoin.testing.kit import Change, Result, Row, RowExtractor, json_bytes, json_text, named_by


@dataclass
class AggregateTest(GroupKit):
    """An aggregate by functions of your own (``group_by(…).aggregate(…)``) whose state is in memory; feed it ``change(…)``.

    Parameters
    ----------
    group : str or callable
        A column of the row, or a callable of (key, row), that gives the group's key, a text; None is in no group.
    initializer : callable or value
        A callable of nothing, or a value.
    adder, subtractor : callable
        Functions of (group's key, row, aggregate) that return the aggregate.  It is of what JSON can write, or a set, as the
        initializer makes it.
    seed : int, default 0
        See ``JoinTest``.

    Attributes
    ----------
    table : dict of str to object
        The aggregates by group, as a reader of the results has them.
    results : list of Result
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> test = AggregateTest("customer", 0, lambda key, row, n: n + row["n"], lambda key, row, n: n - row["n"])
    >>> results = test.feed(change("o1", {"customer": "c1", "n": 2}), change("o2", {"customer": "c1", "n": 3}), DUPLICATE)
    >>> test.table
    {'c1': 5}
    """

    group: RowExtractor
    initializer: Any
    adder: Callable[[str, Row, Any], Any]
    subtractor: Callable[[str, Row, Any], Any]
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start = self.initializer if callable(self.initializer) else Starting(self.initializer)
        add, subtract = (self._by_text(function) for function in (self.adder, self.subtractor))
        value = pa.schema([("row", pa.string())])
        called = Called("value", pa.string(), GROUP, value, True, lambda: json_text(self._start()), add, subtract)
        self._fold = Fold(value, (called,), nullable=True, ordered=True)

    def _by_text(self, function: Callable[[str, Row, Any], Any]) -> Callable[[str, str, str], str | None]:
        def call(group: str, row: str, aggregate: str) -> str | None:
            found = function(group, json.loads(row), self._shaped(json.loads(aggregate)))
            return None if found is None else json_text(found)

        return call

    def _shaped(self, found: Any) -> Any:
        shape = type(self._start())
        return found if found is None or isinstance(found, shape) or shape is type(None) else shape(found)

    def _read(self, value: bytes) -> Any:
        (texts,) = RowCodec(self._fold.schema).decode(pa.array([value], BYTES))
        return self._shaped(json.loads(texts[0].as_py()))

    def _group(self, change: Change) -> str | None:
        return named_by(self.group, change, "group")

    def _values(self, changes: list[Change]) -> list[pa.Array]:
        return [pa.array([json_bytes(change.row).decode() for change in changes], pa.string())]
