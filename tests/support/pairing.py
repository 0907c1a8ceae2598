"""Two tables with one key: their messages, and the plain join by primary key."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import NUMBERED
from fkjoin.stages.join_rows import split_rows
from tests.support.changes import newest, take
from tests.support.versions import message_table, version

HOWS = ("inner", "left", "outer")
SOURCES = b"the-left", b"theright"


class Event(NamedTuple):
    """A change of a row: the number of its table, its key, its version, the row, its timestamp."""

    number: int
    key: str
    version: int
    row: bytes | None
    ts: int = 0


Pair = tuple[bytes | None, bytes | None]


class Result(NamedTuple):
    """A joined row, with the numbers of both versions, -1 where there is none, and its timestamp."""

    pair: Pair
    versions: tuple[int, int]
    ts: int


def messages(events: Iterable[Event]) -> pa.Table:
    rows = []
    for number, key, changed, row, ts in events:
        rows.append((key, version(changed, source=SOURCES[number]), row, row is None, ts, number))
    return message_table(NUMBERED, rows)


def joined(events: Iterable[Event], how: str) -> dict[str, Result]:
    """The join of the newest rows, with their versions and the later timestamp."""
    last = newest(events, attrgetter("key", "number"))
    found = {}
    for key in {key for key, _ in last}:
        sides = [last.get((key, number)) for number in (0, 1)]
        left, right = (side and side.row for side in sides)
        there = {"inner": (left, right), "left": (left,), "outer": (left if left is not None else right,)}[how]
        if None not in there:
            numbers = tuple(-1 if side is None else side.version for side in sides)
            latest = max(side.ts for side in sides if side is not None)
            found[key] = Result((left, right), (numbers[0], numbers[1]), latest)
    return found


def pair_of(value: bytes) -> Pair:
    left, right = (side[0].as_py() for side in split_rows(pa.array([value], BYTES)))
    return left, right


def apply(results: pa.Table, table: dict[str, Result], *, every: bool = False) -> None:
    """Bring ``table`` up to date; fails on a result that changes nothing, and on versions that do not grow."""
    for one in results.to_pylist():
        key, after = one["key"].decode(), None
        if one["value"] is not None:
            numbers = tuple(part[0] if part else -1 for _, part in versions.decode(one["version"]))
            after = Result(pair_of(one["value"]), (numbers[0], numbers[1]), one["ts"])
        before = take(table, key, one["operation"], after)
        if before is not None and after is not None:
            assert every or after.pair != before.pair, "what is as it was is not sent again"
            assert after.versions > before.versions, "versions only grow"
