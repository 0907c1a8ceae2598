"""A test of one operator each: its stages' specs, and rows as these stages have them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.analysis.wanted import Wanted, aggregate_column
from fkjoin.checkpoint.user_keys import fitting
from fkjoin.codec import combined_key, pairs
from fkjoin.codec.arrays import BYTES, Bools, Bytes, valid
from fkjoin.codec.messages import ANSWER, CHANGE, EVENT, NUMBERED, column
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import FkJoinError
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.fold import Fold
from fkjoin.spark import specs
from fkjoin.spark.specs import StageSpec
from fkjoin.stages.invariants import live_subscriptions
from fkjoin.stages.join_rows import (
    How,
    HowByKey,
    matched,
    require_how,
    require_how_by_key,
    require_how_of_events,
    with_value,
)
from fkjoin.stages.regroup import contributions
from fkjoin.testing import kit
from fkjoin.testing.kit import STATE, Change, Kit, Result, Row, json_bytes, json_value, texts

_GROUP = pa.schema([("group", pa.string())])
_ROW_KEY = "key of the row"
_Function = Callable[[str, Row, Any], Any]
"""A function of a group's key, a row and an aggregate."""


class JoinKit(Kit):
    """Base of the kits for joins, whose joiner is a function of the user's."""

    how: Any
    joiner: Any
    _takes = {"left": "left", "right": "right"}  # noqa: RUF012

    def _between(self, messages: pa.Table) -> pa.Table:
        """Answers as joined rows; other messages as they are."""
        if not messages.schema.equals(ANSWER):
            return messages
        rows: list[bytes | None] = []
        sides = (column(messages, side).to_pylist() for side in ("left", "right"))
        for left, right, joins in zip(*sides, matched(messages, self.how), strict=True):
            row = self._join(json_value(left), json_value(right)) if joins else None
            rows.append(json_bytes(row))
        return with_value(messages, pa.array(rows, BYTES))

    def _join(self, left: Row | None, right: Row | None) -> Any:
        return {"left": left, "right": right} if self.joiner is None else self.joiner(left, right)


@dataclass
class JoinTest(JoinKit):
    """A foreign-key join whose state is in memory.

    Parameters
    ----------
    extractor : str or callable
        A column of the left row, or a callable of (key, row). With None the row has no foreign key.
    how : {"inner", "left"}, default "inner"
        ``"inner"`` drops left rows without a right row, ``"left"`` keeps them.
    joiner : callable, optional
        A callable of (left row, right row). If it returns None, the result has no row. By default a
        joined row is ``{"left": …, "right": …}``.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to object
        The joined table, as a reader of the results sees it.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages, such as ``stale-dropped``.

    Examples
    --------
    >>> test = JoinTest(extractor="customer", how="left")
    >>> order, ada = left("o1", {"customer": "c1"}), right("c1", {"name": "Ada"})
    >>> results = test.feed(order, CRASH, ada)
    >>> test.table["o1"]
    {'left': {'customer': 'c1'}, 'right': {'name': 'Ada'}}
    """

    extractor: kit.RowExtractor
    how: How = "inner"
    joiner: Callable[[Row, Row | None], Any] | None = None

    _kind = CHANGE
    _enters = {"right": "subscription"}  # noqa: RUF012
    _names = "extractor"

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """The left keys that subscribe to each foreign key.

        Returns
        -------
        dict of str to list of str
            Left keys by foreign key.

        Examples
        --------
        >>> test = JoinTest(extractor="customer")
        >>> row = {"customer": "c1"}
        >>> results = test.feed(left("o1", row), left("o2", row))
        >>> test.subscriptions
        {'c1': ['o1', 'o2']}
        """
        subscribers: dict[str, list[str]] = {}
        for page in live_subscriptions(self._stores["subscription"]):
            keys = (part.to_pylist() for part in combined_key.decode(page))
            for foreign, key in zip(*keys, strict=True):
                subscribers.setdefault(foreign.decode(), []).append(key.decode())
        return subscribers

    def _stages(self) -> Sequence[StageSpec]:
        require_how(self.how)
        return specs.RekeySpec(STATE), specs.SubscriptionSpec(STATE), specs.ResolveSpec(STATE)

    def _columns(self, changes: list[Change]) -> dict[str, Any]:
        return super()._columns(changes) | {"foreign_key": texts(map(self._key_of, changes))}


