"""A stage's work on one bucket in one micro-batch: messages in, store opened and committed, messages out."""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from fkjoin.codec import combined_key, tags, versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import (
    ANSWER,
    CHANGE,
    GROUPED,
    JOINED,
    NUMBERED,
    PART,
    RESULT,
    SUBSCRIPTION,
    SUMS,
    column,
    is_answer,
    pack,
    unpack,
)
from fkjoin.errors import InvariantError
from fkjoin.folds.cogrouped import numbered
from fkjoin.spark.buckets import Payload, bucket_ids, buckets_of, framed, packed_by_bucket
from fkjoin.spark.identity import bucket_folder, difference, home_of, read_identity, with_home
from fkjoin.spark.index_home import index_home, note_owner
from fkjoin.spark.operator import TICK, StageSpec
from fkjoin.spark.worker import give_back, settle
from fkjoin.stages import (
    Counters,
    aggregate,
    answered,
    children,
    counters,
    gather,
    join_rows,
    merge,
    pace,
    regroup,
    rekey,
    resolve,
    scatter,
    subscription,
)
from fkjoin.stages.answer_rows import usable
from fkjoin.stages.invariants import GuardedStore, Sum, check_subscriptions, expected_subscriptions, sums_message
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.start_over import PASSED, left_behind, reached
from fkjoin.state import BucketStore, SegmentLog, Store
from fkjoin.state.segments import Meta

if TYPE_CHECKING:
    import pandas as pd

PART_BYTES = 64 << 20
"""Of packed answers: what the stage after them works on at a time.  Unpacked they take up to ten times as much."""

GATHERED_BYTES = 16 << 20
"""Of packed parts of a star, for which gather has the rows of all its right tables in memory at once."""

Envelope = tuple[int, bytes | None, str | None, int]
"""The columns of ``ENVELOPE``."""

_PRIME = 1_000_003
"""So that parts are independent of the buckets that keys are in."""


