"""A stage's work on one bucket in one micro-batch.

Messages come in, the store is opened and committed, and messages go out.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import SUBSCRIPTION, column, unpack
from fkjoin.errors import FkJoinError, InvariantError
from fkjoin.spark.buckets import (
    BATCH_MS,
    ENTRY,
    TICK,
    bucket_ids,
    buckets_of,
    counted_name,
    framed,
    packed_into,
    places_of,
)
from fkjoin.spark.identity import bucket_folder, difference, home_of, read_identity, with_home
from fkjoin.spark.index_home import index_home, note_owner
from fkjoin.spark.specs import Messages, StageSpec, WorkerStage
from fkjoin.spark.worker import give_back, settle
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.start_over import PASSED, reached
from fkjoin.stages.stream_time import CAME, Arrivals
from fkjoin.state import BucketStore, MemoryStore, SegmentLog, Store
from fkjoin.state.errors import StateError
from fkjoin.state.segments import Meta

if TYPE_CHECKING:
    import pandas as pd

    from fkjoin.spark.change_log import SparkLog

Envelope = tuple[int, bytes | None, str | None, int]
"""The columns of ``ENVELOPE``."""

_PRIME = 1_000_003
"""Salt that makes parts independent of the buckets that keys are in."""


@dataclass
class Inbox:
    """Envelopes that have come to a bucket of a stage in a batch."""

    now_ms: int = 0
    payloads: list[bytes] = field(default_factory=list)
    latest: dict[int, int] = field(default_factory=dict)
    """The latest time of each source whose rows came, by the source's number."""
    passed: Counters = field(default_factory=Counters)
    """Counters of stages before this one."""

    def add(self, payload: bytes | None, counter: str | None, count: int) -> None:
        """Take an envelope."""
        if payload is not None:
            self.payloads.append(payload)
        if not isinstance(counter, str):
            return
        if counter.startswith(CAME):
            number = int(counter.removeprefix(CAME))
            self.latest[number] = max(self.latest.get(number, count), count)
        else:
            self.passed[counter] += count


def received(rows: Iterable[pd.DataFrame], stages: int = 1) -> list[Inbox]:
    """Sort envelopes by the stage that they come to, which ``ENTRY`` says where there are several.

    The time of all is the batch's time.
    """
    inboxes = [Inbox() for _ in range(stages)]
    now_ms = 0
    for frame in rows:
        now_ms = int(max(frame[BATCH_MS], default=now_ms))
        entries = frame[ENTRY] if stages > 1 else [0] * len(frame)
        columns = entries, frame["payload"], frame["counter"], frame["count"]
        for entry, payload, counter, count in zip(*columns, strict=True):
            inboxes[int(entry)].add(payload, counter, int(count))
    for inbox in inboxes:
        inbox.now_ms = now_ms
    return inboxes


class BucketRun:
    """A bucket of a stage, for one micro-batch."""

    def __init__(self, spec: StageSpec, bucket: int, log: SegmentLog) -> None:
        self._spec, self._state, self._bucket, self._log = spec, spec.state, bucket, log

    def envelopes(self, inbox: Inbox) -> Iterator[Envelope]:
        """Work on what has come, and yield the envelopes to send.

        The store hands its log what it commits, before the last of them.
        """
        try:
            yield from self._envelopes(inbox)
        except (FkJoinError, StateError) as error:
            if re.search(rf" of (store )?{re.escape(self._state.operator)}\b", str(error)):
                raise
            raise type(error)(f"{self._spec.name}, bucket {self._bucket}: {error}") from error

    def _envelopes(self, inbox: Inbox) -> Iterator[Envelope]:
        settle()
        spec, state, bucket = self._spec, self._state, self._bucket
        count: Counters = Counters()
        passed, now_ms = inbox.passed, inbox.now_ms
        payloads, through = spec.sorted_out(inbox.payloads)
        inbox.payloads = []  # the parts of a huge fan-out are let go one by one
        yield from ((bucket, payload, None, 0) for payload in through)
        arrivals = Arrivals(inbox.latest, passed.pop(TICK, None))
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
                    sums = spec.validated(messages, store, bucket)
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
        return BucketStore(
            self._log,
            self._directory() / bucket_folder(self._bucket, home),
            identity=with_home(self._state.identity, home).encode(),
            differs=difference,
        )

    def _note_owner(self) -> None:
        """Say whose the index is, once its store was accepted: ``prune`` goes by it."""
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


def one_by_one(
    stages: Sequence[WorkerStage], bucket: int, log: SparkLog, rows: Iterator[pd.DataFrame]
) -> Iterator[pd.DataFrame]:
    """Run an operator's stages on a bucket, each after those that it reads.

    Takes and yields frames of envelopes.  The column ``ENTRY`` of several stages' envelopes says
    which stage they are for.
    """
    inboxes = received(rows, len(stages))

    def envelopes() -> Iterator[Envelope]:
        for number, (spec, reader, counted_as) in enumerate(stages):
            run = BucketRun(spec, bucket, log.of(number))
            for envelope in run.envelopes(inboxes[number]):
                receiver, payload, counter, count = envelope
                if counter is not None and counted_as is not None:
                    yield receiver, payload, counted_name(counted_as, counter), count
                elif reader is not None:
                    inboxes[reader].add(payload, counter, count)
                else:
                    yield envelope

    # Payloads that are sent are let go.
    yield from map(_frame, framed(envelopes()))


def _part(messages: pa.Table, part: int, parts: int) -> pa.Table:
    """The messages of one ``parts``-th of the left keys."""
    return messages.filter(
        pa.array(buckets_of(as_bytes(column(messages, "key")), _PRIME) % parts == part)
    )


def _frame(envelopes: list[Envelope]) -> pd.DataFrame:
    # Not with this module: Spark imports it once per operator in a process that needs no frames.
    import pandas as pd

    kinds = {"bucket": np.int64, "payload": object, "counter": object, "count": np.int64}
    columns = zip(kinds.items(), zip(*envelopes, strict=True), strict=True)
    return pd.DataFrame({name: np.array(column, kind) for (name, kind), column in columns})
