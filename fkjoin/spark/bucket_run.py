"""A stage's work on one bucket in one micro-batch.

Messages come in, the store is opened and committed, and messages go out.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import SUBSCRIPTION, column, unpack
from fkjoin.errors import FkJoinError, InvariantError
from fkjoin.spark.buckets import (
    BATCH_MS,
    TICK,
    bucket_ids,
    buckets_of,
    framed,
    packed_into,
    places_of,
)
from fkjoin.spark.identity import bucket_folder, difference, home_of, read_identity, with_home
from fkjoin.spark.index_home import index_home, note_owner
from fkjoin.spark.specs import Messages, StageSpec
from fkjoin.spark.worker import give_back, settle
from fkjoin.stages import Counters, counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.start_over import PASSED, reached
from fkjoin.stages.stream_time import CAME, Arrivals
from fkjoin.state import BucketStore, MemoryStore, SegmentLog, Store
from fkjoin.state.errors import StateError
from fkjoin.state.segments import Meta

if TYPE_CHECKING:
    import pandas as pd

Envelope = tuple[int, bytes | None, str | None, int]
"""The columns of ``ENVELOPE``."""

_PRIME = 1_000_003
"""Salt that makes parts independent of the buckets that keys are in."""


class BucketRun:
    """A bucket of a stage, for one micro-batch."""

    def __init__(self, spec: StageSpec, bucket: int, log: SegmentLog) -> None:
        self._spec, self._state, self._bucket, self._log = spec, spec.state, bucket, log

    def process(self, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Take envelopes and yield those to send.

        The store hands its log what it commits, before the last of them.
        """
        try:
            # Payloads that are sent are let go.
            yield from map(_frame, framed(self._envelopes(rows)))
        except (FkJoinError, StateError) as error:
            if re.search(rf" of (store )?{re.escape(self._state.operator)}\b", str(error)):
                raise
            raise type(error)(f"{self._spec.name}, bucket {self._bucket}: {error}") from error

    def _envelopes(self, rows: Iterator[pd.DataFrame]) -> Iterator[Envelope]:
        settle()
        spec, state, bucket = self._spec, self._state, self._bucket
        count: Counters = Counters()
        passed: Counters = Counters()
        payloads: list[bytes] = []
        latest: dict[int, int] = {}
        now_ms = 0
        for frame in rows:
            now_ms = int(max(frame[BATCH_MS], default=now_ms))
            payloads += (payload for payload in frame["payload"] if payload is not None)
            for name, value in zip(frame["counter"], frame["count"], strict=True):
                if isinstance(name, str) and name.startswith(CAME):
                    number = int(name.removeprefix(CAME))
                    latest[number] = max(latest.get(number, int(value)), int(value))
                elif isinstance(name, str):
                    passed[name] += int(value)
        payloads, through = spec.sorted_out(payloads)
        yield from ((bucket, payload, None, 0) for payload in through)
        arrivals = Arrivals(latest, passed.pop(TICK, None))
        ended = [name for name in passed if name.startswith(PASSED)]
        # A stage that has the source's rows hears of it, and no stage after that.
        for name in ended:
            del passed[name]
        begun, size = time.monotonic(), sum(map(len, payloads))
        if payloads or arrivals.any or ended:
            with self._opened() as store:
                name = f"{spec.name}, bucket {bucket}"
                guarded: Store = store
                if state.validate:
                    guarded = GuardedStore(store, name, spec.highwater_tags)
                if bucket == 0:  # the next operator's buckets wake up: one, and to be checked all
                    woken = bucket_ids(state.buckets) if state.validate else (0,)
                    yield from ((bucket_id, b"", None, 0) for bucket_id in woken)
                over = reached(ended, guarded) if ended else []
                # Before the batch, and in one call with it: records of the new topic are newer,
                # and a key has one result.
                gone: list[pa.Table] = []
                for topic in over:
                    gone += spec.left_behind(guarded, topic)
                for tables in self._parts(payloads, gone):
                    messages = Messages(tables, now_ms, arrivals)
                    results = spec.run(messages, guarded, count)
                    yield from chain.from_iterable(map(self._sent, results))
                store.commit()
                self._note_owner()
                count.update(dict(zip(counters.SIZES, (1, *store.sizes), strict=True)))
                if state.validate:
                    if (disagreement := store.disagreement()) is not None:
                        raise InvariantError(f"store {name}: {disagreement}")
                    sums = spec.validated(messages, store, bucket, name)
                    yield from ((bucket_id, payload, None, 0) for bucket_id, payload in sums)
                if store.rebuilt is not None:
                    count[counters.INDEX_REBUILT] += 1
                    logging.getLogger(__name__).warning(
                        "%s: index rebuilt from its log: %s", name, store.rebuilt
                    )
            count[f"{spec.stage}-ms"] = round(1000 * (time.monotonic() - begun))
            count[f"{spec.stage}{counters.SKIPS}"] = count[counters.IDEMPOTENT]
            self._name_hot_keys(count)
            give_back(size)
        for name, value in (passed + count).items():  # adding drops what is zero
            yield bucket, None, name, value

    def _sent(self, messages: pa.Table) -> Iterator[Envelope]:
        """Envelopes for the next operator: subscriptions go to foreign keys, all else to keys."""
        state, key = self._state, as_bytes(column(messages, "key"))
        if messages.schema.equals(SUBSCRIPTION):
            numbers = places_of(
                as_bytes(column(messages, "foreign_key")), key, state.buckets, state.spread
            )
        else:
            numbers = buckets_of(key, state.buckets)
        for bucket_id, payload in packed_into(messages, numbers, state.buckets):
            yield bucket_id, payload, None, 0

    def _name_hot_keys(self, count: Counters) -> None:
        """Give the counters of hot keys readable names."""
        for name in [name for name in count if name.startswith(counters.HOT_KEY)]:
            from pyspark.sql.types import StructType  # seldom needed, and much to load

            from fkjoin.codec.key_texts import keys_as_json
            from fkjoin.spark.schemas import arrow_schema

            _, about = read_identity(self._state.identity.encode())
            which, value = self._spec.hot_key(bytes.fromhex(name.removeprefix(counters.HOT_KEY)))
            schema = arrow_schema(which, StructType.fromJson(about[which]))
            key = as_bytes(pa.array([value]))
            count[counters.HOT_KEY + keys_as_json(schema, key)[0].as_py()] = count.pop(name)

    def _parts(self, payloads: list[bytes], gone: list[pa.Table]) -> Iterator[list[pa.Table]]:
        """The messages to work on at a time, behind tombstones of rows that are ``gone``.

        That is all of them, whose payloads are let go.  Of a huge fan-out it is some left keys,
        one part after the other.
        """
        at_a_time = self._spec.part_bytes
        size = sum(map(len, payloads)) + sum(rows.nbytes for rows in gone)
        parts = 1 if at_a_time is None else 1 + size // at_a_time
        if parts == 1:
            payloads.reverse()
            unpacked = gone
            while payloads:
                if payload := payloads.pop():
                    unpacked.append(unpack(payload))
            yield unpacked
            return
        for part in range(parts):
            come = chain(gone, (unpack(payload) for payload in payloads if payload))
            yield [_part(messages, part, parts) for messages in come]

    def _opened(self) -> BucketStore | InMemory:
        """The bucket's store.

        A new one gets a folder of its own: an operator may stand twice in a query, under one name.
        """
        meta = self._log.meta()
        home = uuid.uuid4().hex[:8] if meta is None else home_of(Meta.decode(meta).identity)
        folder = self._directory() / bucket_folder(self._bucket, home)
        return BucketStore(
            self._log,
            folder,
            identity=with_home(self._state.identity, home).encode(),
            differs=partial(difference, tables=self._state.tables),
        )

    def _note_owner(self) -> None:
        note_owner(self._directory().parent)

    def _directory(self) -> Path:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return index_home(
            self._state.index_dir, query or "no-query", self._state.operator, self._spec.stage
        )


