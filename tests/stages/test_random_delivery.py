"""Convergence when messages between the stages overtake each other, come twice, or are delayed.

A thousand small histories, in ``make faults`` twenty thousand, run at once in one set of stores, each with keys of its own.
Everything in flight is delivered at a time of its own choosing; some of it is delivered again later.  At the end every
history's joined table must be the batch join of its final tables.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from fkjoin.codec import combined_key
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import ANSWER, SUBSCRIPTION
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import live_subscriptions
from fkjoin.stages.join_rows import join_rows
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from tests.support.channels import Channel
from tests.support.oracle import Change, Joined, apply, batch_join, messages
from tests.support.sampling import EVERY

HISTORIES, EVENTS = 20_000 if EVERY else 1_000, 7


def history(number: int, rng: random.Random) -> list[Change]:
    """Changes of one or two left rows and two right rows, with moves, deletes and null foreign keys."""
    changes = []
    for version in range(1, EVENTS + 1):
        value = b"%d" % rng.randrange(3) if rng.random() < 0.75 else None
        if rng.random() < 0.6:
            foreign_key = rng.choice((b"%d-a" % number, b"%d-b" % number, None))
            changes.append(Change(True, b"%d-k%d" % (number, rng.random() < 0.2), value, version, foreign_key))
        else:
            changes.append(Change(False, b"%d-%c" % (number, rng.choice(b"ab")), value, version))
    return changes


@pytest.mark.faults
@pytest.mark.parametrize("how", ["inner", "left"])
def test_histories_of_random_delivery_end_as_the_batch_join(how: str) -> None:
    rng, noise = random.Random(f"{how} deliveries"), np.random.default_rng(20_000)
    changes = [change for number in range(HISTORIES) for change in history(number, rng)]
    lefts, rights = (Channel(messages(changes, left=side), noise) for side in (True, False))
    subscriptions, answers = Channel(SUBSCRIPTION.empty_table(), noise), Channel(ANSWER.empty_table(), noise)
    stores, count, joined = [MemoryStore() for _ in range(3)], Counters(), Joined()
    times = {"now_ms": 0, "retention_ms": 1}

    while lefts or rights or subscriptions or answers:
        rekeyed = rekey(lefts.deliver(0.3), stores[0], count, **times)
        subscriptions.send(rekeyed.subscriptions)
        answers.send(rekeyed.answers)
        share = noise.choice((0.1, 0.3, 0.6))
        for page in subscription(subscriptions.deliver(share), rights.deliver(0.3), stores[1], count, **times):
            answers.send(page)
        results = resolve(join_rows(answers.deliver(share), how), stores[2], count, **times)  # type: ignore[arg-type]
        apply(results, joined)

    assert joined == batch_join(changes, how)
    assert {key for page in live_subscriptions(stores[1]) for key in page.to_pylist()} == wanted_subscriptions(changes)
    assert count["stale-dropped"] > HISTORIES, "nothing was out of order: the test tests nothing"


def wanted_subscriptions(changes: list[Change]) -> set[bytes]:
    """One subscription for each living left row that has a foreign key."""
    newest = {change.key: change for change in sorted(changes, key=lambda change: change.version) if change.left}
    live = [row for row in newest.values() if row.value is not None and row.foreign_key is not None]
    foreign_keys, keys = pa.array([row.foreign_key for row in live], BYTES), pa.array([row.key for row in live], BYTES)
    return set(combined_key.encode(foreign_keys, keys).to_pylist())
