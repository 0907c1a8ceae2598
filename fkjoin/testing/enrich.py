"""Events enriched in memory, for users' tests; ``fkjoin.testing`` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, as_bytes, valid
from fkjoin.codec.messages import ENRICHED, EVENT, JOINED, table
from fkjoin.errors import FkJoinError
from fkjoin.stages import Counters, How, enrich
from fkjoin.stages.join_rows import require_how_of_events
from fkjoin.testing.kit import DUPLICATE, TIMES, Change, Kit, Result, Row, key_in


@dataclass
class EnrichTest(Kit):
    """Events enriched by a table (``Table.enrich``) whose state is in memory; feed it ``change(…)`` and ``event(…)``.

    ``DUPLICATE`` brings the table's changes again, and no event, since each of these comes once.

    Parameters
    ----------
    on : str or callable
        A column of the event, or a callable of the event, that gives the table's key, a text; None names no row.
    how : {"inner", "left"}, default "inner"
        See ``Table.enrich``.
    seed : int, default 0
        See ``JoinTest``.

    Attributes
    ----------
    table : dict of str to dict
        The table's rows by key.
    results : list of Result
        The events that were sent: each an insert under the key that it names, or ``""``, whose value has the columns of the
        event and of the row.
    count : Counters
        The counters of the stage: ``events-without-row``, ….

    Examples
    --------
    >>> test = EnrichTest(on="customer", how="left")
    >>> results = test.feed(event({"customer": "c1", "n": 1}), change("c1", {"name": "Ada"}), CRASH, change("c1", None))
    >>> [result.value for result in results]
    [{'customer': 'c1', 'n': 1, 'name': 'Ada'}]
    """

    on: str | Callable[[Row], str | None]
    how: How = "inner"
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("enrich",)
    _takes = ("change", "event")
    _names = "on"

    def __post_init__(self) -> None:
        require_how_of_events(self.how)
        super().__post_init__()

    def _require_row(self, change: Change) -> None:
        if change.side == "event":
            self._key(change)

    def _process(self, batch: list[Change], what: Any) -> None:
        super()._process(batch, None if what == DUPLICATE else what)
        changes = sorted((one for one in self._fed if one.side != "event"), key=lambda one: one.version or 0)
        if what == DUPLICATE:
            self._take(self._run(changes, 1))
        for one in changes:
            self.table.pop(one.key, None)
            if one.row is not None:
                self.table[one.key] = one.row

    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        changes, events = ([one for one in batch if (one.side == "event") == of_events] for of_events in (False, True))
        return enrich(_changes(changes), self._events(events), self._stores[0], self.count, how=self.how, **TIMES)

    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        """Messages of a batch come in any order, and the table's changes twice."""
        again = [one for one in batch if one.side != "event"]
        return [self._run(self._shuffled([*batch, *self._random.sample(again, len(again) // 2)]), 1)]

    def _events(self, events: list[Change]) -> pa.Table:
        keys, rows = [self._key(event) for event in events], [_dumps(event.row) for event in events]
        key = pa.array([row if named is None else named.encode() for named, row in zip(keys, rows, strict=True)], BYTES)
        return table(EVENT, key, np.array([one is not None for one in keys], bool), pa.array(rows, BYTES))

    def _key(self, event: Change) -> str | None:
        assert event.row is not None
        found = key_in(event.row, self.on, "on", f"the event {event.row!r}", event.row)
        if not isinstance(found, str | None):
            raise FkJoinError(f"on: the key that {event.row!r} names is {found!r}; here keys are texts, or None")
        return found

    def _take(self, results: pa.Table) -> None:
        assert results.schema.equals(ENRICHED)
        for one in results.to_pylist():
            row = {} if one["row"] is None else json.loads(one["row"])
            event = Change("event", "", json.loads(one["event"]))
            self.results.append(Result(self._key(event) or "", "insert", {**(event.row or {}), **row}))


def _changes(changes: list[Change]) -> pa.Table:
    rows = pa.array([None if one.row is None else _dumps(one.row) for one in changes], BYTES)
    return table(
        JOINED,
        as_bytes(pa.array([one.key for one in changes], pa.string())),
        versions.encode(versions.identity("left"), [np.array([one.version for one in changes], np.int64)], tied=True),
        rows,
        ~valid(rows),
        np.zeros(len(changes), np.int64),
    )


def _dumps(row: Any) -> bytes:
    return json.dumps(row, sort_keys=True, ensure_ascii=False).encode()
