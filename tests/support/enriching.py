"""A table's changes and events: their messages, and the events with rows that a plain recomputation has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from fkjoin.codec.messages import EVENT, JOINED
from tests.support.changes import newest
from tests.support.versions import message_table, version


class Change(NamedTuple):
    """A change of a row of the table; None deletes it."""

    key: str
    version: int
    row: bytes | None


class Event(NamedTuple):
    """An event, and the key that it names, if any."""

    number: int
    key: str | None


Message = Change | Event
Sent = tuple[int, bytes | None]
"""The number of an event, and the row that it was given."""


def rows_of(batch: Iterable[Message]) -> pa.Table:
    """The changes of a batch."""
    rows = []
    for change in batch:
        if isinstance(change, Change):
            rows.append((change.key, version(change.version), change.row, change.row is None, 0))
    return message_table(JOINED, rows)


def events_of(batch: Iterable[Message]) -> pa.Table:
    """The events of a batch."""
    rows = []
    for event in batch:
        if isinstance(event, Event):
            text = str(event.number)
            rows.append((text if event.key is None else event.key, event.key is not None, text))
    return message_table(EVENT, rows)


def in_order(some: Iterable[Sent]) -> list[Sent]:
    """Sort what was sent by number and row."""
    return sorted(some, key=lambda one: (one[0], one[1] is not None, one[1] or b""))


def sent(results: pa.Table) -> list[Sent]:
    """The events of results, by their numbers."""
    return in_order((int(one["event"]), one["row"]) for one in results.to_pylist())


def wanted(batches: Sequence[Sequence[Message]], how: str) -> list[Sent]:
    """Results of the last batch: its events, with the newest rows of all changes so far."""
    changes = newest(one for batch in batches for one in batch if isinstance(one, Change))
    rows = {key: change.row for key, change in changes.items() if change.row is not None}
    events = [one for one in batches[-1] if isinstance(one, Event)]
    given = ((one.number, None if one.key is None else rows.get(one.key)) for one in events)
    return in_order((number, row) for number, row in given if how == "left" or row is not None)
