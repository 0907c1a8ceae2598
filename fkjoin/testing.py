"""For your own tests: tables in memory that can be made to crash, to read twice and to reorder; no Spark, no JVM.

>>> test = JoinTest(extractor="customer", how="left")
>>> outputs = test.feed(right("c1", {"name": "Ada"}), left("o1", {"customer": "c1"}), CRASH, left("o1", None), DUPLICATE)
>>> assert test.table == {}

Rows are dicts of what JSON can write.  The stages are those that run on Spark; what is between them is played here.
``Driver`` runs a table of any topology, and needs a session for that.  ``SinkContract`` tries a sink of your own.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, versions
from fkjoin.codec.arrays import BYTES, as_bytes, valid
from fkjoin.codec.messages import ANSWER, CHANGE, JOINED, RESULT, SUBSCRIPTION, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.fold import Fold
from fkjoin.kit import CRASH, DUPLICATE, REORDER, TIMES, Event, Extractor, Kit, Output, Row, json_bytes, json_text, named_by
from fkjoin.kit_enrich import EnrichTest
from fkjoin.kit_flat_map import FlatMapTest
from fkjoin.kit_groups import GROUP, GroupKit
from fkjoin.kit_key_join import KeyJoinTest
from fkjoin.kit_members import MembersTest
from fkjoin.kit_sink import SinkContract
from fkjoin.stages import Counters, How, rekey, resolve, subscription
from fkjoin.stages.invariants import live_subscriptions
from fkjoin.stages.join_rows import matched, require_how

if TYPE_CHECKING:
    from fkjoin.kit_driver import Driver
    from fkjoin.kit_driver_ends import DriverInput, DriverStore, TableChange

Joiner = Callable[[Row, Row | None], Any]

_SOURCES = versions.identity("left"), versions.identity("right")


def left(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a left row.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = left("o1", {"customer": "c1"})
    """
    return Event("left", key, row, version)


