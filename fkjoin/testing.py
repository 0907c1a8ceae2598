"""For your own tests: joins and aggregates in memory that can be made to crash, to read twice and to reorder; no Spark, no JVM.

>>> test = JoinTest(extractor="customer", how="left")
>>> test.feed(right("c1", {"name": "Ada"}), left("o1", {"customer": "c1"}), CRASH, left("o1", None), DUPLICATE)
>>> assert test.table == {}

Rows are dicts of what JSON can write.  The stages are those that run on Spark; what is between them is played here.
"""

from __future__ import annotations

import copy
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, versions
from fkjoin.codec.arrays import BYTES, as_bytes, valid
from fkjoin.codec.messages import ANSWER, CHANGE, GROUPED, JOINED, RESULT, SUBSCRIPTION, Operation, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import FkJoinError
from fkjoin.folds.calls import Called, Starting
from fkjoin.folds.fold import Fold
from fkjoin.stages import Counters, How, aggregate, regroup, rekey, resolve, subscription
from fkjoin.stages.invariants import live_subscriptions
from fkjoin.stages.join_rows import matched, require_how
from fkjoin.stages.regroup import contributions
from fkjoin.state import MemoryStore

Row = dict[str, Any]
Extractor = str | Callable[[str, Row], Any]
Joiner = Callable[[Row, Row | None], Any]

_SOURCES = versions.identity("left"), versions.identity("right")


class Event(NamedTuple):
    """A change of a row; ``row`` None deletes it.  ``version`` orders the changes of a key; by default, as they are fed."""

    side: Literal["left", "right"]
    key: str
    row: Row | None
    version: int | None = None


def left(key: str, row: Row | None, version: int | None = None) -> Event:
    return Event("left", key, row, version)


def right(key: str, row: Row | None, version: int | None = None) -> Event:
    return Event("right", key, row, version)


def change(key: str, row: Row | None, version: int | None = None) -> Event:
    """Of a table that is summed up."""
    return Event("left", key, row, version)


@dataclass(frozen=True)
class Sentinel:
    """Something that happens to a batch."""

    name: str


CRASH = Sentinel("CRASH")
"""The batch before it is lost after each stage in turn, with all that it wrote, and is then done."""

DUPLICATE = Sentinel("DUPLICATE")
"""Everything that was fed so far comes again."""

REORDER = Sentinel("REORDER")
"""The messages of the batch before it overtake each other between the stages and come in portions, some of them twice."""


class Output(NamedTuple):
    """A change of the joined table; ``value`` None in a delete."""

    key: str
    operation: Literal["insert", "update", "delete"]
    value: Any


