"""The expected result of a join: a plain batch join of the final tables; and events from which tests make changes."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.messages import CHANGE, RESULT
from fkjoin.stages.join_rows import split_rows
from tests.support.changes import newest, take
from tests.support.versions import message_table, version

LEFT, RIGHT = versions.identity("left"), versions.identity("right")

Joined = dict[bytes, tuple[bytes, bytes | None]]


class Change(NamedTuple):
    """A change of either table; ``value`` None deletes."""

    left: bool
    key: bytes
    value: bytes | None
    version: int
    foreign_key: bytes | None = None


def batch_join(changes: Iterable[Change], how: str) -> Joined:
    """The joined table of the rows with the greatest versions."""
    rows = newest(changes, attrgetter("left", "key"))
    joined: Joined = {}
    for (left, key), change in rows.items():
        if not left or change.value is None:
            continue
        other = rows.get((False, change.foreign_key))
        right = other.value if other is not None else None
        if right is not None or how == "left":
            joined[key] = (change.value, right)
    return joined


def messages(changes: Iterable[Change], *, left: bool) -> pa.Table:
    """One side's changes as ``CHANGE``."""
    rows = []
    for change in changes:
        if change.left == left:
            foreign_key = None if change.value is None else change.foreign_key
            mark = version(change.version, source=LEFT if left else RIGHT)
            rows.append((change.key, foreign_key, change.value, mark, change.version))
    return message_table(CHANGE, rows)


def sides(changes: Iterable[Change]) -> tuple[pa.Table, pa.Table]:
    """Both sides' changes."""
    rows = list(changes)
    return messages(rows, left=True), messages(rows, left=False)


def apply(results: pa.Table, joined: Joined) -> None:
    """Bring ``joined`` up to date; fails on a result that changes nothing."""
    left, right = split_rows(results.column("value").combine_chunks())
    columns = (results.column("key"), results.column("operation"), left, right)
    for key, operation, one, other in zip(*(column.to_pylist() for column in columns), strict=True):
        take(joined, key, operation, None if one is None else (one, other))


EVENT = st.tuples(
    st.booleans(), st.sampled_from([b"1", b"2", b"3"]), st.sampled_from([b"a", b"b", None]), st.sampled_from([b"x", b"y", None])
)


@st.composite
def histories(draw: Any, most: int = 24) -> list[Change]:
    """Changes of three left rows and two right rows, versions counted up."""
    events = draw(st.lists(EVENT, min_size=1, max_size=most))
    return [
        Change(True, key, value, version, foreign_key) if left else Change(False, foreign_key or b"a", value, version)
        for version, (left, key, foreign_key, value) in enumerate(events)
    ]


def rows(results: pa.Table) -> list[tuple[Any, ...]]:
    """The columns of results that reach a sink, in a fixed order."""
    return sorted(zip(*(results.column(name).to_pylist() for name in RESULT.names), strict=True), key=repr)
