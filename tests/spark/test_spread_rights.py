"""Left rows of a foreign key in several buckets, with a copy of its right row in each: the law, without Spark."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import CHANGE, SUBSCRIPTION, column, unpack
from fkjoin.spark.buckets import Payload, bucket_ids, buckets_of, framed, packed_by_bucket, packed_into, places_of
from fkjoin.spark.packing import CopyRights, counter, envelopes
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import join_rows
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.oracle import Change, Joined, apply, batch_join, histories, messages

BUCKETS = 5


def by_bucket(payloads: Iterable[Payload], kind: pa.Schema) -> dict[int, pa.Table]:
    """Messages by the id of the bucket that they are for."""
    found: dict[int, list[pa.Table]] = defaultdict(list)
    for bucket, payload in payloads:
        found[bucket].append(unpack(payload))
    return {bucket: pa.concat_tables(tables) for bucket, tables in found.items()} | {
        bucket: kind.empty_table() for bucket in bucket_ids(BUCKETS) if bucket not in found
    }


def copied(rights: pa.Table, spread: int) -> dict[int, pa.Table]:
    batches = map(envelopes, framed(packed_by_bucket(rights, "key", BUCKETS)))
    copies = pa.Table.from_batches(CopyRights(BUCKETS, spread)(iter([*batches, counter("x", 1)])))
    assert copies.column("count").to_pylist().count(1) == 1, "a counter is not a copy"
    rows = zip(copies.column("bucket").to_pylist(), copies.column("payload").to_pylist(), strict=True)
    return by_bucket(((bucket, payload) for bucket, payload in rows if payload), CHANGE)


@law(90, histories(14), st.sampled_from(["inner", "left"]), st.integers(1, BUCKETS), st.integers(1, 9), st.randoms())
def test_wherever_left_rows_are_spread_the_result_is_the_batch_join(
    changes: list[Change], how: str, spread: int, size: int, rng: random.Random
) -> None:
    """Changes have any order and any cut into batches, and some come twice."""
    come = changes + rng.sample(changes, len(changes) // 2)
    rng.shuffle(come)
    stores, last, count, joined = defaultdict(MemoryStore), [MemoryStore(), MemoryStore()], Counters(), Joined()
    times = {"now_ms": 0, "retention_ms": 1}
    for start in range(0, len(come), size):
        cut = come[start : start + size]
        rekeyed = rekey(messages(cut, left=True), last[0], count, **times)
        sent = rekeyed.subscriptions
        numbers = places_of(*(as_bytes(column(sent, name)) for name in ("foreign_key", "key")), BUCKETS, spread)
        subscriptions = by_bucket(packed_into(sent, numbers, BUCKETS), SUBSCRIPTION)
        rights = copied(messages(cut, left=False), spread)
        answers = [rekeyed.answers]
        for bucket in bucket_ids(BUCKETS):
            answers += subscription(subscriptions[bucket], rights[bucket], stores[bucket], count, in_order=True, **times)
        apply(resolve(join_rows(pa.concat_tables(answers), how), last[1], count, **times), joined)  # type: ignore[arg-type]
    assert joined == batch_join(changes, how)


def test_left_rows_of_one_foreign_key_are_in_as_many_buckets_as_it_is_spread_over() -> None:
    keys = pa.array([b"%d" % number for number in range(1_000)], BYTES)
    one = pa.array([b"fk"] * len(keys), BYTES)
    (home,) = buckets_of(one[:1], 8)
    found, rows = np.unique(places_of(one, keys, 8, 4), return_counts=True)
    assert sorted(found) == sorted((home + place) % 8 for place in range(4))
    assert rows.min() > 200, "about a quarter each"
    assert set(places_of(one, keys, 8, 1)) == {home}