class _Kit(ABC):
    """What tests of joins and of aggregates share: batches, what happens to them, and the table that comes of it."""

    table: dict[str, Any]
    outputs: list[Output]
    count: Counters
    seed: int
    _stages: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self._stores = [MemoryStore() for _ in self._stages]
        self._fed: list[Event] = []
        self._random = random.Random(self.seed)

    def feed(self, *events: Event | Sentinel) -> list[Output]:
        """Process events, a batch up to each sentinel and one after the last; the outputs of all of them."""
        before = len(self.outputs)
        batch: list[Event] = []
        for event in events:
            if isinstance(event, Event):
                batch.append(event if event.version is not None else event._replace(version=len(self._fed) + len(batch)))
                continue
            self._process(batch, event)
            batch = []
        self._process(batch, None)
        return self.outputs[before:]

    def stored(self, stage: str) -> dict[bytes, bytes]:
        """A stage's store, as it is."""
        return dict(self._stores[self._stages.index(stage)].items())

    def _process(self, batch: list[Event], what: Sentinel | None) -> None:
        if what == CRASH:
            for stages in range(1, len(self._stages) + 1):
                stores, count = copy.deepcopy(self._stores), self.count.copy()
                self._run(batch, stages)
                self._stores, self.count = stores, count
        self._fed += batch
        whole = len(self._stages)
        results = self._reordered(batch) if what == REORDER else [self._run(batch, whole)]
        if what == DUPLICATE:
            results.append(self._run(self._fed, whole))
        for made in results:
            self._take(made)

    @abstractmethod
    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        """A batch through so many stages, everything in order."""

    @abstractmethod
    def _reordered(self, batch: list[Event]) -> list[pa.Table]:
        """A batch through all stages, its messages out of order, some of them twice."""

    def _read(self, value: bytes) -> Any:
        """A result, from its bytes."""
        return json.loads(value)

    def _portions(self, messages: pa.Table) -> list[pa.Table]:
        """The messages in another order, a few at a time, some of them twice."""
        places = list(range(len(messages)))
        places = self._shuffled(places + self._random.sample(places, len(places) // 4))
        return [messages.take(pa.array(places[start : start + 3], pa.int64())) for start in range(0, len(places), 3)]

    def _shuffled(self, items: Iterable[Any]) -> list[Any]:
        listed = list(items)
        self._random.shuffle(listed)
        return listed

    def _take(self, results: pa.Table) -> None:
        for row in results.to_pylist():
            value = None if row["value"] is None else self._read(row["value"])
            operation: Any = Operation(row["operation"]).name.lower()
            key = row["key"].decode()
            self.outputs.append(Output(key, operation, value))
            if value is None:
                del self.table[key]
            else:
                self.table[key] = value


@dataclass
class JoinTest(_Kit):
    """A foreign-key join whose state is in memory.

    ``extractor``: a column of the left row, or a callable of (key, row); None is no foreign key.  ``joiner``: a callable of
    (left row, right row), whose None is no result; without it a joined row is ``{"left": …, "right": …}``.  ``seed``: of what
    ``REORDER`` does.
    """

    extractor: Extractor
    how: How = "inner"
    joiner: Joiner | None = None
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    """The joined table as whoever reads the outputs has it."""
    outputs: list[Output] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)
    """What the stages counted: ``stale-dropped``, ``tombstones-suppressed``, …."""

    _stages = ("rekey", "subscription", "resolve")

    def __post_init__(self) -> None:
        require_how(self.how)
        super().__post_init__()

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """Which left keys subscribe to which foreign key (as JSON)."""
        found: dict[str, list[str]] = {}
        for page in live_subscriptions(self._stores[1]):
            for foreign, key in zip(*(part.to_pylist() for part in combined_key.decode(page)), strict=True):
                found.setdefault(foreign.decode(), []).append(key.decode())
        return found

    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        rekeyed = rekey(self._changes(batch, "left"), self._stores[0], self.count, **_times())
        if stages == 1:
            return RESULT.empty_table()
        answers = [rekeyed.answers, *self._answers(rekeyed.subscriptions, self._changes(batch, "right"), in_order=True)]
        joined = self._joined(pa.concat_tables(answers))
        return resolve(joined, self._stores[2], self.count, **_times()) if stages == 3 else RESULT.empty_table()

    def _reordered(self, batch: list[Event]) -> list[pa.Table]:
        rekeyed = [
            rekey(part, self._stores[0], self.count, **_times()) for part in self._portions(self._changes(batch, "left"))
        ]
        rights = self._portions(self._changes(batch, "right"))
        waiting = self._portions(pa.concat_tables([SUBSCRIPTION.empty_table(), *(part.subscriptions for part in rekeyed)]))
        nothing = SUBSCRIPTION.empty_table(), CHANGE.empty_table()
        answers = [ANSWER.empty_table(), *(part.answers for part in rekeyed)]
        for part in self._shuffled([*((one, nothing[1]) for one in waiting), *((nothing[0], one) for one in rights)]):
            answers += self._answers(*part, in_order=False)
        portions = self._portions(pa.concat_tables(answers))
        return [resolve(self._joined(part), self._stores[2], self.count, **_times()) for part in portions]

    def _answers(self, subscriptions: pa.Table, rights: pa.Table, *, in_order: bool) -> Iterable[pa.Table]:
        return subscription(subscriptions, rights, self._stores[1], self.count, in_order=in_order, **_times())

    def _changes(self, batch: Iterable[Event], side: str) -> pa.Table:
        rows = [event for event in batch if event.side == side]
        return table(
            CHANGE,
            as_bytes(pa.array([row.key for row in rows], pa.string())),
            pa.array([self._foreign_key(row) if side == "left" else None for row in rows], BYTES),
            pa.array([None if row.row is None else _dumps(row.row) for row in rows], BYTES),
            versions.encode(_SOURCES[side == "right"], [np.array([row.version for row in rows], np.int64)]),
            np.zeros(len(rows), np.int64),
        )

    def _foreign_key(self, event: Event) -> bytes | None:
        found = _named(self.extractor, event, "extractor")
        return None if found is None else found.encode()

    def _joined(self, answers: pa.Table) -> pa.Table:
        rows = zip(column(answers, "left").to_pylist(), column(answers, "right").to_pylist(), strict=True)
        values = [
            self._join(json.loads(one), None if other is None else json.loads(other)) if there else None
            for (one, other), there in zip(rows, matched(answers, self.how), strict=True)
        ]
        value = pa.array([None if found is None else _dumps(found) for found in values], BYTES)
        columns = (column(answers, name) for name in ("key", "version"))
        return table(JOINED, *columns, value, ~valid(column(answers, "left")), column(answers, "ts"))

    def _join(self, one: Row, other: Row | None) -> Any:
        return {"left": one, "right": other} if self.joiner is None else self.joiner(one, other)


@dataclass
class AggregateTest(_Kit):
    """An aggregate by functions of one's own (``group_by(…).aggregate(…)``) whose state is in memory; feed it ``change(…)``.

    ``group``: a column of the row, or a callable of (key, row), that gives the group's key, a text; None is in no group.
    ``initializer``: a callable of nothing, or a value.  ``adder``, ``subtractor``: functions of (group's key, row, aggregate)
    that return the aggregate, of what JSON can write, or a set, as the initializer makes it.
    """

    group: Extractor
    initializer: Any
    adder: Callable[[str, Row, Any], Any]
    subtractor: Callable[[str, Row, Any], Any]
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    """The aggregates by group, as whoever reads the outputs has them."""
    outputs: list[Output] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("regroup", "aggregate")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start = self.initializer if callable(self.initializer) else Starting(self.initializer)
        add, subtract = (self._by_text(function) for function in (self.adder, self.subtractor))
        self._value, key = pa.schema([("row", pa.string())]), pa.schema([("group", pa.string())])
        called = Called("value", pa.string(), key, self._value, True, lambda: _text(self._start()), add, subtract)
        self._fold = Fold(self._value, (called,), nullable=True, ordered=True)

    def _by_text(self, function: Callable[[str, Row, Any], Any]) -> Callable[[str, str, str], str | None]:
        def call(group: str, row: str, aggregate: str) -> str | None:
            found = function(group, json.loads(row), self._shaped(json.loads(aggregate)))
            return None if found is None else _text(found)

        return call

    def _shaped(self, found: Any) -> Any:
        shape = type(self._start())
        return found if found is None or isinstance(found, shape) or shape is type(None) else shape(found)

    def _read(self, value: bytes) -> Any:
        (texts,) = RowCodec(self._fold.schema).decode(pa.array([value], BYTES))
        return self._shaped(json.loads(texts[0].as_py()))

    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        changed = regroup(self._rows(batch), self._stores[0], self.count, **_times())
        return self._aggregated(changed) if stages == 2 else RESULT.empty_table()

    def _reordered(self, batch: list[Event]) -> list[pa.Table]:
        changed = [regroup(part, self._stores[0], self.count, **_times()) for part in self._portions(self._rows(batch))]
        return [self._aggregated(part) for part in self._portions(pa.concat_tables([GROUPED.empty_table(), *changed]))]

    def _aggregated(self, changed: pa.Table) -> pa.Table:
        how: Any = {"source": versions.identity("groups"), "guarded": True}
        return aggregate(changed, self._stores[1], self.count, self._fold, **how, **_times())

    def _rows(self, batch: Iterable[Event]) -> pa.Table:
        rows = list(batch)
        groups = pa.array([None if event.row is None else _named(self.group, event, "group") for event in rows], pa.string())
        there = np.array([event.row is not None for event in rows], bool)
        values = pa.array([_dumps(event.row).decode() for event in rows], pa.string())
        value = contributions(pa.schema([("group", pa.string())]), [groups], self._value, [values], there)
        number = np.array([event.version for event in rows], np.int64)
        key = as_bytes(pa.array([event.key for event in rows], pa.string()))
        return table(JOINED, key, versions.encode(_SOURCES[0], [number]), value, ~there, np.zeros(len(rows), np.int64))


def _named(extractor: Extractor, event: Event, argument: str) -> str | None:
    """The key that a row names; None without a row."""
    if event.row is None:
        return None
    found = extractor(event.key, event.row) if callable(extractor) else event.row.get(extractor)
    if not isinstance(found, str | None):
        raise FkJoinError(f"{argument}: the key that {event.key!r} names is {found!r}; here keys are texts, or None")
    return found


def _times() -> dict[str, Any]:
    return {"now_ms": 0, "retention_ms": 24 * 60 * 60 * 1000}


def _text(aggregate: Any) -> str:
    return json.dumps(aggregate, sort_keys=True, default=lambda found: sorted(found) if isinstance(found, set) else str(found))


def _dumps(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()


__all__ = ["CRASH", "DUPLICATE", "REORDER", "AggregateTest", "Event", "JoinTest", "Output", "change", "left", "right"]


def __dir__() -> list[str]:
    return __all__
