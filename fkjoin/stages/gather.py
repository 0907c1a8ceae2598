"""gather, by left key: the last stage of a multi-way join puts left rows and right rows together.

See docs/semantics.md, "Multi-way joins".

*Law*: a row is emitted only when every right row in it was answered for the version since which the
left row names it; so no mix of a new left row with what an older one named is ever seen, in
whatever order the parts come.  What leaves the row's bytes unchanged is dropped (KIP-557), and so
are tombstones of rows that never were.

A result has the timestamp that joins in a row would give it: where its left row changed, the latest
of all its rows', else the latest of the first right row that changed and of the later tables' rows.

Store: ``{'d'}{left key}`` → the left row's version, the result's timestamp, and ``{left row}``, for
each right table ``{version of the answer}{right row}{its timestamp}``, and, while answers are
missing, what is waited for and the row that was emitted last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    chosen,
    concat,
    constant,
    equal,
    lengths,
    masked,
    replaced,
    take,
    valid,
)
from fkjoin.codec.messages import LEFT, NO_TIMESTAMP, RESULT, column
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec, bytes_codec
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, entries
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.ordering import looked_up, newest_only
from fkjoin.stages.retention import sweep
from fkjoin.state import Bytes, Store

WAITS = 4
"""The flag of a record that lacks answers, or has one for a left row that is yet to come."""


class Parts(NamedTuple):
    """The left row under each left key, and the right rows that go with it."""

    version: Bytes
    """The left row's version; empty where none ever came."""
    left: Bytes
    since: list[Bytes]
    """Version of the left row since which it has each foreign key; null without one."""
    answered: list[Bytes]
    """Versions of left and right row in each right table's last answer; null where none came."""
    rights: list[Bytes]
    times: list[Ints]
    """Timestamps of the right rows."""

    def complete(self, left_parts: int) -> Bools:
        """Tell where no answer is missing."""
        complete: Bools = lengths(self.version) > 0
        for since, answered in zip(self.since, self.answered, strict=True):
            answered_for = versions.split(answered, left_parts)[0]
            complete = complete & (~valid(since) | equal(since, answered_for))
        return complete

    def ahead(self, left_parts: int) -> list[Bools]:
        """Tell, for each right table, which answers are for a left row that is yet to come.

        The left row that is here names no row of that table, so that it does not wait for the
        answer, nor shows it.  The answer must be kept all the same: it was given once, and the left
        row to come will not ask again.
        """
        all_ahead = []
        for since, answered in zip(self.since, self.answered, strict=True):
            ahead = ~valid(since) & valid(answered)
            unnamed = np.flatnonzero(ahead)
            heads = versions.split(take(answered, unnamed), left_parts)[0]
            ahead[unnamed] = versions.is_newer(heads, take(self.version, unnamed))
            all_ahead.append(ahead)
        return all_ahead

    def named(self) -> list[Bytes]:
        """The right rows that the left rows name."""
        named = zip(self.rights, self.since, strict=True)
        return [masked(row, valid(since)) for row, since in named]

    def matched(self, join: MultiJoin) -> Bools:
        """Tell which make a row of the result, where no answer is missing."""
        matched = valid(self.left)
        for right, row in zip(join.rights, self.named(), strict=True):
            if right.how == "inner":
                matched = matched & valid(row)
        return matched

    def timestamp(self, left: Ints, before: Bools, changed: list[Bools]) -> Ints:
        """Timestamps of results, as joins in a row would give them.

        ``left``: timestamps of left rows that changed; ``before``, ``changed``: which left rows and
        which right rows did.
        """
        # ``before`` becomes: the row of the join before this table's has changed.  Then this join
        # answers again, with the later timestamp of both rows, even if its right row did not
        # change.
        latest = left
        for row, times, now in zip(self.named(), self.times, changed, strict=True):
            latest = np.where(now | (before & valid(row)), np.maximum(latest, times), latest)
            before = before | now
        return latest

    def versions(self, join: MultiJoin) -> Bytes:
        """Versions of results: the left row's, then the right rows'."""
        of_rights = []
        for right, since, answered in zip(join.rights, self.since, self.answered, strict=True):
            own = versions.split(masked(answered, valid(since)), join.left_parts)[1]
            of_rights.append(pc.fill_null(own, pa.scalar(versions.absent(right.parts), own.type)))
        return concat(self.version, *of_rights)


