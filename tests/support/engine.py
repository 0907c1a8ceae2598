"""The fused engine in one process: Spark's part (shuffles, state that is committed or rolled back) played by dictionaries.

The operators, their bucket stores and their files are the real ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa

from fkjoin.codec.messages import RESULT, unpack
from fkjoin.spark.buckets import bucket_ids, packed_by_bucket
from fkjoin.spark.identity import identity_text
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import RekeySpec, ResolveSpec, StageSpec, StateSpec, SubscriptionSpec, WorkerStage
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import How
from tests.support.oracle import Change, messages

Envelopes = dict[int, list[bytes]]


class Value:
    """A ``ValueState``."""

    def __init__(self, data: Any = None) -> None:
        self._data = data

    def exists(self) -> bool:
        return self._data is not None

    def get(self) -> Any:
        return self._data

    def update(self, data: Any) -> None:
        self._data = data


class Mapped(dict[Any, Any]):
    """A ``MapState``."""

    getValue = dict.get  # noqa: N815
    updateValue = dict.__setitem__  # noqa: N815
    removeKey = dict.pop  # noqa: N815


class Handle:
    """A bucket's states: a copy of what is committed, until the batch is.

    Their types are not texts, which Spark would ask the JVM about in each batch.
    """

    def __init__(self, meta: Any = None, log: Any = ()) -> None:
        self.meta, self.log = Value(meta), Mapped(log)

    def getValueState(self, _: str, *types: Any) -> Value:  # noqa: N802
        assert [kind.simpleString() for kind in types] == ["struct<data:binary>"]
        return self.meta

    def getMapState(self, _: str, *types: Any) -> Mapped:  # noqa: N802
        assert [kind.simpleString() for kind in types] == ["struct<number:bigint>", "struct<data:binary>"]
        return self.log


class Engine:
    """Some stages in a row; a batch is an attempt that is committed afterwards, or not."""

    def __init__(self, specs: Sequence[StageSpec]) -> None:
        self.count = Counters()
        self.now_ms = 1000
        """The time of the batch: all its attempts have the same."""
        self.buckets = specs[0].state.buckets
        self.specs = {spec.stage: spec for spec in specs}
        self._committed: dict[tuple[str, int], Handle] = defaultdict(Handle)
        self._attempt: dict[tuple[str, int], Handle] = {}

    def attempted(self, given: dict[str, Envelopes], told: Mapping[str, Mapping[str, int]] = MappingProxyType({})) -> pa.Table:
        """Run a batch; its results."""
        passed = self.passed(given, told)
        results = [unpack(payload) for payloads in passed.values() for payload in payloads if payload]
        return pa.concat_tables(results or [RESULT.empty_table()])

    def passed(self, given: dict[str, Envelopes], told: Mapping[str, Mapping[str, int]] = MappingProxyType({})) -> Envelopes:
        """Return what the last stage sends.

        ``given``: what comes to stages from sources; ``told``: counters that come to a stage.
        """
        self._attempt = {}
        passed: Envelopes = defaultdict(list)
        for stage in self.specs:
            for bucket, payloads in given.get(stage, {}).items():
                passed[bucket] += payloads
            if stage in told:
                passed = {bucket: passed[bucket] for bucket in bucket_ids(self.buckets)}
            passed = self._run(stage, passed, told.get(stage, {}))
        return passed

    def commit(self) -> None:
        """Make the states of all stages durable together, as Spark does at the end of a batch."""
        self._committed.update(self._attempt)
        self.now_ms += 1000

    def packed(self, *tables: pa.Table) -> Envelopes:
        """Messages by key, and an envelope that wakes each bucket."""
        passed: Envelopes = defaultdict(list)
        for bucket in bucket_ids(self.buckets):
            passed[bucket].append(b"")
        for rows in tables:
            for bucket, payload in packed_by_bucket(rows, "key", self.buckets):
                passed[bucket].append(payload)
        return passed

    def _run(self, stage: str, passed: Envelopes, heard: Mapping[str, int]) -> Envelopes:
        made: Envelopes = defaultdict(list)
        for bucket, payloads in passed.items():
            committed = self._committed[stage, bucket]
            handle = self._attempt[stage, bucket] = Handle(committed.meta.get(), committed.log)
            processor = StageProcessor(WorkerStage(self.specs[stage]))
            processor.init(handle)  # type: ignore[arg-type]
            rows, others = len(payloads), len(heard) or 1
            names, numbers = list(heard) or [None], list(heard.values()) or [1]
            columns = {"counter": [None] * rows + names, "count": [1] * rows + numbers}
            frame = pd.DataFrame({"payload": [*payloads, *[None] * others], **columns})
            frame = frame.assign(bucket=bucket, batch_ms=self.now_ms)
            for out in processor.handleInputRows((bucket,), iter([frame]), None):
                for target, payload, counter, number in out.itertuples(index=False):
                    if payload is not None:
                        made[int(target)].append(payload)
                    else:
                        self.count[counter] += int(number)
        return made


class LocalEngine(Engine):
    """One join."""

    def __init__(self, folder: Path, how: How = "inner", buckets: int = 2) -> None:
        state = StateSpec("join", buckets, 60_000, str(folder), identity_text({}, {}), True)
        resolve = ResolveSpec(state, how=how, in_order=True)
        super().__init__([RekeySpec(state), SubscriptionSpec(state, in_order=True), resolve])

    def batch(self, changes: Sequence[Change]) -> pa.Table:
        left, right = (self.packed(messages(changes, left=left)) for left in (True, False))
        results = self.attempted({"rekey": left, "subscription": right})
        self.commit()
        return results