class InMemory:
    """A store in memory, opened and committed like a bucket's."""

    sizes = (0, 0, 0, 0)
    rebuilt = None

    def __init__(self, store: MemoryStore) -> None:
        self.get_many, self.scan, self.write = store.get_many, store.scan, store.write

    def __enter__(self) -> InMemory:
        return self

    def __exit__(self, *_: object) -> None:
        """Let it be: what is lost in a crash is what the caller forgets."""

    def commit(self) -> None:
        """Do nothing: what is written is there."""

    def disagreement(self) -> None:
        """Agree: there is no log that could differ."""


class InMemoryRun(BucketRun):
    """A bucket of a stage over a store in memory."""

    def __init__(self, spec: StageSpec, bucket: int, store: MemoryStore) -> None:
        self._spec, self._state, self._bucket = spec, spec.state, bucket
        self._in_memory = store

    def _opened(self) -> InMemory:
        return InMemory(self._in_memory)

    def _note_owner(self) -> None:
        """Do nothing: there is no index."""


class SparkLog:
    """A ``SegmentLog`` in Spark's state: committed with the batch, restored and moved by Spark.

    Each call is a question to the JVM by a socket, and a thread sends what is written.  The JVM
    takes 2 ms for a question, and each bucket of a small batch has two to ask.  Meanwhile the
    operator writes its pending file and hands its results on.

    A context manager: its end means that all is written, or raises the error.  One thing is asked
    at a time, in the order of the calls.  So a read waits for the writes before it, and nothing is
    written after a write that failed.
    """

    def __init__(self, meta: Any, segments: Any) -> None:
        """Keep the log in ``meta``, a ``ValueState``, and ``segments``, a ``MapState``.

        Nothing else may use them meanwhile.
        """
        self._meta, self._segments = meta, segments
        self._known: bytes | None = None
        self._writer = ThreadPoolExecutor(1, "change-log")
        self._last: Future[None] | None = None

    def __enter__(self) -> SparkLog:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if failed is None:
            self._wait()

    def meta(self) -> bytes | None:
        if self._known is None:
            self._wait()
            if (row := self._meta.get()) is not None:
                self._known = bytes(row[0])
        return self._known

    def set_meta(self, meta: bytes) -> None:
        self._later(self._meta.update, (meta,))
        self._known = meta

    def segment(self, number: int) -> bytes | None:
        self._wait()
        row = self._segments.getValue((number,))
        return None if row is None else bytes(row[0])

    def put_segment(self, number: int, data: bytes) -> None:
        self._later(self._segments.updateValue, (number,), (data,))

    def remove_segment(self, number: int) -> None:
        self._later(self._segments.removeKey, (number,))

    def _later(self, write: Callable[..., None], *values: Any) -> None:
        self._last = self._writer.submit(_after, self._last, write, *values)

    def _wait(self) -> None:
        """Wait until all is written."""
        if self._last is not None:
            self._last.result()


def _after(before: Future[None] | None, write: Callable[..., None], *values: Any) -> None:
    if before is not None:
        before.result()  # done: there is one thread
    write(*values)


def _part(messages: pa.Table, part: int, parts: int) -> pa.Table:
    """The messages of one ``parts``-th of the left keys."""
    return messages.filter(
        pa.array(buckets_of(as_bytes(column(messages, "key")), _PRIME) % parts == part)
    )


def _frame(envelopes: list[Envelope]) -> pd.DataFrame:
    # Not with this module: Spark imports it once per operator in a process that needs no frames.
    import pandas as pd

    kinds = {"bucket": np.int64, "payload": object, "counter": object, "count": np.int64}
    return pd.DataFrame(
        {
            name: np.array(column, kind)
            for (name, kind), column in zip(
                kinds.items(), zip(*envelopes, strict=True), strict=True
            )
        }
    )
