"""Buckets, over which the keys of an operator's state are spread for good.

A key's bucket depends on its bytes and on the number of buckets alone.  Each bucket goes by an
id, whose Spark hash is congruent to the bucket's number.  So Spark's hash partitioning puts the
same number of buckets on each of P partitions, for every P that divides the number of buckets.
The id 0 is in every such set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from fkjoin.codec.arrays import Bytes, Ints, as_bytes
from fkjoin.codec.messages import column, pack
from fkjoin.state import items

ENVELOPE = "bucket int, payload binary, counter string, count bigint"
"""The columns of envelopes: packed messages to a bucket, or a counter and its count."""

BATCH_MS = "batch_ms"
"""A column that comes with the envelopes: the batch's time, ms since the epoch.

Spark logs it with the batch's offsets.  With a clock of the worker's, a batch that is repeated
would forget more than it did.
"""

ENTRY = "entry"
"""A column of envelopes that come to an operator of several stages: the stage that they are for."""

TICK = "tick"
"""A counter that is none: the end of an interval.  A bucket of ``pace`` sends what waits then."""

PAYLOAD_BYTES = 3 << 20
"""Packed messages are cut into payloads of about this size, before they are compressed."""

FRAME_BYTES = 1 << 20
"""Payloads travel together until they have about this size."""


def counted_name(name: str, counter: str) -> str:
    """The counter of a stage that is counted under a name within an operator."""
    return f"{name}/{counter}"


def spark_hash(value: int) -> int:
    """Spark's hash of an int column (Murmur3, seed 42), as a signed 32-bit number."""
    k = value & 0xFFFFFFFF
    k = k * 0xCC9E2D51 & 0xFFFFFFFF
    k = (k << 15 | k >> 17) & 0xFFFFFFFF
    k = k * 0x1B873593 & 0xFFFFFFFF
    h = 42 ^ k
    h = (h << 13 | h >> 19) & 0xFFFFFFFF
    h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    h ^= h >> 16
    h = h * 0x85EBCA6B & 0xFFFFFFFF
    h ^= h >> 13
    h = h * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h


@cache
def bucket_ids(buckets: int) -> tuple[int, ...]:
    """The id of each bucket, by its number."""
    ids: dict[int, int] = {}
    candidate = 0
    while len(ids) < buckets:
        ids.setdefault(spark_hash(candidate) % buckets, candidate)
        candidate += 1
    return tuple(ids[number] for number in range(buckets))


def buckets_of(keys: Bytes, buckets: int) -> Ints:
    """The bucket number of each key (no nulls)."""
    hashes = map(xxhash.xxh3_64_intdigest, items(keys))
    return (np.fromiter(hashes, np.uint64, len(keys)) % np.uint64(buckets)).astype(np.int64)


def places_of(foreign_keys: Bytes, keys: Bytes, buckets: int, spread: int) -> Ints:
    """The bucket number of each left row's subscription.

    It is one of the ``spread`` buckets that its foreign key has.  These follow each other, so they
    differ as long as ``spread`` is at most ``buckets``.  The left key alone chooses among them: a
    row that leaves a foreign key, or comes back, goes where it was before.
    """
    homes = buckets_of(foreign_keys, buckets)
    return homes if spread == 1 else (homes + buckets_of(keys, spread)) % buckets


Payload = tuple[int, bytes]
"""The id of a bucket, and packed messages for it."""


def packed_by_bucket(messages: pa.Table, by: str, buckets: int) -> Iterator[Payload]:
    """The messages as payloads of one bucket each, packed one after the other.

    ``by`` names the column that decides.
    """
    return packed_into(messages, buckets_of(as_bytes(column(messages, by)), buckets), buckets)


def packed_into(messages: pa.Table, numbers: Ints, buckets: int) -> Iterator[Payload]:
    """The messages as payloads of one bucket each; ``numbers``: each message's bucket number."""
    if not len(messages):
        return
    ids = bucket_ids(buckets)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(buckets + 1))
    step = max(1, int(len(messages) * PAYLOAD_BYTES // max(1, messages.nbytes)))
    for number in range(buckets):
        for start in range(int(bounds[number]), int(bounds[number + 1]), step):
            some = order[start : min(start + step, int(bounds[number + 1]))]
            yield ids[number], pack(messages.take(pa.array(some)))


_Sent = TypeVar("_Sent", bound=tuple[Any, ...])


def framed(sent: Iterable[_Sent]) -> Iterator[list[_Sent]]:
    """Tuples whose second items are payloads, or None, in lists of about ``FRAME_BYTES``.

    All copies that are made of what travels at once should not need new memory each time.  A
    little is worth no frame of its own.
    """
    frame: list[_Sent] = []
    size = 0
    for envelope in sent:
        frame.append(envelope)
        size += len(envelope[1] or b"")
        if size >= FRAME_BYTES:
            yield frame
            frame, size = [], 0
    if frame:
        yield frame
