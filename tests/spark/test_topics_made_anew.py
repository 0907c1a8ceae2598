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
from fkjoin.spark.bucket_run import InMemoryRun
from fkjoin.spark.specs import ChildrenSpec, MergeSpec, PairSpec, StageSpec, StateSpec
from fkjoin.stages.children import Family
from fkjoin.stages.start_over import PASSED, StartOver
from fkjoin.state import MemoryStore
from tests.support.sampling import examples

BEFORE, ANEW = (versions.topic_identity("orders", "id", generation) for generation in (0, 1))
OTHER = versions.topic_identity("customers", "id")
STATE = StateSpec("op", 1, 1000, "", "{}")
TEXT = pa.schema([("t", pa.string())])
FAMILY = Family(
    pa.schema([("id", pa.string())]), TEXT, TEXT, pa.schema([*TEXT, ("kids", pa.map_(pa.string(), pa.struct(list(TEXT))))])
)
SPECS: dict[str, StageSpec] = {
    **{how: PairSpec(STATE, how=how, parts=(1, 1), in_order=(False, False)) for how in ("inner", "left", "outer")},
    "outer, in order": PairSpec(STATE, how="outer", parts=(1, 1), in_order=(True, True)),
    "merge": MergeSpec(STATE, in_order=(False, False)),
    "children": ChildrenSpec(STATE, family=FAMILY),
}

Rows = list[tuple[str, str | None]]
"""Keys and values; a value of None is a deletion."""


class Shown:
    """Results of a stage, applied as a sink does: a batch has one of each key."""

    def __init__(self, name: str, slot: int) -> None:
        self.name, self.slot, self.at = name, slot, 0
        self.store, self.rows = MemoryStore(), dict[bytes, bytes]()

    def batch(self, topic: Rows, source: bytes, other: Rows = (), *, ended: bool = False) -> None:  # type: ignore[assignment]
        tables = [self._of_topic(topic, source), self._of_other(other)]
        passed = replace(StartOver(ANEW, ((0, 7),)), slot=None if self.name == "children" else self.slot)
        counters = [f"{PASSED}0:{passed}"] if ended else []
        columns = {
            "bucket": [0] * (2 + len(counters)),
            "payload": [*map(pack, tables), *[None] * len(counters)],
            "counter": [None, None, *counters],
            "count": [0, 0, *[1] * len(counters)],
            "batch_ms": [1000] * (2 + len(counters)),
        }
        run = InMemoryRun(SPECS[self.name], 0, self.store)
        sent = [payload for frame in run.process(iter([pd.DataFrame(columns)])) for payload in frame["payload"] if payload]
        results = [row for payload in sent for row in unpack(payload).to_pylist()]
        assert len({row["key"] for row in results}) == len(results), "a key comes once in a batch"
        for row in results:
            self.rows.pop(row["key"], None)
            if row["value"] is not None:
                self.rows[row["key"]] = row["value"]

    def _places(self, source: bytes, count: int) -> tuple[pa.Array, np.ndarray]:
        at = np.arange(self.at, self.at + count)
        self.at += count
        return versions.encode(source, [at, np.zeros_like(at), at], placed=True), at

    def _of_topic(self, rows: Rows, source: bytes) -> pa.Table:
        if self.name != "children":
            return self._numbered(self.slot, rows, source)
        keys, values = _columns(rows)
        version, at = self._places(source, len(rows))
        return table(CHANGE, keys, pa.nulls(len(rows), BYTES), _encoded(values), version, at)

    def _of_other(self, rows: Rows) -> pa.Table:
        if self.name != "children":
            return self._numbered(1 - self.slot, rows, OTHER)
        keys, values = _columns(rows)
        version, at = self._places(OTHER, len(rows))
        left = pa.array([b"child of " + key for key in keys.to_pylist()], BYTES)
        there = np.array([value is not None for _, value in rows], bool)
        return table(SUBSCRIPTION, keys, left, there, version, _encoded(values), at)

    def _numbered(self, number: int, rows: Rows, source: bytes) -> pa.Table:
        keys, values = _columns(rows)
        version, at = self._places(source, len(rows))
        gone = np.array([value is None for _, value in rows], bool)
        return table(NUMBERED, keys, version, values, gone, at, np.full(len(rows), number, np.int8))


def _columns(rows: Rows) -> tuple[pa.Array, pa.Array]:
    keys = pa.array([key.encode() for key, _ in rows], BYTES)
    return keys, pa.array([value and value.encode() for _, value in rows], BYTES)


def _encoded(values: pa.Array) -> pa.Array:
    return masked(RowCodec(TEXT).encode([values.cast(pa.string())], len(values)), values.is_valid().to_numpy(False))


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
