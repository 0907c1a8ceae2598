"""gather, by left key: the last stage of a *star*, which puts a left row and the right rows that it names together.

*Law*: a row is sent only when every right row in it was answered for the version since which the left row names it; so no mix
of a new left row with what an older one named is ever seen, in whatever order the parts come.  What leaves the row's bytes as
they were is dropped (KIP-557), and so are tombstones of rows that were never there.

A result has the timestamp that joins in a row would give it: where its left row changed, the latest of all its rows', else the
latest of the first right row that changed and those of later tables.

Store: ``{'d'}{left key}`` → the left row's version, the result's timestamp, and ``{left row}``, for each right table
``{version of the answer}{right row}{its timestamp}``, and, while answers are missing, what is waited for and the row that was
sent last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import records, versions
from fkjoin.codec.arrays import (
    Bools,
    Bytes,
    Ints,
    codes,
    concat,
    constant,
    equal,
    last_of_run,
    lengths,
    masked,
    prefixed,
    replaced,
    take,
    valid,
)
from fkjoin.codec.messages import LEFT, NO_TIMESTAMP, RESULT, Operation, column, table
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec, bytes_codec
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only
from fkjoin.stages.resolve import HAS_RESULT
from fkjoin.stages.retention import GONE, kept, sweep
from fkjoin.stages.star import Star
from fkjoin.state import Store

WAITS = 4
"""The flag of a record that answers are missing for, or that has an answer for a left row that is yet to come."""


class Parts(NamedTuple):
    """What is known under each left key."""

    version: Bytes
    """Of the left row; empty where none ever came."""
    left: Bytes
    since: list[Bytes]
    """For each right table, from which version of the left row its foreign key is what it is; null where there is none."""
    answered: list[Bytes]
    """For each right table, the version that the last answer was for, and the right row's; null where none ever came."""
    rights: list[Bytes]
    times: list[Ints]
    """Timestamps of the right rows."""

    def complete(self, left_parts: int) -> Bools:
        """Where nothing is missing."""
        found: Bools = lengths(self.version) > 0
        for since, answered in zip(self.since, self.answered, strict=True):
            found = found & (~valid(since) | equal(since, versions.split(answered, left_parts)[0]))
        return found

    def early(self, left_parts: int) -> list[Bools]:
        """For each right table, which answers are for a left row that is yet to come; the last one waits for none there."""
        found = []
        for since, answered in zip(self.since, self.answered, strict=True):
            ahead = ~valid(since) & valid(answered)
            at = np.flatnonzero(ahead)
            heads = versions.split(take(answered, at), left_parts)[0]
            ahead[at] = versions.is_newer(heads, take(self.version, at))
            found.append(ahead)
        return found

    def of(self, chosen: Bools) -> Parts:
        mask = pa.array(chosen)
        since, answered, rights = ([one.filter(mask) for one in each] for each in (self.since, self.answered, self.rights))
        times = [one[chosen] for one in self.times]
        return Parts(self.version.filter(mask), self.left.filter(mask), since, answered, rights, times)

    def named(self) -> list[Bytes]:
        """The right rows that the left rows name."""
        return [masked(row, valid(since)) for row, since in zip(self.rights, self.since, strict=True)]

    def there(self, star: Star) -> Bools:
        """Which make a row of the result, where nothing is missing."""
        found = valid(self.left)
        for right, row in zip(star.rights, self.named(), strict=True):
            if right.how == "inner":
                found = found & valid(row)
        return found

    def timestamp(self, left: Ints, before: Bools, changed: list[Bools]) -> Ints:
        """Of the result; ``left``: of left rows that changed, ``before``: which did; ``changed``: which right rows did."""
        found = left
        for row, times, now in zip(self.named(), self.times, changed, strict=True):
            found = np.where(now | (before & valid(row)), np.maximum(found, times), found)
            before = before | now
        return found

    def versions(self, star: Star) -> Bytes:
        """Of the result: the left row's, then those of the right rows."""
        found = []
        for right, since, answered in zip(star.rights, self.since, self.answered, strict=True):
            own = versions.split(masked(answered, valid(since)), star.left_parts)[1]
            found.append(pc.fill_null(own, pa.scalar(versions.absent(right.parts), own.type)))
        return concat(self.version, *found)