def gather(
    parts: pa.Table,
    store: Store,
    count: Counters,
    join: MultiJoin,
    *,
    now_ms: int,
    retention_ms: int,
    in_order: bool = False,
) -> pa.Table:
    """Turn ``parts`` (``PART``; any order, duplicates allowed) into changes (``RESULT``).

    ``in_order``: see ``newest_only``.
    """
    sweep(store, now_ms)
    if not len(parts):
        return RESULT.empty_table()
    code, keys, names, held = looked_up(parts, store)
    before, emitted_before = known_parts(held, join)
    after, moved, left_ts = _after(
        parts, code, before, held=held, count=count, join=join, in_order=in_order
    )

    taken = np.logical_or.reduce(list(moved.values()))
    had, complete = held.flags & HAS_RESULT > 0, after.complete(join.left_parts)
    matched = complete & after.matched(join)
    # While answers are missing, what was emitted last still stands.
    has = np.where(complete, matched, had)
    rows = _rows(join, keys, after, matched)
    rows_before = _emitted(join, keys, before, emitted_before, had & has)
    among = taken & complete
    emission = EmitDecision.of(had, has, equal(rows, rows_before), count, among=among)

    # A row that waited for answers has changed in several batches, and gets the latest timestamp
    # of them all.  So ts is kept up while it waits.  A part without a timestamp takes nothing away
    # from it.
    changed_rights = [moved[part] for part in range(len(join.rights))]
    latest = after.timestamp(left_ts, moved[LEFT], changed_rights)
    last_ts = np.where(held.exists, held.ts, NO_TIMESTAMP)
    waited = (held.flags & WAITS > 0) | (latest == NO_TIMESTAMP)
    latest = np.where(waited, np.maximum(latest, last_ts), latest)
    ts = np.where(emission.emit | (taken & ~complete), latest, last_ts)
    results = emission.results(keys, rows, after.versions(join), ts)

    # What no left row names is let go, but for answers that came ahead of theirs.
    none = [np.zeros(len(keys), bool)] * len(join.rights)
    ahead = none if in_order else after.ahead(join.left_parts)
    waits = np.logical_or.reduce([~complete, *ahead])
    answers = zip(after.since, ahead, strict=True)
    needed = [~complete | valid(since) | early for since, early in answers]
    body = _encoded(after, needed, waits, masked(rows_before, ~complete))
    ending = Ending(complete & ~valid(after.left), now_ms + retention_ms, in_order)
    flags = np.where(waits, WAITS, 0)
    written = entries(names, ts, after.version, body, ending, has=has, flags=flags, among=taken)
    store.write(*written)
    return results


