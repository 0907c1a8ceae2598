"""What must hold of the stores after every batch, and checks of it: for ``validate=True``, tests and ``fkjoin state verify``.

* A mark never goes back: no record is replaced by one with an older version, and only records of rows that are gone (and
  subscriptions that ended) are deleted.  What comes to a store in order needs no marks.
* There is one subscription per live left row with a foreign key, and no other (in a fused join, after every batch).
* A bucket's log and its index hold the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from fkjoin.codec import combined_key, records, versions
from fkjoin.codec.arrays import Bools, Bytes, equal, take, untagged, valid
from fkjoin.codec.messages import SUMS, column, table
from fkjoin.errors import InvariantError
from fkjoin.stages.rekey import HAS_FOREIGN_KEY
from fkjoin.stages.retention import GONE
from fkjoin.stages.scatter import scattered, tagged
from fkjoin.state import KeyRange, Page, Store, prefix_range

_MODULUS = 1 << 63


class GuardedStore:
    """A store that refuses writes that would let a mark go back."""

    def __init__(self, store: Store, name: str, tags: bytes = b"drs") -> None:
        """``name``: of the store and its bucket, for the error; ``tags``: what the keys of its marks begin with."""
        self._store, self._name, self._tags = store, name, np.frombuffer(tags, np.uint8)

    def get_many(self, keys: Bytes) -> Bytes:
        return self._store.get_many(keys)

    def scan(self, ranges: Sequence[KeyRange], limit: int | None = None, each: int | None = None) -> Iterator[Page]:
        return self._store.scan(ranges, limit, each)

    def write(self, keys: Bytes, values: Bytes) -> None:
        """As ``Store.write``; raises ``InvariantError``."""
        tags = np.array([key[0] for key in keys.to_pylist()], np.uint8)
        of_records = np.flatnonzero(np.isin(tags, self._tags))
        names, tags = take(keys, of_records), tags[of_records]
        old, new = records.decode(self._store.get_many(names)), records.decode(take(values, of_records))
        forward = versions.is_newer(new.version, old.version) | equal(new.version, old.version)
        may_end = (old.flags & GONE > 0) | (tags == ord("s"))
        wrong = np.flatnonzero(old.found & ~np.where(new.found, forward, may_end))
        if len(wrong):
            place = int(wrong[0])
            to = versions.decode(new.version[place].as_py()) if new.found[place] else "nothing"
            raise InvariantError(
                f"store {self._name}: the record {names[place].as_py()!r} would go back from version "
                f"{versions.decode(old.version[place].as_py())} to {to}"
            )
        self._store.write(keys, values)


class Sum(NamedTuple):
    """Subscriptions, summed up so that the order in which they come does not matter."""

    rows: int = 0
    hashes: int = 0

    def plus(self, combined: Bytes) -> Sum:
        """With these combined keys as well."""
        more = sum(map(xxhash.xxh3_64_intdigest, combined.to_pylist()))
        return Sum(self.rows + len(combined), (self.hashes + more) % _MODULUS)

    def merged(self, other: Sum) -> Sum:
        return Sum(self.rows + other.rows, (self.hashes + other.hashes) % _MODULUS)


def expected_subscriptions(store: Store, rights: int = 0) -> Iterator[Bytes]:
    """The combined keys that live left rows with a foreign key must be subscribed under.

    ``store``: rekey's; or with ``rights``, scatter's of so many right tables.
    """
    for page in store.scan([prefix_range(b"d")]):
        held, keys = records.decode(page.values), untagged(page.keys)
        if not rights:
            live = np.flatnonzero((held.flags & GONE == 0) & (held.flags & HAS_FOREIGN_KEY > 0))
            yield combined_key.encode(take(held.body, live), take(keys, live))
        for right, foreign_key in enumerate(scattered(held.body, rights) if rights else ()):
            there = pa.array(valid(foreign_key))
            yield combined_key.encode(foreign_key.filter(there), tagged(right, keys.filter(there)))


def live_subscriptions(store: Store) -> Iterator[Bytes]:
    """The combined keys of a subscription store's subscribers."""
    for page in store.scan([prefix_range(b"s")]):
        live: Bools = records.decode(page.values).flags & GONE == 0
        keys = page.keys.filter(pa.array(live))
        yield untagged(keys)


def sums_message(sender: int, found: Sum) -> pa.Table:
    """What a rekey bucket says to a subscription bucket (``SUMS``)."""
    return table(SUMS, np.array([sender]), np.array([found.rows]), np.array([found.hashes]))


def check_subscriptions(store: Store, sums: pa.Table, senders: int, name: str) -> None:
    """Compare a subscription store with what all ``senders`` rekey buckets say; what only some said is not compared."""
    if len(set(column(sums, "sender").to_pylist())) < senders:
        return
    found = functools.reduce(Sum.plus, live_subscriptions(store), Sum())
    told = {row["sender"]: Sum(row["rows"], row["hashes"]) for row in sums.to_pylist()}
    wanted = functools.reduce(Sum.merged, told.values())
    if found != wanted:
        which = "other ones" if found.rows == wanted.rows else f"{found.rows}"
        raise InvariantError(
            f"store {name}: {wanted.rows} live left rows have their foreign key here, but there are {which} subscriptions; "
            "fkjoin state verify CHECKPOINT names the keys"
        )