@dataclass
class KeyJoinTest(JoinKit):
    """A join by primary key (``left.join(right)``) whose state is in memory.

    Feed it ``left(…)`` and ``right(…)``.

    Parameters
    ----------
    how : {"inner", "left", "outer"}, default "inner"
        ``"inner"`` drops rows without a partner. ``"left"`` keeps such rows of the left table,
        ``"outer"`` of both tables.
    joiner : callable, optional
        A callable of (left row, right row), either of which may be None. If it returns None, the
        result has no row. By default a joined row is ``{"left": …, "right": …}``.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to object
        The joined table, as a reader of the results sees it.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages, such as ``stale-dropped``.

    Examples
    --------
    >>> test = KeyJoinTest(how="outer")
    >>> order, payment = left("o1", {"amount": 5}), right("o1", {"paid": 5})
    >>> results = test.feed(order, CRASH, payment, left("o1", None), DUPLICATE)
    >>> test.table
    {'o1': {'left': None, 'right': {'paid': 5}}}
    """

    how: HowByKey = "inner"
    joiner: Callable[[Row | None, Row | None], Any] | None = None

    _kind = NUMBERED

    def _stages(self) -> Sequence[StageSpec]:
        require_how_by_key(self.how)
        pair = specs.PairSpec(
            STATE, how=self.how, parts=(1, 1), in_order=(False, False), answers=True
        )
        return pair, specs.ResolveSpec(STATE)


@dataclass
class EnrichTest(Kit):
    """Events enriched by a table (``Table.enrich``) whose state is in memory.

    Feed it ``change(…)`` and ``event(…)``. ``DUPLICATE`` brings the table's changes again, but no
    event, since an event comes once.

    Parameters
    ----------
    on : str or callable
        A column of the event, or a callable of the event. It gives the table's key as a text; None
        names no row.
    how : {"inner", "left"}, default "inner"
        ``"inner"`` drops an event without a row in the table, ``"left"`` sends it with nulls.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to dict
        The table's rows by key.
    results : list of Result
        The events that were sent. Each is an insert under the key that it names, or under ``""``.
        Its value contains the columns of the event and of the row.
    count : Counters
        The counters of the stages, such as ``events-without-row``.

    Examples
    --------
    >>> test = EnrichTest(on="customer", how="left")
    >>> click = event({"customer": "c1", "n": 1})
    >>> ada = change("c1", {"name": "Ada"})
    >>> results = test.feed(click, ada, CRASH, change("c1", None))
    >>> [result.value for result in results]
    [{'customer': 'c1', 'n': 1, 'name': 'Ada'}]
    """

    on: str | Callable[[Row], str | None]
    how: How = "inner"

    _takes = {"left": "change", "event": "event"}  # noqa: RUF012
    _names = "on"
    _whose = "the event {!r}"

    def _stages(self) -> Sequence[StageSpec]:
        require_how_of_events(self.how)
        return (specs.EnrichSpec(STATE, how=self.how),)

    def _process(self, batch: list[Change], sentinel: kit.Sentinel | None) -> None:
        super()._process(batch, sentinel)
        changes = [change for change in self._fed if change.side != "event"]
        changes.sort(key=lambda change: change.version or 0)
        rows = {change.key: change.row for change in changes}
        self.table = {key: row for key, row in rows.items() if row is not None}

    def _portions(self, messages: list[pa.Table]) -> list[list[pa.Table]]:
        """One portion.

        An event gets the row that its key has after all of the table's changes of its batch.
        """
        return [[pa.concat_tables([kind.slice(0, 0), *self._parts(kind)]) for kind in messages]]

    def _messages(self, changes: list[Change]) -> list[pa.Table]:
        rows = [change for change in changes if change.side != "event"]
        events = [change for change in changes if change.side == "event"]
        keys, bodies = texts(map(self._key_of, events)), self._values(events)
        # An event that names no row has itself as its key.
        columns = [pc.coalesce(keys, bodies), pa.array(valid(keys)), bodies]
        return [*super()._messages(rows), pa.table(columns, schema=EVENT)]

    def _key_of(self, change: Change) -> str | None:
        if change.row is None or change.side != "event":
            return None
        return self._named(change.row, change.row, change.row)

    def _take(self, row: Row) -> None:
        event = json_value(row["event"])
        key = self._key_of(Change("event", "", event))
        self.results.append(Result(key or "", "insert", event | (json_value(row["row"]) or {})))


