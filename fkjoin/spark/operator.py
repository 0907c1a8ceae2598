"""One stage as a stateful Spark operator over buckets.

Rows of the stream are *envelopes*: a bucket's id with a payload of packed messages, or with a counter and its value.
A payload of no bytes only opens the store, so that a checkpoint made with other settings is noticed in every batch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from fkjoin import combined_key
from fkjoin.arrays import as_bytes
from fkjoin.errors import InvariantError
from fkjoin.identity import difference
from fkjoin.invariants import GuardedStore, Sum, check_subscriptions, expected_subscriptions, sums_message
from fkjoin.messages import ANSWER, CHANGE, JOINED, SUBSCRIPTION, SUMS, column, is_answer, pack, unpack
from fkjoin.spark.buckets import bucket_ids, buckets_of, packed_by_bucket
from fkjoin.stages import Counters, How, join_rows, rekey, resolve, subscription
from state import BucketStore, Store

if TYPE_CHECKING:
    import pandas as pd

ENVELOPE = "bucket int, payload binary, counter string, count bigint"

PART_BYTES = 64 << 20
"""Of packed answers: what resolve works on at a time.  They take up to ten times as much when they are unpacked."""

_PRIME = 1_000_003
"""So that parts are independent of the buckets that keys are in."""

StageName = Literal["rekey", "subscription", "resolve"]


@dataclass(frozen=True)
class StageSpec:
    """What an operator needs to know; ``identity`` is what its checkpoint is bound to."""

    stage: StageName
    join: str
    how: How
    buckets: int
    retention_ms: int
    index_dir: str
    shared_log: bool
    right_parts: int
    in_order: bool
    """Messages of a left key arrive in the order of their versions: true where no topic lies between the stages."""
    identity: str
    materialized: bool = False
    """resolve: keep the results."""
    validate: bool = False
    """Check the stores' invariants after each batch."""


class SparkLog:
    """A bucket's change log in Spark's state: committed with the batch, restored and moved by Spark."""

    def __init__(self, meta: Any, segments: Any) -> None:
        self._meta, self._segments = meta, segments

    def meta(self) -> bytes | None:
        return bytes(self._meta.get()[0]) if self._meta.exists() else None

    def set_meta(self, meta: bytes) -> None:
        self._meta.update((meta,))

    def segment(self, number: int) -> bytes | None:
        found = self._segments.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_segment(self, number: int, data: bytes) -> None:
        self._segments.updateValue((number,), (data,))

    def remove_segment(self, number: int) -> None:
        self._segments.removeKey((number,))


