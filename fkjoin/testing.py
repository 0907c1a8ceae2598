"""For your own tests: a join in memory that can be made to crash, to read twice and to reorder; no Spark, no JVM.

>>> test = JoinTest(extractor="customer", how="left")
>>> test.feed(right("c1", {"name": "Ada"}), left("o1", {"customer": "c1"}), CRASH, left("o1", None), DUPLICATE)
>>> assert test.table == {}

Rows are dicts of what JSON can write.  The stages are those that run on Spark; what is between them is played here.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin import combined_key, versions
from fkjoin.arrays import BYTES, as_bytes, valid
from fkjoin.errors import FkJoinError
from fkjoin.invariants import live_subscriptions
from fkjoin.messages import ANSWER, CHANGE, JOINED, RESULT, SUBSCRIPTION, Operation, column, table
from fkjoin.stages import Counters, How, rekey, resolve, subscription
from fkjoin.stages.join_rows import matched
from state import MemoryStore

Row = dict[str, Any]
Extractor = str | Callable[[str, Row], Any]
Joiner = Callable[[Row, Row | None], Any]

_SOURCES = versions.identity("left"), versions.identity("right")
_DAY_MS = 24 * 60 * 60 * 1000


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


@dataclass
class JoinTest:
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

    def __post_init__(self) -> None:
        self._stores = [MemoryStore() for _ in range(3)]
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

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """Which left keys subscribe to which foreign key (as JSON)."""
        found: dict[str, list[str]] = {}
        for page in live_subscriptions(self._stores[1]):
            for foreign, key in zip(*(part.to_pylist() for part in combined_key.decode(page)), strict=True):
                found.setdefault(foreign.decode(), []).append(key.decode())
        return found

    def stored(self, stage: Literal["rekey", "subscription", "resolve"]) -> dict[bytes, bytes]:
        """A stage's store, as it is."""
        return dict(self._stores[("rekey", "subscription", "resolve").index(stage)].items())

    def _process(self, batch: list[Event], what: Sentinel | None) -> None:
        if what == CRASH:
            for stages in (1, 2, 3):
                stores, count = copy.deepcopy(self._stores), self.count.copy()
                self._run(batch, stages)
                self._stores, self.count = stores, count
        self._fed += batch
        results = self._reordered(batch) if what == REORDER else [self._run(batch, 3)]
        if what == DUPLICATE:
            results.append(self._run(self._fed, 3))
        for made in results:
            self._take(made)

    def _run(self, batch: list[Event], stages: int) -> pa.Table:
        """A batch through so many stages, everything in order."""
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

    def _portions(self, messages: pa.Table) -> list[pa.Table]:
        """The messages in another order, a few at a time, some of them twice."""
        places = list(range(len(messages)))
        places = self._shuffled(places + self._random.sample(places, len(places) // 4))
        return [messages.take(pa.array(places[start : start + 3], pa.int64())) for start in range(0, len(places), 3)]

    def _shuffled(self, items: Iterable[Any]) -> list[Any]:
        listed = list(items)
        self._random.shuffle(listed)
        return listed

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
        if event.row is None:
            return None
        found = self.extractor(event.key, event.row) if callable(self.extractor) else event.row.get(self.extractor)
        if not isinstance(found, str | None):
            raise FkJoinError(f"extractor: the foreign key of {event.key!r} is {found!r}; here keys are texts, or None")
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

    def _take(self, results: pa.Table) -> None:
        for row in results.to_pylist():
            value = None if row["value"] is None else json.loads(row["value"])
            operation: Any = Operation(row["operation"]).name.lower()
            key = row["key"].decode()
            self.outputs.append(Output(key, operation, value))
            if value is None:
                del self.table[key]
            else:
                self.table[key] = value


def _times() -> dict[str, Any]:
    return {"now_ms": 0, "retention_ms": _DAY_MS}


def _dumps(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()


__all__ = ["CRASH", "DUPLICATE", "REORDER", "Event", "JoinTest", "Output", "left", "right"]