def _after(
    parts: pa.Table,
    code: Ints,
    before: Parts,
    *,
    held: Records,
    count: Counters,
    join: MultiJoin,
    in_order: bool,
) -> tuple[Parts, dict[int, Bools], Ints]:
    """Take in a batch: the parts after it, the left keys that each kind of part changed.

    Also the timestamps of left rows that changed.
    """
    number, times = column(parts, "number").to_numpy(), column(parts, "ts").to_numpy()
    version, value, since = (column(parts, name) for name in ("version", "value", "since"))
    after = before._replace(
        answered=list(before.answered), rights=list(before.rights), times=list(before.times)
    )
    left_ts = np.full(len(held.ts), NO_TIMESTAMP)
    moved = {part: np.zeros(len(held.ts), bool) for part in range(LEFT, len(join.rights))}
    for part, changed in moved.items():
        own = np.flatnonzero(number == part)
        if not len(own):
            continue
        # Each kind of part has a highwater mark of its own: a left row may come after an answer
        # that was given to a newer one.
        last_seen = before.version if part == LEFT else before.answered[part]
        seen = valid(last_seen) & (lengths(last_seen) > 0)
        highwater = Records(seen, held.flags, held.ts, pc.fill_null(last_seen, b""), held.body)
        order, where, newest = newest_only(
            code[own], take(version, own), highwater, count, in_order=in_order
        ).last()
        position = own[order]
        if part == LEFT:
            began = bytes_codec(len(join.rights)).decode(take(since, position))
            waits = [replaced(old, where, new) for old, new in zip(after.since, began, strict=True)]
            row = replaced(after.left, where, take(value, position))
            after = after._replace(
                version=replaced(after.version, where, newest), left=row, since=waits
            )
            left_ts[where] = times[position]
        else:
            after.answered[part] = replaced(after.answered[part], where, newest)
            after.rights[part] = replaced(after.rights[part], where, take(value, position))
            after.times[part] = after.times[part].copy()
            after.times[part][where] = times[position]
        changed[where] = True
    return after, moved, left_ts


def known_parts(held: Records, join: MultiJoin) -> tuple[Parts, Bytes]:
    """The parts in records; of those that lack answers, also the row that was emitted last."""
    rights = len(join.rights)
    columns = _codec(rights).decode(held.body)
    times = [pc.fill_null(time, NO_TIMESTAMP).to_numpy() for time in columns[2 + 3 * rights :]]
    left, answered, rows = columns[0], columns[1 : 1 + rights], columns[1 + rights : 1 + 2 * rights]
    waits = held.flags & WAITS > 0
    since = []
    for own, waited in zip(answered, columns[1 + 2 * rights : 1 + 3 * rights], strict=True):
        # Where nothing is missing, every answer is for the version that the key is since.
        of_answer = versions.split(own, join.left_parts)[0]
        since.append(pc.if_else(pa.array(waits), waited, of_answer))
    return Parts(held.version, left, since, answered, rows, times), columns[1 + 3 * rights]


def result_rows(keys: Bytes, held: Records, join: MultiJoin) -> tuple[Bytes, Bytes]:
    """The rows of the joined table in records, and their versions; null where there is none."""
    parts, emitted = known_parts(held, join)
    return _emitted(join, keys, parts, emitted, held.flags & HAS_RESULT > 0), parts.versions(join)


def _rows(join: MultiJoin, keys: Bytes, parts: Parts, which: Bools) -> Bytes:
    """The rows of the result that are asked for; null elsewhere."""
    rights = [chosen(row, which) for row in parts.named()]
    rows = join.rows(chosen(keys, which), chosen(parts.left, which), rights)
    places = np.flatnonzero(which)
    return rows if which.all() else replaced(constant(None, len(keys)), places, rows)


def _emitted(join: MultiJoin, keys: Bytes, parts: Parts, emitted: Bytes, which: Bools) -> Bytes:
    """The rows that were emitted last: ``emitted`` while answers are missing, else of the parts."""
    return pc.coalesce(emitted, _rows(join, keys, parts, which & ~valid(emitted)))


def _encoded(parts: Parts, needed: list[Bools], waits: Bools, emitted: Bytes) -> Bytes:
    """Bodies of records, without answers that are not ``needed`` any more."""
    answered = [masked(version, keep) for version, keep in zip(parts.answered, needed, strict=True)]
    rows = [masked(row, keep) for row, keep in zip(parts.rights, needed, strict=True)]
    since = [masked(version, waits) for version in parts.since]
    times = [pa.array(time) for time in parts.times]
    columns = [parts.left, *answered, *rows, *since, emitted, *times]
    return _codec(len(rows)).encode(columns, len(parts.left))


def _codec(rights: int) -> RowCodec:
    times = [(f"ts{number}", pa.int64()) for number in range(rights)]
    return RowCodec(pa.schema([*bytes_codec(2 + 3 * rights).schema, *times]))