class GroupKit(Kit):
    """Base of the kits for aggregates, whose results are columns of a fold."""

    _fold: Fold
    _names = "group"

    @abstractmethod
    def _contribution(self, change: Change) -> Row:
        """The fold's values of a change, by their names; a row that is gone has none."""

    def _stages(self) -> Sequence[StageSpec]:
        return specs.RegroupSpec(STATE, as_read=True), specs.AggregateSpec(STATE, fold=self._fold)

    def _values(self, changes: list[Change]) -> pa.Array:
        live = np.array([change.row is not None for change in changes], bool)
        groups = pa.array(map(self._key_of, changes), pa.string())
        rows = pa.RecordBatch.from_pylist(list(map(self._contribution, changes)), self._fold.value)
        return contributions(_GROUP, [groups], self._fold.value, rows.columns, live)

    def _read(self, value: bytes | None) -> Any:
        if value is None:
            return None
        schema = self._fold.schema
        columns = RowCodec(schema).decode(pa.array([value], BYTES))
        (row,) = pa.table(columns, schema=schema).to_pylist()
        return row


@dataclass
class AggregateTest(GroupKit):
    """An aggregate by functions (``group_by(…).aggregate(…)``) whose state is in memory.

    Feed it ``change(…)``.

    Parameters
    ----------
    group : str or callable
        A column of the row, or a callable of (key, row). It gives the group's key as a text; a row
        with None belongs to no group.
    initializer : callable or value
        The aggregate that a group starts with: a value, or a callable without arguments that
        returns it.
    adder : callable
        A function of (group's key, row, aggregate) that returns the aggregate with the row. An
        aggregate consists of what JSON can write, or is a set if the initializer makes one.
    subtractor : callable
        A function of (group's key, row, aggregate) that returns the aggregate without the row.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to object
        The aggregates by group, as a reader of the results sees them.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages, such as ``stale-dropped``.

    Examples
    --------
    >>> def add(key, row, n):
    ...     return n + row["n"]
    >>> def subtract(key, row, n):
    ...     return n - row["n"]
    >>> test = AggregateTest("customer", 0, add, subtract)
    >>> first = change("o1", {"customer": "c1", "n": 2})
    >>> second = change("o2", {"customer": "c1", "n": 3})
    >>> results = test.feed(first, second, DUPLICATE)
    >>> test.table
    {'c1': 5}
    """

    group: kit.RowExtractor
    initializer: Any
    adder: _Function
    subtractor: _Function

    def __post_init__(self) -> None:
        self._start = self.initializer if callable(self.initializer) else Starting(self.initializer)
        value = pa.schema([("row", pa.string())])
        functions = self._by_text(self.adder), self._by_text(self.subtractor)
        called = Called("value", pa.string(), _GROUP, value, True, self._first, *functions)
        self._fold = Fold(value, (called,), nullable=True, ordered=True)
        super().__post_init__()

    def _first(self) -> str:
        """The aggregate that a group starts with, as JSON."""
        return _text(self._start())

    def _by_text(self, function: _Function) -> Callable[[str, str, str], str | None]:
        """The function, of a row and an aggregate as JSON."""

        def call(group: str, row: str, aggregate: str) -> str | None:
            after = function(group, json.loads(row), self._shaped(aggregate))
            return None if after is None else _text(after)

        return call

    def _shaped(self, text: str) -> Any:
        """An aggregate, from its JSON: of the type that the initializer makes."""
        aggregate, shape = json.loads(text), type(self._start())
        if aggregate is None or isinstance(aggregate, shape) or shape is type(None):
            return aggregate
        return shape(aggregate)

    def _read(self, value: bytes | None) -> Any:
        row = super()._read(value)
        return None if row is None else self._shaped(row["value"])

    def _contribution(self, change: Change) -> Row:
        return {"row": json_bytes(change.row)}


def _text(aggregate: Any) -> str:
    """An aggregate as JSON; a set is a sorted list."""
    return json.dumps(aggregate, sort_keys=True, default=_listed)