class StageProcessor(StatefulProcessor):
    """Runs a pure stage on all of a bucket's messages of a micro-batch."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", "data binary")
        self._segments = handle.getMapState("log", "number bigint", "data binary")

    def handleInputRows(  # type: ignore[override]  # noqa: N802  (Spark's name; rows come as pandas frames)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        spec = self._spec
        count: Counters = Counters()
        passed: Counters = Counters()
        payloads: list[bytes] = []
        for frame in rows:
            payloads += (payload for payload in frame["payload"] if payload is not None)
            for name, value in zip(frame["counter"], frame["count"], strict=True):
                if isinstance(name, str):
                    passed[name] += int(value)
        bucket = int(key[0])
        if spec.stage == "subscription":  # rekey's own answers are on their way to this very bucket of resolve
            answers = [payload for payload in payloads if is_answer(payload)]
            payloads = [payload for payload in payloads if not is_answer(payload)]
            if answers:
                yield _envelopes([(bucket, payload) for payload in answers])
        if payloads:
            log, directory = SparkLog(self._meta, self._segments), self._directory(bucket)
            with BucketStore(log, directory, identity=spec.identity.encode(), differs=difference) as store:
                name = f"{spec.join}-{spec.stage}, bucket {bucket}"
                guarded = GuardedStore(store, name) if spec.validate else store
                if bucket == 0:
                    yield _envelopes([(0, b"")])
                messages: list[pa.Table] = []
                for messages in self._parts(payloads):
                    yield from (_envelopes(made) for made in self._run(messages, bucket, guarded, count) if made)
                store.commit()
                if spec.validate:
                    yield from (_envelopes(made) for made in self._validated(messages, bucket, store, name))
        if total := passed + count:  # adding drops what is zero
            yield _counters(bucket, total)

    def close(self) -> None:
        pass

    def _run(self, messages: list[pa.Table], bucket: int, store: Store, count: Counters) -> Iterator[list[tuple[int, bytes]]]:
        """Payloads for the next operator, with their buckets' ids."""
        spec = self._spec
        times = {"now_ms": int(time.time() * 1000), "retention_ms": spec.retention_ms}
        if spec.stage == "rekey":
            subscriptions, answers = rekey(_only(CHANGE, messages), store, count, right_parts=spec.right_parts, **times)
            yield packed_by_bucket(subscriptions, "foreign_key", spec.buckets)
            yield packed_by_bucket(answers, "key", spec.buckets)
        elif spec.stage == "subscription":
            answered = subscription(
                _only(SUBSCRIPTION, messages),
                _only(CHANGE, messages),
                store,
                count,
                shared_log=spec.shared_log,
                in_order=spec.in_order,
                right_parts=spec.right_parts,
                **times,
            )
            yield from (packed_by_bucket(page, "key", spec.buckets) for page in answered)
        else:
            both = [join_rows(_only(ANSWER, messages), spec.how), _only(JOINED, messages)]
            results = resolve(pa.concat_tables(both), store, count, materialized=spec.materialized, **times)
            yield packed_by_bucket(results, "key", spec.buckets)

    def _parts(self, payloads: list[bytes]) -> Iterator[list[pa.Table]]:
        """The messages to work on at a time: all of them, but of a huge fan-out some left keys after the other."""
        parts = 1 + sum(map(len, payloads)) // PART_BYTES if self._spec.stage == "resolve" else 1
        if parts == 1:
            yield [unpack(payload) for payload in payloads if payload]
            return
        for part in range(parts):
            yield [_part(unpack(payload), part, parts) for payload in payloads if payload]

    def _validated(
        self, messages: list[pa.Table], bucket: int, store: BucketStore, name: str
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Check what can be checked here; what the next operator needs for its checks."""
        spec = self._spec
        if (found := store.disagreement()) is not None:
            raise InvariantError(f"store {name}: {found}")
        if spec.stage == "rekey" and spec.in_order:
            sums = [Sum()] * spec.buckets
            for combined in expected_subscriptions(store):
                numbers = buckets_of(combined_key.decode(combined)[0], spec.buckets)
                sums = [had.plus(combined.filter(pa.array(numbers == at))) for at, had in enumerate(sums)]
            ids = bucket_ids(spec.buckets)
            yield [(ids[at], pack(sums_message(bucket, found))) for at, found in enumerate(sums)]
        elif spec.stage == "subscription" and spec.in_order:
            check_subscriptions(store, _only(SUMS, messages), spec.buckets, name)

    def _directory(self, bucket: int) -> Path:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return index_home(self._spec.index_dir, query or "no-query", self._spec.join, self._spec.stage) / str(bucket)


def index_home(index_dir: str, query: str, join: str, stage: str) -> Path:
    """Where a store's indexes are on a machine, a folder per bucket; ``index_dir`` empty: under the temporary folder."""
    base = Path(index_dir) if index_dir else Path(tempfile.gettempdir()) / f"fkjoin-{os.getuid()}"
    return base / query / f"{join}-{stage}"


def _part(messages: pa.Table, part: int, parts: int) -> pa.Table:
    """The messages of one ``parts``-th of the left keys."""
    return messages.filter(pa.array(buckets_of(as_bytes(column(messages, "key")), _PRIME) % parts == part))


def _only(schema: pa.Schema, messages: Iterable[pa.Table]) -> pa.Table:
    chosen = [table for table in messages if table.schema.equals(schema)]
    return pa.concat_tables(chosen) if chosen else schema.empty_table()


def _envelopes(payloads: list[tuple[int, bytes]]) -> pd.DataFrame:
    import pandas as pd  # not with this module: Spark imports it once per operator in a process that needs no frames

    return pd.DataFrame(
        {
            "bucket": [bucket for bucket, _ in payloads],
            "payload": [payload for _, payload in payloads],
            "counter": pd.Series([None] * len(payloads), dtype=object),
            "count": pd.Series([0] * len(payloads), dtype="int64"),
        }
    )


def _counters(bucket: int, count: Counters) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "bucket": [bucket] * len(count),
            "payload": pd.Series([None] * len(count), dtype=object),
            "counter": list(count),
            "count": list(count.values()),
        }
    )
