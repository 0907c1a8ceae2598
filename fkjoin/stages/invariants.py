"""Invariants of the stores, for ``spark.fkjoin.validate``, tests and ``fkjoin state verify``.

* A highwater mark never goes back: no record is replaced by one with an older version, and only
  tombstone markers (and subscriptions that ended) are deleted.  What comes to a store in order
  needs no tombstone markers.
* There is one subscription per live left row with a foreign key, and no other (in a fused join,
  after every batch).
* A bucket's log and its index hold the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from fkjoin.codec import combined_key, records, tags, versions
from fkjoin.codec.arrays import Bools, Bytes, equal, take, untagged, valid
from fkjoin.codec.messages import SUMS, column, table
from fkjoin.errors import InvariantError
from fkjoin.stages.rekey import HAS_FOREIGN_KEY
from fkjoin.stages.retention import GONE
from fkjoin.stages.scatter import scattered, tagged
from fkjoin.state import Store, prefix_range

_MODULUS = 1 << 63


class GuardedStore:
    """A store that refuses writes that would let a highwater mark go back."""

    def __init__(
        self, store: Store, name: str, marked: bytes = tags.ROW + tags.RIGHT + tags.SUBSCRIBER
    ) -> None:
        """Guard a store.

        ``name``: of the store and its bucket, for the error; ``marked``: the tags of its records
        that have a highwater mark.
        """
        self._store, self._name, self._marked = store, name, np.frombuffer(marked, np.uint8)
        self.get_many, self.scan = store.get_many, store.scan

    def write(self, keys: Bytes, values: Bytes) -> None:
        """Write as ``Store.write`` does; raises ``InvariantError``."""
        tag = np.array([key[0] for key in keys.to_pylist()], np.uint8)
        marked = np.flatnonzero(np.isin(tag, self._marked))
        names, tag = take(keys, marked), tag[marked]
        old, new = records.decode(self._store.get_many(names)), records.decode(take(values, marked))
        forward = versions.is_newer(new.version, old.version) | equal(new.version, old.version)
        may_end = (old.flags & GONE > 0) | (tag == tags.SUBSCRIBER[0])
        wrong = np.flatnonzero(old.exists & ~np.where(new.exists, forward, may_end))
        if len(wrong):
            row = int(wrong[0])
            before = versions.decode(old.version[row].as_py())
            to = versions.decode(new.version[row].as_py()) if new.exists[row] else "nothing"
            raise InvariantError(
                f"store {self._name}: the record {names[row].as_py()!r} would go back "
                f"from version {before} to {to}"
            )
        self._store.write(keys, values)


class Sum(NamedTuple):
    """Subscriptions, summed up so that the order in which they come does not matter."""

    rows: int = 0
    hashes: int = 0

    def plus(self, combined: Bytes) -> Sum:
        """Add these combined keys."""
        more = sum(map(xxhash.xxh3_64_intdigest, combined.to_pylist()))
        return Sum(self.rows + len(combined), (self.hashes + more) % _MODULUS)

    def merged(self, other: Sum) -> Sum:
        return Sum(self.rows + other.rows, (self.hashes + other.hashes) % _MODULUS)


def expected_subscriptions(store: Store, rights: int = 0) -> Iterator[Bytes]:
    """The combined keys that live left rows with a foreign key must be subscribed under.

    ``store``: rekey's; or with ``rights``, scatter's of so many right tables.
    """
    for page in store.scan([prefix_range(tags.ROW)]):
        held, keys = records.decode(page.values), untagged(page.keys)
        if not rights:
            live = np.flatnonzero((held.flags & GONE == 0) & (held.flags & HAS_FOREIGN_KEY > 0))
            yield combined_key.encode(take(held.body, live), take(keys, live))
        for right, foreign_key in enumerate(scattered(held.body, rights) if rights else ()):
            named = pa.array(valid(foreign_key))
            yield combined_key.encode(foreign_key.filter(named), tagged(right, keys.filter(named)))


def live_subscriptions(store: Store) -> Iterator[Bytes]:
    """The combined keys of a subscription store's subscribers."""
    for page in store.scan([prefix_range(tags.SUBSCRIBER)]):
        live: Bools = records.decode(page.values).flags & GONE == 0
        keys = page.keys.filter(pa.array(live))
        yield untagged(keys)


def sums_message(sender: int, subscribed: Sum) -> pa.Table:
    """The message of a rekey bucket to a subscription bucket (``SUMS``)."""
    return table(
        SUMS, np.array([sender]), np.array([subscribed.rows]), np.array([subscribed.hashes])
    )


def check_subscriptions(store: Store, sums: pa.Table, senders: int, name: str) -> None:
    """Compare a subscription store with what all ``senders`` rekey buckets say, if all did."""
    if len(set(column(sums, "sender").to_pylist())) < senders:
        return
    stored = functools.reduce(Sum.plus, live_subscriptions(store), Sum())
    by_sender = {row["sender"]: Sum(row["rows"], row["hashes"]) for row in sums.to_pylist()}
    wanted = functools.reduce(Sum.merged, by_sender.values())
    if stored != wanted:
        which = "other ones" if stored.rows == wanted.rows else f"{stored.rows}"
        raise InvariantError(
            f"store {name}: {wanted.rows} live left rows have their foreign key here, "
            f"but there are {which} subscriptions; fkjoin state verify CHECKPOINT names the keys"
        )
