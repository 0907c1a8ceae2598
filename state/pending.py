"""Pending files: the writes of one attempt, kept beside the index until the log tells whether it
was committed.

A large batch is ``pending-{token}.sst``, a sorted file that the index can take in, with a
``pending-{token}.head``: ``{position that it leads on from}{position that it leads to}{digest}``.
A small one is ``pending-{token}.tail``: the same, and behind it the entries as an Arrow IPC
stream.  The digest has the log's key (``state.seal``), so that no other process can make one.  It
is of the positions and the entries; for a sorted file, of its hash and its stamp.

Files that lead on from one another are a *chain*.  The chain is a short cut: without a file, or
with a damaged one, the next batch reads the same entries from the log.
"""

from __future__ import annotations

import contextlib
import hmac
import mmap
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

from fkjoin.state.database import write_sorted
from fkjoin.state.private import close_to_others, write_private
from fkjoin.state.seal import SEAL_DIGEST_BYTES, keyed, stamp
from fkjoin.state.segments import POSITION_BYTES, Position, entry_bytes, read_entries, write_entries
from fkjoin.state.tail import KeysAndValues, Tail

TAIL_BYTES = 2 << 20
"""A batch of no more than that is small, and so are some in a row."""

TAIL_BATCHES = 16
"""The most that are not in the index yet."""

_HEAD_BYTES = 2 * POSITION_BYTES + SEAL_DIGEST_BYTES


class Pending(NamedTuple):
    """The writes of a committed attempt: a sorted file, or entries."""

    base: Position
    file: Path | None
    entries: KeysAndValues | None


def keep(
    directory: Path, entries: KeysAndValues, base: Position, goal: Position, key: bytes
) -> None:
    """Write the entries that lead from one position to the other; a full disk is allowed."""
    keys, values = entries
    if not len(keys):
        return
    large = directory / f"pending-{goal.token.hex()}.sst"
    files = large, large.with_suffix(".head"), large.with_suffix(".tail")
    try:
        if entry_bytes(keys, values) <= TAIL_BYTES:
            body = write_entries(keys, values).to_pybytes()
            write_private(files[2], _head(key, base, goal, body) + body)
        else:
            write_sorted(large, keys, values)
            close_to_others(large)
            write_private(files[1], _head_of(large, key, base, goal))
    except Exception:  # rocksdict has one kind of error
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def chain(directory: Path, start: Position, goal: Position, key: bytes) -> list[Pending] | None:
    """Find the files that lead from one position to the other.

    None if one is missing or damaged, or they are too many.
    """
    links: list[Pending] = []
    # Backwards: only the goal's name is known, and each file names the position before it.
    while goal != start:
        if len(links) > TAIL_BATCHES:
            return None
        link = _read(directory, goal, key)
        if link is None:
            return None
        links.insert(0, link)
        goal = link.base
    return links


class Waiting(NamedTuple):
    """Small batches in a row, which need not be in the index yet."""

    positions: tuple[Position, ...]
    """The one that they lead on from, and those that they lead to."""
    size: int
    """Bytes of all their entries."""
    tail: Tail
    """Their entries."""


_waiting: OrderedDict[Path, Waiting] = OrderedDict()
"""Entries that this process has read, by place, the last one last: only later ones need be read."""

_MOST_PLACES = 16


def waiting(directory: Path, start: Position, goal: Position, key: bytes) -> Waiting | None:
    """The small batches that lead from one position to the other.

    None if one is missing, damaged or large, or if they should be in the index: they are many.
    """
    none = Waiting((start,), 0, Tail())
    known = _waiting.pop(directory, none)
    if known.positions[0] != start:
        known = none  # the index has been written to since
    # Walk back from the goal, until it meets what this process has read already.  If it meets the
    # start instead, that is of an attempt which was not committed, and is read again.
    links: list[tuple[Position, KeysAndValues]] = []
    position = goal
    while position not in (start, known.positions[-1]):
        if len(links) >= TAIL_BATCHES:
            return None
        link = _read(directory, position, key)
        if link is None or link.entries is None:
            return None
        links.insert(0, (position, link.entries))
        position = link.base
    if position == start:
        known = none
    positions = *known.positions, *(position for position, _ in links)
    read = [entries for _, entries in links]
    size = known.size + sum(entry_bytes(*entries) for entries in read)
    if len(positions) - 1 > TAIL_BATCHES or size > TAIL_BYTES:
        return None
    longer = Waiting(positions, size, known.tail.followed_by(read) if read else known.tail)
    _waiting[directory] = longer
    while len(_waiting) > _MOST_PLACES:
        _waiting.popitem(last=False)
    return longer


def discard(directory: Path, but: Iterable[Position] = ()) -> None:
    """Remove the pending files of ``directory`` other than those that lead to these positions."""
    tokens = {position.token.hex() for position in but}
    for stale in directory.glob("pending-*"):
        if stale.stem.removeprefix("pending-") not in tokens:
            with contextlib.suppress(OSError):
                stale.unlink()


def _read(directory: Path, goal: Position, key: bytes) -> Pending | None:
    small = directory / f"pending-{goal.token.hex()}.tail"
    try:
        data = small.read_bytes()
    except OSError:
        return _sorted(small.with_suffix(".sst"), goal, key)
    base, body = Position.decode(data), data[_HEAD_BYTES:]
    if not hmac.compare_digest(data[:_HEAD_BYTES], _head(key, base, goal, body)):
        return None
    return Pending(base, None, read_entries(body))


def _sorted(large: Path, goal: Position, key: bytes) -> Pending | None:
    try:
        head = large.with_suffix(".head").read_bytes()
        base = Position.decode(head)
        same = hmac.compare_digest(head, _head_of(large, key, base, goal))
        return Pending(base, large, None) if same else None
    except (OSError, ValueError):
        return None


def _head_of(large: Path, key: bytes, base: Position, goal: Position) -> bytes:
    with large.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _head(key, base, goal, repr(stamp(large)).encode() + xxhash.xxh3_64_digest(data))


def _head(key: bytes, base: Position, goal: Position, data: bytes) -> bytes:
    positions = base.encode() + goal.encode()
    return positions + keyed(key, positions, data)
