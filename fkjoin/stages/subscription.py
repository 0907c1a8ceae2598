"""subscription, by foreign key: joins left rows with right rows that they subscribe to (KIP-213).

See docs/semantics.md, "Subscription".

A subscribe stores itself and is answered with the right row or with "none"; a right change answers
every subscriber, in byte order of the left key, page by page; one that leaves the row's bytes
unchanged answers none, and is counted. A subscription exists without a right row.

Store: ``{'r'}{foreign key}`` → the right row; ``{'s'}{CombinedKey}`` → a subscriber's version,
timestamp and left row.

*Law*: what is answered is what one-by-one processing would answer last.  Events under a foreign key
have an order (``BatchOrder``); each version of a subscriber holds from its own rank to its next
one's, and is answered once when it begins, with the right row of that moment, and once more if
right changes fall into its time, with the last of them.

*The order of a batch*: right changes and subscribes, and how long a subscriber's version holds.
``subscription`` sees a batch as a whole, and has to answer as if its events had come one by one.

*Ranks.*  Each right change and each subscribe has a rank, its place in one order of all events;
right changes of a foreign key ascend, and so do versions of a subscriber.  Where both sides'
versions come from one log, versions make the order.  Elsewhere nothing says which side's change
came first, and any order will do if it is the same for all keys and attempts: right changes count
as earlier, so that a subscribe is answered once, with the newest right row.

*Windows.*  A subscriber's version holds from its own rank to the rank of the subscriber's next
version; the last one to ``end``; what the store has of the subscriber from ``BEFORE`` on.  Ranks
are open at both ends: no right change has a subscribe's rank. Of the right changes in a window the
last one decides.  One after the window must not be answered under this version: the left row has
gone to another foreign key by then, or is another row, and a result would pair what never stood
side by side.

*Places.*  All windows are looked up by one binary search.  The place of a right change is
``number of its foreign key * width + rank``; places ascend, as right changes are sorted by key and
version.  ``width`` exceeds all ranks, ``end`` among them, so that a window that ends with the batch
stays below the next key's places, and one that begins at ``BEFORE`` above the places of the key
before. With a smaller width the search would find a change of another key, and answer with another
key's right row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, versions
from fkjoin.codec.arrays import Ints, changes_from_previous, concat, stack, take, untagged, valid
from fkjoin.codec.messages import ANSWER, NO_TIMESTAMP, table
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.retention import GONE
from fkjoin.stages.sides import (
    Rights,
    Subscribes,
    read_sides,
    subscribers,
    sweep_sides,
    write_sides,
)
from fkjoin.state import Bytes, Store

BEFORE = -1
"""The rank of what was there before the batch."""

NONE = -1
"""The number of no right change."""


class BatchOrder:
    """The ranks of a batch's right changes and subscribes.

    ``changed``: the foreign keys' numbers of the right changes, sorted by them and by version;
    ``rights``, ``subscribes``: the versions of both.  ``shared_log``: these come from one log.
    """

    def __init__(
        self, changed: Ints, rights: Bytes, subscribes: Bytes, *, shared_log: bool
    ) -> None:
        self.end = len(rights) + len(subscribes)
        """A rank above all others."""
        # Without one log, a rank is a position: all right changes first, then all subscribes.
        rank = np.arange(self.end)
        if shared_log:
            # ``rank`` is the least significant column: of equal versions a right change is first.
            columns = versions.sort_columns(stack(rights, subscribes))
            by_version = np.lexsort((rank, *columns))
            rank = np.empty_like(rank)
            rank[by_version] = np.arange(self.end)
        self.subscribes: Ints = rank[len(rights) :]
        """The ranks of subscribes."""
        self._width = self.end + 1
        self._places = changed * self._width + rank[: len(rights)]

    def last_change(self, code: Ints, after: Ints | int, before: Ints | int) -> Ints:
        """The number of the last right change of each foreign key whose rank lies between two.

        ``code``: the foreign keys; ``NONE`` where there is no such change.
        """
        if not len(self._places):
            return np.full(len(code), NONE)
        # ``searchsorted`` finds the first place at or above ``before``: the one below it is the
        # last before, of this key or an earlier one.  It counts only if it lies above ``after``.
        change = np.searchsorted(self._places, code * self._width + before) - 1
        inside = (change >= 0) & (self._places[change] > code * self._width + after)
        return np.where(inside, change, NONE)


def subscription(
    subscriptions: pa.Table,
    rights: pa.Table,
    store: Store,
    count: Counters,
    *,
    now_ms: int,
    retention_ms: int,
    shared_log: bool = False,
    in_order: bool = False,
    rights_in_order: bool | Sequence[bool] = False,
    right_parts: int | Sequence[int] = 1,
    every: bool = False,
) -> Iterator[pa.Table]:
    """Answer ``subscriptions`` (``SUBSCRIPTION``) and ``rights`` (``CHANGE``) by ``ANSWER`` tables.

    The store is written when the iterator is exhausted.  ``shared_log``: both sides' versions come
    from one log and order their changes; otherwise a batch's right changes count as earlier than
    its left ones.  ``in_order``, ``rights_in_order``: of subscriptions and of right changes, see
    ``newest_only``. ``right_parts``: of how many parts the right table's versions are made; of
    several right tables, whose numbers all foreign keys begin with, of how many each, and so
    ``rights_in_order``.  ``every``: answer subscribers also when a batch has left the right row's
    bytes unchanged; what they were answered last is still right then (KIP-557)::

        each subscribe: the right row as it is when the subscribe's version begins
        each subscribe into whose window right changes fall: once more, the last of them
        each stored subscriber of a right row that changes: the last change before its next version

    """
    sweep_sides(store, now_ms, retention_ms)
    count[counters.RIGHT_IN] += len(rights)
    if not len(subscriptions) and not len(rights):
        return
    keys, right, left = read_sides(
        subscriptions,
        rights,
        store,
        count,
        parts=right_parts,
        in_order=in_order,
        rights_in_order=rights_in_order,
        unsubscribed_too=False,
    )
    order = BatchOrder(
        right.changed, right.version.slice(right.stored), left.version, shared_log=shared_log
    )

    yield _answer_on_subscribe(right, left, order, count)
    yield _answer_later(right, left, order, count)
    # Subscribers of right rows that are unchanged are not answered; these rows are counted.
    changed = np.unique(right.changed)
    if not every:
        differing = np.unique(right.changed[right.differs])
        count[counters.IDEMPOTENT] += len(changed) - len(differing)
        changed = differing
    yield from _fan_out(changed, keys, right, left=left, order=order, store=store, count=count)
    # Not before: the fan-out reads subscribers as they are before the batch.
    write_sides(
        store, keys, right, left=left, now_ms=now_ms, retention_ms=retention_ms, in_order=in_order
    )


def _answer_on_subscribe(
    right: Rights, left: Subscribes, order: BatchOrder, count: Counters
) -> pa.Table:
    """Answers to all subscribes, with the right row as it is when they begin."""
    wanted = np.flatnonzero(left.wanted)
    code = left.code[wanted]
    change = order.last_change(code, BEFORE, order.subscribes[wanted])
    # Without a change before it, the row that was stored: those stand first, by foreign key.
    row = np.where(change == NONE, code, change + right.stored)
    ts = np.maximum(left.ts[wanted], np.where(valid(right.value)[row], right.ts[row], NO_TIMESTAMP))
    key, version, value = (take(part, wanted) for part in (left.key, left.version, left.value))
    return _answers(count, key, version, value=value, right=right, row=row, ts=ts)


def _answer_later(right: Rights, left: Subscribes, order: BatchOrder, count: Counters) -> pa.Table:
    """Second answers to subscribes into whose window right changes fall, with the last of them.

    A fan-out cannot give them: it reads subscribers from the store, where the batch's are not yet.
    """
    # Subscribes of one combined key stand side by side, by version: a window ends where the next
    # one begins, and the last one with the batch.
    until = np.full(len(left.code), order.end)
    following = np.flatnonzero(~changes_from_previous(left.combined))
    until[following - 1] = order.subscribes[following]
    wanted = np.flatnonzero(left.wanted)
    change = order.last_change(left.code[wanted], order.subscribes[wanted], until[wanted])
    hit = np.flatnonzero(change != NONE)
    row, position = change[hit] + right.stored, wanted[hit]
    key, version, value = (take(part, position) for part in (left.key, left.version, left.value))
    return _answers(count, key, version, value=value, right=right, row=row, ts=right.since[row])


def _fan_out(
    changed: Ints,
    keys: Bytes,
    right: Rights,
    *,
    left: Subscribes,
    order: BatchOrder,
    store: Store,
    count: Counters,
) -> Iterator[pa.Table]:
    """Answers to the stored subscribers of ``changed`` foreign keys, a page of the store at a time.

    A subscriber is answered with the last right change before the batch has a version of its own.
    It is not answered at all where that version goes ``back``: its source starts over, and what is
    answered under the stored version would count as newer than all that the source says from then
    on.
    """
    # A window that ends with ``BEFORE`` has no right change in it: so one that goes back gets none.
    begins = order.subscribes[np.flatnonzero(changes_from_previous(left.combined))]
    until_of_batch = np.where(left.back, BEFORE, begins)
    fan_out = np.zeros(len(keys), np.int64)
    for numbers, page in subscribers(store, take(keys, changed)):
        held = records.decode(page.values)
        live = np.flatnonzero(held.flags & GONE == 0)
        names, code = take(page.keys, live), changed[numbers[live]]
        until = np.full(len(live), order.end)
        if len(left.names):
            batch_number = pc.index_in(names, value_set=left.names)
            until = np.where(
                valid(batch_number), until_of_batch[batch_number.fill_null(0).to_numpy()], until
            )
        change = order.last_change(code, BEFORE, until)
        hit = np.flatnonzero(change != NONE)
        row, position = change[hit] + right.stored, live[hit]
        fan_out += np.bincount(code[hit], minlength=len(keys))
        _, left_keys = combined_key.decode(untagged(take(names, hit)))
        version = take(held.version, position)
        value = take(held.body, position)
        ts = right.since[row]
        yield _answers(count, left_keys, version, value=value, right=right, row=row, ts=ts)
    if len(changed):
        hottest = int(fan_out.argmax())
        count[counters.FAN_OUT] = most = int(fan_out[hottest])
        if most >= counters.HOT:
            count[counters.HOT_KEY + keys[hottest].as_py().hex()] = most


def _answers(
    count: Counters, key: Bytes, version: Bytes, *, value: Bytes, right: Rights, row: Ints, ts: Ints
) -> pa.Table:
    """Answers (``ANSWER``) to subscribers, each with a ``row`` of the right ones."""
    count[counters.ANSWERS] += len(key)
    both = concat(version, take(right.version, row))
    return table(ANSWER, key, both, value, take(right.value, row), ts)
