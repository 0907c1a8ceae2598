"""The choice of a batch's messages that count, and their order: by versions, never by arrival.

*Law*: of a key's changes with one version the one with the greatest content counts, whatever the
order and the batches in which they come; a row that is gone is less than all others.  Contents are
compared by their hashes, so that a stage need not keep them.  Where the greater one comes in a
later batch, its version gets a tie-break, and so is newer in all later stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import (
    Bools,
    Ints,
    buffers,
    changes_from_previous,
    chosen,
    codes,
    equal,
    last_of_run,
    prefixed,
    replaced,
    slices,
    stack,
    take,
    window,
)
from fkjoin.codec.messages import column
from fkjoin.stages import counters
from fkjoin.state import Bytes, Store

Contents = Callable[[], tuple[Bytes, Bytes]]
"""Function that returns the contents of messages, and those held for each code; null is gone."""


class Newest(NamedTuple):
    """Messages that count, sorted by code and version: their positions, codes and versions."""

    order: Ints
    code: Ints
    version: Bytes

    def last(self) -> Newest:
        """The last message of each code."""
        last = np.flatnonzero(last_of_run(self.code))
        return Newest(self.order[last], self.code[last], take(self.version, last))


def looked_up(messages: pa.Table, store: Store) -> tuple[Ints, Bytes, Bytes, records.Records]:
    """The number of each message's key; the keys, and their records' names and records."""
    code, keys = codes(column(messages, "key"))
    names = prefixed(tags.ROW, keys)
    return code, keys, names, records.decode(store.get_many(names))


def newest_only(
    code: Ints,
    version: Bytes,
    held: records.Records,
    count: counters.Counters,
    *,
    or_equal: bool = False,
    as_read: bool = False,
    in_order: bool | Bools = False,
    contents: Contents | None = None,
) -> Newest:
    """Choose the messages newer than what is ``held`` for their code, sorted by code and version.

    Of messages with the same code, version and content the first one counts; what does not count
    is counted as stale.  ``or_equal``: they also count if they are as new as what is held.  What
    comes ``in_order`` (all of it, or of which codes) is newer than what is held, whatever its
    version: the stage before has let it through, and stages must not disagree.  Changes ``as_read``
    may come from a source: those that start over from another one are counted, and records of a
    topic get versions that make one order of them.  ``contents``: what ties are broken by, where
    versions have tie-breaks.
    """
    if as_read:
        version = in_one_order(code, version, held.version)
    order = by_code_and_version(code, version)
    code, version = code[order], take(version, order)
    fresh = (~held.exists | in_order)[code]
    known = np.flatnonzero(~fresh)
    arriving, before = take(version, known), take(held.version, code[known])
    newer, restarts = versions.compare(arriving, before)
    if or_equal:
        newer |= equal(arriving, before)
    fresh[known] = newer
    if as_read:
        count[counters.RESTARTS] += int(restarts.sum())
    # The sort is stable: of messages with equal code and version the first that came is first.
    repeated = ~changes_from_previous(code)
    if repeated.any():
        repeated[1:] &= equal(version.slice(1), version.slice(0, max(0, len(version) - 1)))
    counts = fresh & ~repeated
    if contents is not None:
        messages = _Sorted(order, code, version, fresh, repeated)
        counts, version = _without_ties(messages, held, contents, count)
    keep = np.flatnonzero(counts)
    count[counters.STALE] += len(order) - len(keep)
    return Newest(order[keep], code[keep], take(version, keep))


def newest_changes(
    changes: pa.Table,
    code: Ints,
    held: records.Records,
    count: counters.Counters,
    contents: Contents,
    *,
    in_order: bool | Bools,
) -> Newest:
    """Choose ``changes`` as they were read, by ``newest_only``."""
    return newest_only(
        code,
        column(changes, "version"),
        held,
        count,
        as_read=True,
        in_order=in_order,
        contents=contents,
    )


def newest_rows(
    rows: pa.Table,
    code: Ints,
    held: records.Records,
    count: counters.Counters,
    row: Bytes,
    *,
    in_order: bool | Bools,
) -> Newest:
    """Choose ``rows`` as they were read, by ``newest_only``.

    The rows' values break ties, and each ``row`` that is held has one.
    """

    def contents() -> tuple[Bytes, Bytes]:
        return column(rows, "value"), row

    return newest_changes(rows, code, held, count, contents, in_order=in_order)


class _Sorted(NamedTuple):
    """Messages, sorted by code and version."""

    order: Ints
    code: Ints
    version: Bytes
    fresh: Bools
    """True for a message that is newer than what is held."""
    repeated: Bools
    """True for one with the code and version of the message before."""

    def beside(self, held: records.Records) -> Bools:
        """Tell which messages have the version of what is held, but for its tie-break."""
        rows = np.flatnonzero(~self.fresh)
        arriving, before = take(self.version, rows), take(held.version, self.code[rows])
        both = versions.may_tie(arriving) & versions.may_tie(before)
        rows, arriving, before = rows[both], chosen(arriving, both), chosen(before, both)
        beside = np.zeros(len(self.code), bool)
        beside[rows] = equal(versions.split_ties(arriving)[0], versions.split_ties(before)[0])
        return beside


def _without_ties(
    messages: _Sorted, held: records.Records, contents: Contents, count: counters.Counters
) -> tuple[Bools, Bytes]:
    """Tell which messages count; those that win against what is held get a newer version::

    a run is the messages with one code and version, and what is held beside it
    of each run the one with the greatest tie-break wins, and the others do not count
    if the winner beats what is held, it counts, and its version gets its tie-break

    """
    order, code, version, fresh, repeated = messages
    counts = fresh & ~repeated
    beside = messages.beside(held)
    # Only runs with two members are looked at: a message before a repeated one is in its run.
    tied = beside | repeated
    tied[:-1] |= repeated[1:]
    rows = np.flatnonzero(tied)
    rows = rows[versions.may_tie(take(version, rows))]
    if not len(rows):
        return counts, version
    came, known = contents()
    run = np.cumsum(~repeated)[rows]
    beside = beside[rows]
    tie, held_tie = versions.of_contents(take(came, order[rows])), np.zeros(len(rows), np.uint64)
    # What is held has a tie-break if it has won a tie before; only else its content is hashed.
    codes = code[rows[beside]]
    _, broken = versions.split_ties(take(held.version, codes))
    held_tie[beside] = np.where(broken > 0, broken, versions.of_contents(take(known, codes)))
    # Each different content of a run but one is a tie: equal contents are not a tie.
    came_in, stored = np.stack([run, tie]), np.stack([run, held_tie])[:, beside]
    contenders = np.concatenate([came_in, stored], axis=1)
    count[counters.TIES] += np.unique(contenders, axis=1).shape[1] - len(np.unique(run))

    # Of a run's equal contents the first one stays, as of all repeated messages.
    best = np.lexsort((-rows, tie, run))
    best = best[last_of_run(run[best].astype(np.int64))]
    winners, beside, tie = rows[best], beside[best], tie[best]
    counts[rows] = False
    counts[winners] = np.where(beside, tie > held_tie[best], fresh[winners])
    raised = beside & counts[winners]
    stems, _ = versions.split_ties(take(version, winners[raised]))
    return counts, replaced(version, winners[raised], versions.with_ties(stems, tie[raised]))


def by_code_and_version(code: Ints, version: Bytes) -> Ints:
    """The order of the messages by code and version."""
    # Versions are looked at only where a code comes twice, which is not often.  Those messages take
    # the same slots again: a code's slots stand side by side.
    order = np.argsort(code, kind="stable")
    alone = changes_from_previous(code[order])
    alone[:-1] &= alone[1:]
    slots = np.flatnonzero(~alone)
    messages = order[slots]
    columns = versions.sort_columns(take(version, messages))
    order[slots] = messages[np.lexsort((*columns, code[messages]))]
    return order


def in_one_order(code: Ints, version: Bytes, known: Bytes) -> Bytes:
    """Versions of records as they were read, with timestamps that make one order for each key.

    A record counts as no older than the records of its key before it in its partition: it gets the
    greatest of their timestamps and its own.  Otherwise "the offset decides in a partition, the
    timestamp across partitions" can go in a circle, and what is newest depends on how records are
    cut into batches.

    ``code`` numbers the keys; ``known`` has the version held for each code, empty for none.  What
    is held is enough to know of earlier batches: a partition other than the held one has shown no
    timestamp above it, or it would be held.
    """
    data, bounds = buffers(version)
    first, sizes = window(data, bounds[:-1], 1)[:, 0], np.diff(bounds)
    single = (first & versions.PLACED > 0) & (
        sizes == versions.HEAD_BYTES + 8 * versions.numbers_in(first)
    )
    if not single.any():
        return version
    position, position_known = _places(version), _places(known)
    # A timestamp can only rise if it is below the held one, or below one before it in this batch.
    # Mostly there are none: then nothing is sorted by key.
    older = single & (position[:, 0] < position_known[code, 0])
    if (np.bincount(code, minlength=len(known)) > 1).any():
        fallen = np.zeros(len(known), bool)
        fallen[code[_falling_back(position)]] = True
        older |= single & fallen[code]
    rows = np.flatnonzero(older)
    if not len(rows):
        return version
    position = position[rows]
    number, _ = codes(stack(_leads(take(version, rows)), _leads(known)))
    lead, lead_known = number[: len(rows)], number[len(rows) :]
    key = code[rows]
    # A run is the records of one key in one partition of one topic, by their offsets.  ``lead`` is
    # all of a version before its ``versions.PLACE``: it tells topics apart.
    order = np.lexsort((position[:, 2], position[:, 1], lead, key))
    key, lead, position = key[order], lead[order], position[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = (
        (key[1:] != key[:-1]) | (lead[1:] != lead[:-1]) | (position[1:, 1] != position[:-1, 1])
    )
    time = position[:, 0].copy()
    goes_on = begins & (lead_known[key] == lead) & (position_known[key, 1] == position[:, 1])
    time[goes_on] = np.maximum(time[goes_on], position_known[key[goes_on], 0])
    distinct, rank = np.unique(time, return_inverse=True)
    # A rank plus a multiple of their number per run never falls back at a new run: so one pass
    # finds the maxima of all runs.
    above = (np.cumsum(begins) - 1) * len(distinct)
    time = distinct[np.maximum.accumulate(rank + above) - above]
    if (time == position[:, 0]).all():
        return version
    written = data.copy()
    starts = (bounds[1:][rows] - versions.PLACE_BYTES)[order]
    written[starts[:, None] + np.arange(8)] = time.astype(">u8").view(np.uint8).reshape(-1, 8)
    return slices(written, bounds[:-1], sizes)


def _falling_back(position: versions.Words) -> Ints:
    """Find records that are older by timestamp than some before them in partitions of their number.

    Others are in order whatever their key is; of most topics there are none, and little is left to
    sort by key.
    """
    order = np.lexsort((position[:, 2], position[:, 1]))
    time, partition = position[order, 0], position[order, 1]
    distinct, rank = np.unique(time, return_inverse=True)
    above = np.cumsum(np.append(False, partition[1:] != partition[:-1])) * len(distinct)
    return order[rank + above < np.maximum.accumulate(rank + above)]


def _places(version: Bytes) -> versions.Words:
    """The last three numbers of each version, as ``encode`` writes them.

    Where a version has fewer, they mean nothing.
    """
    data, bounds = buffers(version)
    starts = np.maximum(bounds[1:] - versions.PLACE_BYTES, 0)
    raw = np.ascontiguousarray(window(data, starts, versions.PLACE_BYTES))
    return raw.view(">u8").reshape(len(starts), len(versions.PLACE)).astype(np.uint64)


def _leads(version: Bytes) -> Bytes:
    """Cut the last three numbers off each version; empty where nothing is left."""
    data, bounds = buffers(version)
    return slices(data, bounds[:-1], np.maximum(np.diff(bounds) - versions.PLACE_BYTES, 0))
