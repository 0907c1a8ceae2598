"""Order of the records of a key, whatever their partitions, and however they come in batches."""

from __future__ import annotations

import numpy as np

from fkjoin.codec.arrays import Bytes, Ints, buffers, codes, slices, stack, take, window
from fkjoin.codec.versions import HEAD_BYTES, PLACE, PLACE_BYTES, PLACED, Words, numbers_in


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
    single = (first & PLACED > 0) & (sizes == HEAD_BYTES + 8 * numbers_in(first))
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
    # all of a version before its ``PLACE``: it tells topics apart.
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
    starts = (bounds[1:][rows] - PLACE_BYTES)[order]
    written[starts[:, None] + np.arange(8)] = time.astype(">u8").view(np.uint8).reshape(-1, 8)
    return slices(written, bounds[:-1], sizes)


def _falling_back(position: Words) -> Ints:
    """Find records that are older by timestamp than some before them in partitions of their number.

    Others are in order whatever their key is; of most topics there are none, and little is left to
    sort by key.
    """
    order = np.lexsort((position[:, 2], position[:, 1]))
    time, partition = position[order, 0], position[order, 1]
    distinct, rank = np.unique(time, return_inverse=True)
    above = np.cumsum(np.append(False, partition[1:] != partition[:-1])) * len(distinct)
    return order[rank + above < np.maximum.accumulate(rank + above)]


def _places(version: Bytes) -> Words:
    """The last three numbers of each version, as ``encode`` writes them.

    Where a version has fewer, they mean nothing.
    """
    data, bounds = buffers(version)
    starts = np.maximum(bounds[1:] - PLACE_BYTES, 0)
    raw = np.ascontiguousarray(window(data, starts, PLACE_BYTES))
    return raw.view(">u8").reshape(len(starts), len(PLACE)).astype(np.uint64)


def _leads(version: Bytes) -> Bytes:
    """Cut the last three numbers off each version; empty where nothing is left."""
    data, bounds = buffers(version)
    return slices(data, bounds[:-1], np.maximum(np.diff(bounds) - PLACE_BYTES, 0))