class BucketRun:
    """One bucket of a stage, for one micro-batch."""

    def __init__(self, spec: StageSpec, bucket: int, log: SegmentLog) -> None:
        self._spec, self._bucket, self._log = spec, bucket, log

    def process(self, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Envelopes in, envelopes out; what the store commits is handed to its log before the last of them."""
        yield from map(_frame, framed(self._envelopes(rows)))  # payloads that are sent are let go

    def _envelopes(self, rows: Iterator[pd.DataFrame]) -> Iterator[Envelope]:
        settle()
        spec, bucket = self._spec, self._bucket
        count: Counters = Counters()
        passed: Counters = Counters()
        payloads: list[bytes] = []
        for frame in rows:
            payloads += (payload for payload in frame["payload"] if payload is not None)
            for name, value in zip(frame["counter"], frame["count"], strict=True):
                if isinstance(name, str):
                    passed[name] += int(value)
        if spec.stage in ("subscription", "children"):  # what rekey and scatter send to left keys is on its way to this bucket
            answers = [payload for payload in payloads if is_answer(payload)]
            payloads = [payload for payload in payloads if not is_answer(payload)]
            if spec.stage == "subscription":
                yield from ((bucket, payload, None, 0) for payload in answers)
        over = passed.pop(TICK, 0) > 0
        ended = [name for name in passed if name.startswith(PASSED)]
        for name in ended:  # a stage that has the source's rows hears of it, and no stage after that
            del passed[name]
        begun, size = time.monotonic(), sum(map(len, payloads))
        if payloads or over or ended:
            with self._store() as store:
                name = f"{spec.operator}-{spec.stage}, bucket {bucket}"
                guarded = GuardedStore(store, name, self._marks) if spec.validate else store
                if bucket == 0:  # the next operator's buckets wake up: one, and to be checked all
                    yield from ((woken, b"", None, 0) for woken in (bucket_ids(spec.buckets) if spec.validate else (0,)))
                messages: list[pa.Table] = []
                for messages in self._parts(payloads):
                    for made in self._run(messages, guarded, count, over):
                        yield from ((of, payload, None, 0) for of, payload in made)
                for topic in reached(ended, guarded) if ended else ():
                    for tombstones in left_behind(guarded, spec.stage, topic):
                        for made in self._run([tombstones], guarded, count, over=False):
                            yield from ((of, payload, None, 0) for of, payload in made)
                store.commit()
                note_owner(self._directory().parent)
                count.update(dict(zip(counters.SIZES, (1, *store.sizes), strict=True)))
                if spec.validate:
                    for sums in self._validated(messages, store, name):
                        yield from ((of, payload, None, 0) for of, payload in sums)
                if store.rebuilt is not None:
                    count[counters.INDEX_REBUILT] += 1
                    logging.getLogger(__name__).warning("%s: index rebuilt from its log: %s", name, store.rebuilt)
            count[f"{spec.stage}-ms"] = round(1000 * (time.monotonic() - begun))
            self._name_hot_keys(count)
            give_back(size)
        for name, value in (passed + count).items():  # adding drops what is zero
            yield bucket, None, name, value

    def _run(self, messages: list[pa.Table], store: Store, count: Counters, over: bool) -> Iterator[Iterator[Payload]]:
        """Payloads for the next operator, with their buckets' ids; ``over``: an interval is."""
        spec = self._spec
        how: Any
        times: Any = {"now_ms": int(time.time() * 1000), "retention_ms": spec.retention_ms}
        if spec.stage == "rekey":
            changes = self._rows(CHANGE, messages, count)
            subscriptions, answers = rekey(
                changes, store, count, right_parts=spec.right_parts, every=spec.every, in_order=any(spec.made), **times
            )
            yield packed_by_bucket(subscriptions, "foreign_key", spec.buckets)
            yield self._by_key(answers)
        elif spec.stage == "scatter":
            changes, rights = _taken(CHANGE, messages), len(self._star.rights)
            subscriptions, rows = scatter(changes, store, count, rights, in_order=any(spec.made), **times)
            yield packed_by_bucket(subscriptions, "foreign_key", spec.buckets)
            yield self._by_key(rows)
        elif spec.stage == "subscription" and spec.star:
            parts = [right.parts for right in self._star.rights]
            sides = _taken(SUBSCRIPTION, messages), _taken(CHANGE, messages)
            pages = answered(*sides, store, count, parts, rights_in_order=spec.made, **times)
            yield from map(self._by_key, pages)
        elif spec.stage == "gather":
            yield self._by_key(gather(_taken(PART, messages), store, count, self._star, in_order=True, **times))
        elif spec.stage == "subscription":
            answers = subscription(
                _taken(SUBSCRIPTION, messages),
                _taken(CHANGE, messages),
                store,
                count,
                shared_log=spec.shared_log,
                in_order=spec.in_order,
                rights_in_order=spec.in_order and any(spec.made),
                right_parts=spec.right_parts,
                every=spec.every,
                **times,
            )
            yield from map(self._by_key, answers)
        elif spec.stage == "children":
            sides = _taken(SUBSCRIPTION, messages), _taken(CHANGE, messages)
            family, source = pickle.loads(spec.family), versions.identity(f"children {spec.operator}")
            made = children(
                *sides,
                store,
                count,
                family,
                source=source,
                every=spec.every,
                in_order=spec.in_order,
                rights_in_order=spec.in_order and any(spec.made),
                **times,
            )
            yield from map(self._by_key, made)
        elif spec.stage == "regroup":
            how = {"every": spec.every, "as_read": spec.as_read, "in_order": spec.in_order and not spec.as_read}
            changed = regroup(self._rows(JOINED, messages, count), store, count, **how, **times)
            if spec.number is not None:
                changed = numbered(changed, spec.number)
            yield self._by_key(changed)
        elif spec.stage == "aggregate":
            source = versions.identity(f"aggregate {spec.operator}")
            grouped = _taken(GROUPED, messages)
            how = {"every": spec.every, "guarded": not spec.in_order}
            results = aggregate(grouped, store, count, pickle.loads(spec.fold), source=source, **how, **times)
            yield self._by_key(results)
        elif spec.stage == "merge":
            source = versions.identity(f"merge {spec.operator}")
            how = {"every": spec.every, "in_order": spec.made}
            merged = merge(_taken(NUMBERED, messages), store, count, spec.tables, source=source, **how, **times)
            yield self._by_key(merged)
        elif spec.stage == "pace":
            sent = pace(_taken(RESULT, messages), store, count, over=over)
            yield from map(self._by_key, sent)
        else:
            how = {"materialized": spec.materialized, "every": spec.every, "as_read": spec.as_read}
            how["in_order"] = spec.in_order and not spec.as_read
            how["complete"] = pickle.loads(spec.complete) if spec.complete else None
            results = resolve(self._joined(messages, count), store, count, **how, **times)
            yield self._by_key(results)

    @property
    def _marks(self) -> bytes:
        """What the keys of the stage's records begin with whose versions decide what is late."""
        spec, late = self._spec, not self._spec.in_order
        if spec.stage in ("rekey", "scatter"):
            return b"" if any(spec.made) else tags.ROW
        if spec.stage in ("subscription", "children"):
            return tags.ROW + tags.RIGHT * (late or not any(spec.made)) + tags.SUBSCRIBER * late
        if spec.stage in ("resolve", "regroup", "gather"):
            return tags.ROW * (late or spec.as_read)
        return tags.ROW + tags.SUBSCRIBER

    def _by_key(self, messages: pa.Table) -> Iterator[Payload]:
        return packed_by_bucket(messages, "key", self._spec.buckets)

    @cached_property
    def _star(self) -> MultiJoin:
        star: MultiJoin = pickle.loads(self._spec.star)
        return star

    def _rows(self, schema: pa.Schema, messages: list[pa.Table], count: Counters) -> pa.Table:
        """The rows that come to the stage; made of a join's answers, where those come."""
        if not self._spec.from_answers:
            return _taken(schema, messages)
        make, answers = pickle.loads(self._spec.from_answers), _taken(ANSWER, messages)
        return usable(make, answers, count, self._spec.operator)

    def _joined(self, messages: list[pa.Table], count: Counters) -> pa.Table:
        """The joined rows that come to resolve: as they are, or made of answers."""
        if self._spec.from_answers:
            return self._rows(JOINED, messages, count)
        made = [join_rows(_taken(ANSWER, messages), self._spec.how), _taken(JOINED, messages)]
        return pa.concat_tables([table for table in made if len(table)] or made)  # columns in one piece, where there is one

    def _name_hot_keys(self, count: Counters) -> None:
        """Give the counters of hot keys readable names."""
        for name in [name for name in count if name.startswith(counters.HOT_KEY)]:
            from pyspark.sql.types import StructType  # seldom needed, and much to load

            from fkjoin.spark.keys_as_json import keys_as_json
            from fkjoin.spark.schemas import arrow_schema

            _, about = read_identity(self._spec.identity.encode())
            found = bytes.fromhex(name.removeprefix(counters.HOT_KEY))
            which = "foreign_key"
            if self._spec.star:  # the first byte tells the right tables apart
                which, found = f"foreign_key{found[0]}", found[1:]
            schema = arrow_schema(which, StructType.fromJson(about[which]))
            key = as_bytes(pa.array([found]))
            count[counters.HOT_KEY + keys_as_json(schema, key)[0].as_py()] = count.pop(name)

    def _parts(self, payloads: list[bytes]) -> Iterator[list[pa.Table]]:
        """The messages to work on at a time: all of them, whose payloads are let go, but of a huge fan-out some left keys after
        the other.
        """
        gathers = self._spec.stage == "gather"
        of_answers = gathers or self._spec.stage in ("resolve", "regroup") or self._spec.from_answers
        parts = 1 + sum(map(len, payloads)) // (GATHERED_BYTES if gathers else PART_BYTES) if of_answers else 1
        if parts == 1:
            payloads.reverse()
            unpacked = []
            while payloads:
                if payload := payloads.pop():
                    unpacked.append(unpack(payload))
            yield unpacked
            return
        for part in range(parts):
            yield [_part(unpack(payload), part, parts) for payload in payloads if payload]

    def _validated(self, messages: list[pa.Table], store: BucketStore, name: str) -> Iterator[list[Payload]]:
        """Check what can be checked here; what the next operator needs for its checks."""
        spec = self._spec
        if (found := store.disagreement()) is not None:
            raise InvariantError(f"store {name}: {found}")
        if spec.stage in ("rekey", "scatter") and spec.in_order:
            sums = [Sum()] * spec.buckets
            rights = len(self._star.rights) if spec.star else 0
            for combined in expected_subscriptions(store, rights):
                numbers = buckets_of(combined_key.decode(combined)[0], spec.buckets)
                sums = [had.plus(combined.filter(pa.array(numbers == at))) for at, had in enumerate(sums)]
            ids = bucket_ids(spec.buckets)
            yield [(ids[at], pack(sums_message(self._bucket, found))) for at, found in enumerate(sums)]
        elif spec.stage in ("subscription", "children") and spec.in_order:
            check_subscriptions(store, _taken(SUMS, messages), spec.buckets, name)

    def _store(self) -> BucketStore:
        """The bucket's store.  A new one gets a folder of its own: an operator may stand twice in a query, under one name."""
        kept = self._log.meta()
        home = uuid.uuid4().hex[:8] if kept is None else home_of(Meta.decode(kept).identity)
        folder = self._directory() / bucket_folder(self._bucket, home)
        return BucketStore(self._log, folder, identity=with_home(self._spec.identity, home).encode(), differs=difference)

    def _directory(self) -> Path:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return index_home(self._spec.index_dir, query or "no-query", self._spec.operator, self._spec.stage)


def _part(messages: pa.Table, part: int, parts: int) -> pa.Table:
    """The messages of one ``parts``-th of the left keys."""
    return messages.filter(pa.array(buckets_of(as_bytes(column(messages, "key")), _PRIME) % parts == part))


def _taken(schema: pa.Schema, messages: list[pa.Table]) -> pa.Table:
    """The messages of one kind in one piece.  They are no longer in the list: memory would hold them twice."""
    chosen = [table for table in messages if table.schema.equals(schema)]
    messages[:] = [table for table in messages if not table.schema.equals(schema)]
    return pa.concat_tables(chosen).combine_chunks() if chosen else schema.empty_table()


def _frame(envelopes: list[Envelope]) -> pd.DataFrame:
    import pandas as pd  # not with this module: Spark imports it once per operator in a process that needs no frames

    kinds = {"bucket": np.int64, "payload": object, "counter": object, "count": np.int64}
    return pd.DataFrame(
        {name: np.array(column, kind) for (name, kind), column in zip(kinds.items(), zip(*envelopes, strict=True), strict=True)}
    )
