"""Emit on change, as all stages have it: what differs from what was emitted last, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.codec import pairs, records, tags, versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import JOINED
from fkjoin.codec.pairs import Pairs
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import HAS_RESULT, EmitDecision, Ending, entries
from fkjoin.stages.regroup import regroup
from fkjoin.stages.resolve import resolve
from fkjoin.stages.retention import GONE
from fkjoin.stages.spread import spread
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.versions import message_table, version

HAD, HAS, UNCHANGED = (np.array(column) for column in zip(*itertools.product([False, True], repeat=3), strict=True))
"""All cases: whether there was a result, whether there is one, and whether it is the same."""


def keys(rows: int) -> pa.Array:
    return pa.array([b"%d" % row for row in range(rows)], BYTES)


@pytest.mark.parametrize("every", [False, True])
def test_what_differs_is_emitted_and_the_rest_is_counted(every: bool) -> None:
    count = Counters()
    emission = EmitDecision.of(HAD, HAS, UNCHANGED, count, every=every)
    wanted = [
        (had or has) and (every or not (had and has and unchanged))
        for had, has, unchanged in zip(HAD, HAS, UNCHANGED, strict=True)
    ]
    assert emission.emit.tolist() == wanted
    assert (count[counters.TOMBSTONES], count[counters.IDEMPOTENT]) == (2, 0 if every else 1)
    assert count[counters.OUT] == sum(wanted)


def test_keys_that_are_left_out_are_neither_emitted_nor_counted() -> None:
    count, among = Counters(), np.arange(len(HAD)) == len(HAD) - 1
    emission = EmitDecision.of(HAD, HAS, UNCHANGED, count, among=among)
    assert not emission.emit.any()
    assert +count == {counters.IDEMPOTENT: 1}


LISTS = [None, pairs.encode(Pairs(np.zeros(1, np.int64), keys(1), keys(1)), 1)[0].as_py()]
CHANGES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(LISTS), st.integers(0, 3)), max_size=8)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("stage", [resolve, regroup, spread])
@law(60, changes=CHANGES)
def test_a_skip_is_a_change_that_is_not_sent(stage: Any, every: bool, changes: list[Any]) -> None:
    """Each of the changes that come one by one is sent, skipped, a tombstone of nothing, or stale."""
    store, count, sent = MemoryStore(), Counters(), 0
    for number, value, ts in changes:
        came = message_table(JOINED, [(b"k", version(number), value, value is None, ts)])
        sent += bool(len(stage(came, store, count, now_ms=0, retention_ms=9, every=every)))
    skipped = count[counters.IDEMPOTENT]
    assert sent + skipped + count[counters.TOMBSTONES] + count[counters.STALE] == len(changes)
    assert not (every and skipped)


def test_own_versions_are_never_behind_the_clock_nor_stand_still() -> None:
    held = records.decode(
        records.encode(
            np.full(2, HAS_RESULT, np.uint8), np.zeros(2, np.int64), versions.encode(b"a-source", [np.array([5, 50])]), keys(2)
        )
    )
    yes = np.ones(2, bool)
    version = EmitDecision.of(yes, yes, ~yes, Counters()).own_versions(held, b"a-source", 20)
    assert [versions.decode(item)[0][1] for item in version.to_pylist()] == [(20,), (51,)]
    unchanged = EmitDecision.of(yes, yes, yes, Counters()).own_versions(held, b"a-source", 20)
    assert unchanged.equals(held.version)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_row_that_is_gone_leaves_a_tombstone_marker_with_an_end(in_order: bool) -> None:
    gone, ts = np.array([False, True]), np.array([7, 8])
    names, values = entries(keys(2), ts, keys(2), keys(2), Ending(gone, 1, in_order), has=~gone)
    written = dict(zip(names.to_pylist(), values.to_pylist(), strict=True))
    marker, due = written.pop(b"1"), tags.DUE + (1).to_bytes(8, "big") + b"1"
    assert records.decode(pa.array([written.pop(b"0")], BYTES)).flags.tolist() == [HAS_RESULT]
    if in_order:  # and so never stale
        assert (marker, written) == (None, {})
    else:
        assert records.decode(pa.array([marker], BYTES)).flags.tolist() == [GONE]
        assert written == {due: b"1"}