def _listed(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


@dataclass(frozen=True)
class _Having:
    """A condition of the user's own in the place of ``Having``."""

    condition: Callable[[Row], bool]

    def holds(self, schema: pa.Schema, results: list[pa.Array], keys: Bytes, among: Bools) -> Bools:
        rows = pa.table(results, schema=schema).to_pylist()
        holds = [live and bool(self.condition(row)) for row, live in zip(rows, among, strict=True)]
        return np.array(holds, bool)


@dataclass
class MembersTest(GroupKit):
    """Named aggregates (``group_by(…).agg(…)``) whose state is in memory; feed it ``change(…)``.

    Parameters
    ----------
    group : str or callable
        A column of the row, or a callable of (key, row). It gives the group's key as a text; a row
        with None belongs to no group.
    schema : pyarrow.Schema
        The columns of the rows that are aggregated.
    columns : mapping of str to Wanted
        Aggregates of ``fkjoin.aggregates``, by the names of the result's columns.
    having : callable, optional
        A callable of the result's row, as a dict. It tells whether the group has a row.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to dict
        The results by group, as a reader of the results sees them.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages, such as ``stale-dropped``.

    Examples
    --------
    >>> from fkjoin import aggregates as agg
    >>> columns = {"skus": agg.collect_set("sku")}
    >>> test = MembersTest("customer", pa.schema([("sku", pa.string())]), columns)
    >>> first = change("o1", {"customer": "c1", "sku": "b"})
    >>> results = test.feed(first, change("o2", {"customer": "c1", "sku": "a"}))
    >>> test.table
    {'c1': {'skus': ['a', 'b']}}
    """

    group: str | Callable[[str, Row], str | None]
    schema: pa.Schema
    columns: Mapping[str, Wanted]
    having: Callable[[Row], bool] | None = None

    def __post_init__(self) -> None:
        names = self.schema.names
        for title, wanted in self.columns.items():
            for name in (wanted.column, *wanted.order):
                if name is not None and name not in names:
                    known = f"the schema has {', '.join(names)}"
                    raise FkJoinError(f"columns: {title} uses the column {name!r}, and {known}")
        places = {name: number for number, name in enumerate(names)}
        value = self.schema.append(pa.field(_ROW_KEY, pa.string()))
        columns = [
            aggregate_column(*item, places, [len(names)], value) for item in self.columns.items()
        ]
        having: Any = None if self.having is None else _Having(self.having)
        self._fold = Fold(value, tuple(columns), having=having)
        super().__post_init__()

    def _contribution(self, change: Change) -> Row:
        return {**(change.row or {}), _ROW_KEY: change.key}

    def _require_row(self, change: Change) -> None:
        super()._require_row(change)
        row, whose = change.row or {}, f"the row of {change.key!r}"
        for field in self.schema:
            fitting(whose, field, [kit.value_in(row, field.name, "schema", whose)], nulls=True)


@dataclass
class FlatMapTest(Kit):
    """A flat map (``Table.flat_map``) whose state is in memory; feed it ``change(…)``.

    Parameters
    ----------
    rows : callable
        A callable of (key, row) that returns the rows, as dicts, that a row makes.
    key : str or callable
        A column of the new rows, or a callable of (key of the old row, new row). It gives the key
        as a text; None leaves the row out.
    seed : int, default 0
        The seed of the random order of ``REORDER``.

    Attributes
    ----------
    table : dict of str to dict
        The rows by key, as a reader of the results sees them.
    results : list of Result
        All results, in order.
    count : Counters
        The counters of the stages, such as ``stale-dropped``.

    Examples
    --------
    >>> def items(key, row):
    ...     return row["items"]
    >>> def item_key(key, item):
    ...     return f"{key}/{item['sku']}"
    >>> test = FlatMapTest(items, item_key)
    >>> first = change("o1", {"items": [{"sku": "a"}, {"sku": "b"}]})
    >>> results = test.feed(first, change("o1", {"items": [{"sku": "b"}]}))
    >>> test.table
    {'o1/b': {'sku': 'b'}}
    """

    rows: Callable[[str, Row], Iterable[Row]]
    key: str | Callable[[str, Row], str | None]

    _overtaken = False
    _names = "key"
    _whose = "a row that {!r} makes"

    def _stages(self) -> Sequence[StageSpec]:
        return specs.SpreadSpec(STATE, as_read=True), specs.OwnersSpec(STATE)

    def _require_row(self, change: Change) -> None:
        self._outputs(change)

    def _outputs(self, change: Change) -> dict[str, Row]:
        """The rows that a row makes, by their keys."""
        outputs: dict[str, Row] = {}
        for row in () if change.row is None else self.rows(change.key, change.row):
            key = self._named(row, change.key, change.key, row)
            if key in outputs:
                raise FkJoinError(f"rows of {change.key!r}: two of its rows have the key {key!r}")
            if key is not None:
                outputs[key] = row
        return outputs

    def _values(self, changes: list[Change]) -> pa.Array:
        places, keys, rows = list[int](), list[str](), list[bytes | None]()
        for number, change in enumerate(changes):
            for key, row in self._outputs(change).items():
                places.append(number)
                keys.append(key)
                rows.append(json_bytes(row))
        outputs = pairs.Pairs(np.array(places, np.int64), texts(keys), pa.array(rows, BYTES))
        return pairs.encode(outputs, len(changes))