def gather(
    parts: pa.Table,
    store: Store,
    count: Counters,
    star: Star,
    *,
    now_ms: int,
    retention_ms: int,
    in_order: bool = False,
) -> pa.Table:
    """Turn ``parts`` (``PART``; any order, duplicates allowed) into changes of the star's table (``RESULT``).

    ``in_order``: see ``newest_only``.
    """
    sweep(store, now_ms)
    if not len(parts):
        return RESULT.empty_table()
    code, keys = codes(column(parts, "key"))
    names = prefixed(b"d", keys)
    held = records.decode(store.get_many(names))
    before, sent = known(held, star)
    number, times = column(parts, "number").to_numpy(), column(parts, "ts").to_numpy()
    version, value, since = (column(parts, name) for name in ("version", "value", "since"))
    after = before._replace(answered=list(before.answered), rights=list(before.rights), times=list(before.times))
    left_ts = np.full(len(keys), NO_TIMESTAMP)
    moved = {part: np.zeros(len(keys), bool) for part in range(LEFT, len(star.rights))}
    for part, changed in moved.items():
        own = np.flatnonzero(number == part)
        if not len(own):
            continue
        last_seen = before.version if part == LEFT else before.answered[part]
        there = valid(last_seen) & (lengths(last_seen) > 0)
        marks = Records(there, held.flags, held.ts, pc.fill_null(last_seen, b""), held.body)
        order, which, newer = newest_only(code[own], take(version, own), marks, count, in_order=in_order)
        last = np.flatnonzero(last_of_run(which))
        place, where, newest = own[order[last]], which[last], take(newer, last)
        if part == LEFT:
            began = bytes_codec(len(star.rights)).decode(take(since, place))
            waits = [replaced(old, where, new) for old, new in zip(after.since, began, strict=True)]
            row = replaced(after.left, where, take(value, place))
            after = after._replace(version=replaced(after.version, where, newest), left=row, since=waits)
            left_ts[where] = times[place]
        else:
            after.answered[part] = replaced(after.answered[part], where, newest)
            after.rights[part] = replaced(after.rights[part], where, take(value, place))
            after.times[part] = after.times[part].copy()
            after.times[part][where] = times[place]
        changed[where] = True

    taken = np.logical_or.reduce(list(moved.values()))
    had, complete = held.flags & HAS_RESULT > 0, after.complete(star.left_parts)
    there = complete & after.there(star)
    shown, was = _rows(star, keys, after, there), _sent(star, keys, before, sent, had & (there | ~complete))
    same = there & had & equal(shown, was)
    emit = taken & complete & (there | had) & ~same
    count[counters.TOMBSTONES] += int((taken & complete & ~there & ~had).sum())
    count[counters.IDEMPOTENT] += int((taken & same).sum())
    count[counters.OUT] += int(emit.sum())
    operation = np.where(~there, Operation.DELETE, np.where(had, Operation.UPDATE, Operation.INSERT)).astype(np.int8)
    latest = after.timestamp(left_ts, moved[LEFT], [moved[part] for part in range(len(star.rights))])
    last_ts = np.where(held.found, held.ts, NO_TIMESTAMP)
    waited = (held.flags & WAITS > 0) | (latest == NO_TIMESTAMP)
    latest = np.where(waited, np.maximum(latest, last_ts), latest)
    out, ts = pa.array(emit), np.where(emit | (taken & ~complete), latest, last_ts)
    made = table(RESULT, keys.filter(out), operation[emit], shown.filter(out), after.of(emit).versions(star), ts[emit])

    gone = complete & ~valid(after.left)
    early = [np.zeros(len(keys), bool)] * len(star.rights) if in_order else after.early(star.left_parts)
    waits = np.logical_or.reduce([~complete, *early])
    flags = np.where(gone, GONE, 0) | np.where(waits, WAITS, 0) | np.where(np.where(complete, there, had), HAS_RESULT, 0)
    needed = [~complete | valid(since) | ahead for since, ahead in zip(after.since, early, strict=True)]
    body = _encoded(after, needed, waits, masked(was, ~complete))
    values = records.encode(flags.astype(np.uint8), ts, after.version, body)
    written = pa.array(taken)
    entries = names.filter(written), values.filter(written), after.version.filter(written)
    store.write(*kept(*entries, gone[taken], now_ms + retention_ms, in_order))
    return made


def known(held: Records, star: Star) -> tuple[Parts, Bytes]:
    """What records say, and of those that answers are missing for, the row that was sent."""
    rights = len(star.rights)
    columns = _codec(rights).decode(held.body)
    times = [pc.fill_null(one, NO_TIMESTAMP).to_numpy() for one in columns[2 + 3 * rights :]]
    left, answered, rows = columns[0], columns[1 : 1 + rights], columns[1 + rights : 1 + 2 * rights]
    waits = held.flags & WAITS > 0
    since = []
    for own, waited in zip(answered, columns[1 + 2 * rights : 1 + 3 * rights], strict=True):
        of_answer = versions.split(own, star.left_parts)[0]
        since.append(pc.if_else(pa.array(waits), waited, of_answer))
    return Parts(held.version, left, since, answered, rows, times), columns[1 + 3 * rights]


def result_rows(keys: Bytes, held: Records, star: Star) -> tuple[Bytes, Bytes]:
    """The rows of the star that records keep, and their versions; null where there is none."""
    parts, sent = known(held, star)
    had = held.flags & HAS_RESULT > 0
    return _sent(star, keys, parts, sent, had), parts.versions(star)


def _rows(star: Star, keys: Bytes, parts: Parts, chosen: Bools) -> Bytes:
    """The rows of the result where they are ``chosen``; null elsewhere."""
    some, at = parts.of(chosen), np.flatnonzero(chosen)
    rows = star.rows(keys.filter(pa.array(chosen)), some.left, some.named())
    return rows if chosen.all() else replaced(constant(None, len(keys)), at, rows)


def _sent(star: Star, keys: Bytes, parts: Parts, sent: Bytes, chosen: Bools) -> Bytes:
    """The rows that were sent last."""
    waited = valid(sent)
    return pc.coalesce(sent, _rows(star, keys, parts, chosen & ~waited))


def _encoded(parts: Parts, needed: list[Bools], waits: Bools, sent: Bytes) -> Bytes:
    """Bodies of records, without answers that are not ``needed`` any more."""
    answered = [masked(one, keep) for one, keep in zip(parts.answered, needed, strict=True)]
    rows = [masked(one, keep) for one, keep in zip(parts.rights, needed, strict=True)]
    since = [masked(one, waits) for one in parts.since]
    times = [pa.array(one) for one in parts.times]
    return _codec(len(rows)).encode([parts.left, *answered, *rows, *since, sent, *times], len(parts.left))


def _codec(rights: int) -> RowCodec:
    return RowCodec(pa.schema([*bytes_codec(2 + 3 * rights).schema, *((f"ts{at}", pa.int64()) for at in range(rights))]))