def right(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a right row.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = right("c1", {"name": "Ada"})
    """
    return Event("right", key, row, version)


def change(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a row of a table that is summed up, or makes other rows.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = change("o1", {"customer": "c1"})
    """
    return Event("left", key, row, version)


def event(row: Row) -> Event:
    """Make an event that a table enriches.

    Parameters
    ----------
    row : dict
        The event's columns.

    Returns
    -------
    Event

    Examples
    --------
    >>> clicked = event({"customer": "c1", "page": "start"})
    """
    return Event("event", "", row)


@dataclass
class JoinTest(Kit):
    """A foreign-key join whose state is in memory.

    Parameters
    ----------
    extractor : str or callable
        A column of the left row, or a callable of (key, row); None is no foreign key.
    how : {"inner", "left"}, default "inner"
        ``"left"`` keeps left rows without a right row.
    joiner : callable, optional
        A callable of (left row, right row), whose None is no result.  Without it a joined row is ``{"left": …, "right": …}``.
    seed : int, default 0
        The seed of what ``REORDER`` does.

    Attributes
    ----------
    table : dict of str to object
        The joined table as a reader of the outputs has it.
    outputs : list of Output
        All outputs, in order.
    count : Counters
        The counters of the stages: ``stale-dropped``, ``tombstones-suppressed``, ….

    Examples
    --------
    >>> test = JoinTest(extractor="customer", how="left")
    >>> outputs = test.feed(left("o1", {"customer": "c1"}), CRASH, right("c1", {"name": "Ada"}))
    >>> test.table["o1"]
    {'left': {'customer': 'c1'}, 'right': {'name': 'Ada'}}
    """

    extractor: Extractor
    how: How = "inner"
    joiner: Joiner | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("rekey", "subscription", "resolve")

    def __post_init__(self) -> None:
        require_how(self.how)
        super().__post_init__()

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """The left keys that subscribe to each foreign key.

        Returns
        -------
        dict of str to list of str
            Left keys, by the foreign key.
        """
        found: dict[str, list[str]] = {}
        for page in live_subscriptions(self._stores[1]):
            for foreign, key in zip(*(part.to_pylist() for part in combined_key.decode(page)), strict=True):
                found.setdefault(foreign.decode(), []).append(key.decode())
        return found

    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        rekeyed = rekey(self._changes(batch, "left"), self._stores[0], self.count, **TIMES)
        if stages == 1:
            return RESULT.empty_table()
        answers = [rekeyed.answers, *self._answers(rekeyed.subscriptions, self._changes(batch, "right"), in_order=True)]
        joined = self._joined(pa.concat_tables(answers))
        return resolve(joined, self._stores[2], self.count, **TIMES) if stages == 3 else RESULT.empty_table()

    def _reordered(self, batch: list[Event]) -> list[pa.Table]:
        rekeyed = [rekey(part, self._stores[0], self.count, **TIMES) for part in self._portions(self._changes(batch, "left"))]
        rights = self._portions(self._changes(batch, "right"))
        waiting = self._portions(pa.concat_tables([SUBSCRIPTION.empty_table(), *(part.subscriptions for part in rekeyed)]))
        nothing = SUBSCRIPTION.empty_table(), CHANGE.empty_table()
        answers = [ANSWER.empty_table(), *(part.answers for part in rekeyed)]
        for part in self._shuffled([*((one, nothing[1]) for one in waiting), *((nothing[0], one) for one in rights)]):
            answers += self._answers(*part, in_order=False)
        portions = self._portions(pa.concat_tables(answers))
        return [resolve(self._joined(part), self._stores[2], self.count, **TIMES) for part in portions]

    def _answers(self, subscriptions: pa.Table, rights: pa.Table, *, in_order: bool) -> Iterable[pa.Table]:
        return subscription(subscriptions, rights, self._stores[1], self.count, in_order=in_order, **TIMES)

    def _changes(self, batch: Iterable[Event], side: str) -> pa.Table:
        rows = [event for event in batch if event.side == side]
        return table(
            CHANGE,
            as_bytes(pa.array([row.key for row in rows], pa.string())),
            pa.array([self._foreign_key(row) if side == "left" else None for row in rows], BYTES),
            pa.array([None if row.row is None else json_bytes(row.row) for row in rows], BYTES),
            versions.encode(_SOURCES[side == "right"], [np.array([row.version for row in rows], np.int64)]),
            np.zeros(len(rows), np.int64),
        )

    def _foreign_key(self, event: Event) -> bytes | None:
        found = named_by(self.extractor, event, "extractor")
        return None if found is None else found.encode()

    def _joined(self, answers: pa.Table) -> pa.Table:
        rows = zip(column(answers, "left").to_pylist(), column(answers, "right").to_pylist(), strict=True)
        values = [
            self._join(json.loads(one), None if other is None else json.loads(other)) if there else None
            for (one, other), there in zip(rows, matched(answers, self.how), strict=True)
        ]
        value = pa.array([None if found is None else json_bytes(found) for found in values], BYTES)
        columns = (column(answers, name) for name in ("key", "version"))
        return table(JOINED, *columns, value, ~valid(column(answers, "left")), column(answers, "ts"))

    def _join(self, one: Row, other: Row | None) -> Any:
        return {"left": one, "right": other} if self.joiner is None else self.joiner(one, other)


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
        The aggregates by group, as a reader of the outputs has them.
    outputs : list of Output
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> test = AggregateTest("customer", 0, lambda key, row, n: n + row["n"], lambda key, row, n: n - row["n"])
    >>> outputs = test.feed(change("o1", {"customer": "c1", "n": 2}), change("o2", {"customer": "c1", "n": 3}), DUPLICATE)
    >>> test.table
    {'c1': 5}
    """

    group: Extractor
    initializer: Any
    adder: Callable[[str, Row, Any], Any]
    subtractor: Callable[[str, Row, Any], Any]
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
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

    def _group(self, event: Event) -> str | None:
        return named_by(self.group, event, "group")

    def _values(self, events: list[Event]) -> list[pa.Array]:
        return [pa.array([json_bytes(event.row).decode() for event in events], pa.string())]


__all__ = [
    "CRASH",
    "DUPLICATE",
    "REORDER",
    "AggregateTest",
    "Driver",
    "DriverInput",
    "DriverStore",
    "EnrichTest",
    "Event",
    "FlatMapTest",
    "JoinTest",
    "KeyJoinTest",
    "MembersTest",
    "Output",
    "SinkContract",
    "TableChange",
    "change",
    "event",
    "left",
    "right",
]


def __getattr__(name: str) -> Any:
    """Names of the driver need Spark's Python package, which the other kits do not."""
    if name in ("Driver", "DriverInput", "DriverStore", "TableChange"):
        home = "kit_driver" if name == "Driver" else "kit_driver_ends"
        return getattr(importlib.import_module(f"fkjoin.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
