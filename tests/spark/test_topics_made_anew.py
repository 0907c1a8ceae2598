"""Buckets of stages whose results go to sinks, in the batch that reads a topic made anew to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, masked
from fkjoin.codec.messages import CHANGE, NUMBERED, SUBSCRIPTION, pack, table, unpack
from fkjoin.codec.rows import RowCodec
from fkjoin.spark.bucket_run import InMemoryRun, received
from fkjoin.spark.specs import ChildrenSpec, MergeSpec, PairSpec, StageSpec, StateSpec
from fkjoin.stages.start_over import PASSED, StartOver
from fkjoin.state import MemoryStore
from tests.support import child_rows
from tests.support.sampling import examples

BEFORE, ANEW = (versions.topic_identity("orders", "id", generation) for generation in (0, 1))
OTHER = versions.topic_identity("customers", "id")
STATE = StateSpec("op", 1, 1000, "", "{}")
SPECS: dict[str, StageSpec] = {
    **{how: PairSpec(STATE, how=how, parts=(1, 1), in_order=(False, False)) for how in ("inner", "left", "outer")},
    "outer, in order": PairSpec(STATE, how="outer", parts=(1, 1), in_order=(True, True)),
    "merge": MergeSpec(STATE, in_order=(False, False)),
    "children": ChildrenSpec(STATE, family=child_rows.FAMILY),
}

Rows = Sequence[tuple[str, str | None]]
"""Keys and values; a value of None is a deletion."""


class Shown:
    """Results of a stage, applied as a sink does: a batch has one of each key."""

    def __init__(self, name: str, slot: int) -> None:
        self.name, self.slot, self.at = name, slot, 0
        self.store, self.rows = MemoryStore(), dict[bytes, bytes]()

    def batch(self, topic: Rows, source: bytes, other: Rows = (), *, ended: bool = False) -> None:
        own = self._messages(topic, source, self.slot)
        payloads = [pack(own), pack(self._messages(other, OTHER, 1 - self.slot))]
        frame = pd.DataFrame({"payload": payloads, "counter": None, "count": 0})
        if ended:
            slot = None if self.name == "children" else self.slot
            passed = replace(StartOver(ANEW, ((0, 7),)), slot=slot)
            frame.loc[len(frame)] = [None, f"{PASSED}0:{passed}", 1]
        (inbox,) = received([frame.assign(batch_ms=1000)])
        sent = InMemoryRun(SPECS[self.name], 0, self.store).envelopes(inbox)
        payloads = [payload for _, payload, *_ in sent if payload]
        results = [row for payload in payloads for row in unpack(payload).to_pylist()]
        assert len({row["key"] for row in results}) == len(results), "a key comes once in a batch"
        for row in results:
            self.rows.pop(row["key"], None)
            if row["value"] is not None:
                self.rows[row["key"]] = row["value"]

    def _messages(self, rows: Rows, source: bytes, slot: int) -> pa.Table:
        keys = pa.array([key.encode() for key, _ in rows], BYTES)
        values = pa.array([value and value.encode() for _, value in rows], BYTES)
        has_value, count = values.is_valid().to_numpy(False), len(rows)
        at = np.arange(self.at, self.at + count)
        self.at += count
        version = versions.encode(source, [at, np.zeros_like(at), at], placed=True)
        if self.name != "children":
            slots = np.full(count, slot, np.int8)
            return table(NUMBERED, keys, version, values, ~has_value, at, slots)
        row = masked(RowCodec(child_rows.ROW).encode([values.cast(pa.binary())], count), has_value)
        if source != OTHER:
            return table(CHANGE, keys, pa.nulls(count, BYTES), row, version, at)
        left = pa.array([b"child of " + key for key in keys.to_pylist()], BYTES)
        return table(SUBSCRIPTION, keys, left, has_value, version, row, at)


_ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None])), max_size=5)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=examples(40))
@given(slot=st.integers(0, 1), old=_ROWS, new=_ROWS, others=st.tuples(_ROWS, _ROWS), cut=st.integers(0, 5))
@example(slot=0, old=[("k", "old")], new=[("z", "z")], others=([("k", "1")], [("k", "2")]), cut=0)
@example(slot=1, old=[("k", "old")], new=[("z", "z")], others=([("k", "1")], [("k", None)]), cut=0)
def test_a_key_has_one_result_in_the_batch_that_passes_the_end(
    name: str, slot: int, old: Rows, new: Rows, others: Sequence[Rows], cut: int
) -> None:
    """Tables are what they would be if the topic before had never been read."""
    found, wanted = Shown(name, slot), Shown(name, slot)
    found.batch(old, BEFORE, others[0])
    wanted.batch([], ANEW, others[0])
    found.batch(new[:cut], ANEW)
    wanted.batch(new[:cut], ANEW)
    found.batch(new[cut:], ANEW, others[1], ended=True)
    wanted.batch(new[cut:], ANEW, others[1])
    assert found.rows == wanted.rows
