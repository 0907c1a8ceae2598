"""Queries without Spark's streaming: their plans, run part by part over batches that are given, with stores in memory.

A plan is the one that Spark has analyzed for the query.  Its stages, packers and unpackers are the objects that Spark would
send to workers.  Only what reads a source is another: rows come from the caller, and records of internal topics from memory.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from fkjoin.checkpoint.begun_with import spec_of
from fkjoin.checkpoint.stores import Identified
from fkjoin.errors import TopologyError
from fkjoin.lowering.lowered import Lowered
from fkjoin.spark.clock import Clock
from fkjoin.spark.identity import read_identity
from fkjoin.spark.operator import BATCH_MS
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import Counters, counters
from fkjoin.stages.counters import metrics_name
from fkjoin.state import MemoryStore
from fkjoin.testing.driven_clock import ends_between
from fkjoin.testing.driven_inputs import Input, place_of
from fkjoin.testing.plan_parts import GIVEN, Leaf, Observed, PlanPart, Stateful, joined, parts_of

_COUNTED = {*counters.ALL, *(item for stage in STAGES.values() for item in stage.counts)}


_Records = Mapping[str, pa.RecordBatch]

_INTERVAL = "interval_ms"
"""The option of a clock."""

_TOPIC = "kafka"
"""The format of internal topics."""


class DrivenBatch(NamedTuple):
    """One batch of a query."""

    rows: Mapping[str, pa.RecordBatch]
    """Rows of inputs' frames, by the inputs' names."""
    now_ms: int
    before_ms: int
    """The time of the batch before it."""
    records: _Records = MappingProxyType({})
    """Records of internal topics, by the topics' names."""

    def tick(self, interval_ms: int) -> int | None:
        """Return the last end of an interval since the batch before; None if none was."""
        end = self.now_ms - self.now_ms % interval_ms
        return end if end > self.before_ms else None


class LostError(Exception):
    """A batch was lost, as it should be."""


@dataclass
class DrivenStage(Identified):
    """A stage with its stores, a bucket's each."""

    spec: StageSpec
    stores: dict[int, MemoryStore] = field(default_factory=dict)
    checkpoint = "the driver"

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.spec.state.identity.encode())

    def over(self, envelopes: pa.RecordBatch, now_ms: int, schema: pa.Schema) -> pa.RecordBatch:
        """Envelopes in, envelopes out, as the stage's operator has them in a batch."""
        from fkjoin.spark.bucket_run import InMemoryRun

        frame = pd.DataFrame(dict(zip(schema.names, (column.to_pylist() for column in envelopes.columns), strict=True)))
        frame[BATCH_MS] = now_ms
        sent: list[pd.DataFrame] = []
        for bucket in sorted(map(int, frame["bucket"].unique())):
            store = self.stores.setdefault(bucket, MemoryStore())
            rows = frame[frame["bucket"] == bucket]
            sent += InMemoryRun(self.spec, bucket, store).process(iter([rows]))
        return joined([_envelopes(one, schema) for one in sent], schema)


def _envelopes(frame: pd.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(frame[name].to_numpy(), kind.type, from_pandas=True) for name, kind in zip(frame, schema, strict=True)]
    return pa.record_batch(columns, names=schema.names)


class DrivenQuery:
    """The query that keeps a frame up to date."""

    def __init__(
        self,
        frame: DataFrame,
        inputs: Mapping[str, Input],
        unpack: UnpackResults | None = None,
        topics: Collection[str] = (),
    ) -> None:
        """``topics``: the internal topics that there are."""
        self._unpack = unpack
        self._names = {place_of(number): name for number, name in enumerate(inputs)}
        self._top = parts_of(frame, {name: one.frame for name, one in inputs.items() if one.of_events})
        self._stages: dict[int, DrivenStage] = {}
        self.topics: list[str] = []
        """Internal topics that it reads, each once."""
        self.intervals: set[int] = set()
        """The intervals of its clocks, in milliseconds."""
        for part in _all(self._top):
            if isinstance(part, Stateful):
                self._stages[id(part)] = DrivenStage(_spec(part))
            elif isinstance(part, Leaf) and part.source == _TOPIC and (topic := part.options.get("subscribe", "")) in topics:
                self.topics += [] if topic in self.topics else [topic]
            elif isinstance(part, Leaf) and part.source == Clock.name():
                self.intervals.add(int(part.options[_INTERVAL]))
            elif isinstance(part, Leaf):
                self._require_known(part)
        self.count: Counters = Counters()

    @property
    def stages(self) -> list[DrivenStage]:
        """The stages, each after those that it reads."""
        return list(self._stages.values())

    def clear(self) -> None:
        """Forget all state."""
        for stage in self.stages:
            stage.stores = {}
        self.count = Counters()

    def run(self, batch: DrivenBatch) -> pa.RecordBatch:
        """Run a batch; return the rows of the frame, or what ``unpack`` makes of them."""
        return self._run(batch, len(self._stages))

    def lose(self, batch: DrivenBatch) -> None:
        """Run a batch up to each stage in turn, and lose all that it did."""
        for stages in range(1, len(self._stages) + 1):
            kept = copy.deepcopy([stage.stores for stage in self.stages]), self.count.copy()
            self._run(batch, stages)
            for stage, stores in zip(self.stages, kept[0], strict=True):
                stage.stores = stores
            self.count = kept[1]

    def _run(self, batch: DrivenBatch, stages: int) -> pa.RecordBatch:
        done: list[DrivenStage] = []
        try:
            found = self._rows(self._top, batch, done, stages)
        except LostError:
            return joined([], self._top.schema)
        return found if self._unpack is None else joined(list(self._unpack(iter([found]))), self._unpack.schema)

    def _rows(self, part: PlanPart, batch: DrivenBatch, done: list[DrivenStage], stages: int) -> pa.RecordBatch:
        below = [self._rows(one, batch, done, stages) for one in part.below]
        if isinstance(part, Leaf):
            return self._read(part, batch)
        if isinstance(part, Stateful):
            stage = self._stages[id(part)]
            found = stage.over(below[0], batch.now_ms, part.schema)
            done.append(stage)
            if len(done) == stages < len(self._stages):
                raise LostError
            return found
        if isinstance(part, Observed):
            if part.name.startswith(metrics_name("")):
                self._count(below[0])
            return below[0]
        assert callable(part)
        made: pa.RecordBatch = part(*below)
        return made

    def _read(self, leaf: Leaf, batch: DrivenBatch) -> pa.RecordBatch:
        """Rows of a source.  A new kind of source is read here, and known to ``_require_known``."""
        if leaf.source == Clock.name():
            tick = batch.tick(int(leaf.options[_INTERVAL]))
            return pa.record_batch([pa.array([] if tick is None else [tick], pa.int64())], names=leaf.schema.names)
        if leaf.source == _TOPIC:
            records = batch.records.get(leaf.options["subscribe"])
            return joined([] if records is None else [_as_read(records, batch.now_ms, leaf.schema)], leaf.schema)
        rows = batch.rows.get(leaf.options["name"] if leaf.source == GIVEN else self._names[leaf.options["path"]])
        return joined([] if rows is None else [rows], leaf.schema)

    def _require_known(self, leaf: Leaf) -> None:
        if leaf.source != GIVEN and leaf.options.get("path") not in self._names:
            raise TopologyError(
                f"table: its query reads a source of format {leaf.source} that is not one of its tables, and has no input"
            )

    def _count(self, envelopes: pa.RecordBatch) -> None:
        named = zip(envelopes.column("counter").to_pylist(), envelopes.column("count").to_pylist(), strict=True)
        for name, count in named:
            if name in _COUNTED:
                self.count[name] += count


def _all(part: PlanPart) -> Iterator[PlanPart]:
    """The parts of a plan, each after those that it reads."""
    for below in part.below:
        yield from _all(below)
    yield part


def _spec(part: Stateful) -> StageSpec:
    spec = spec_of(part.function)
    if spec is None:
        raise TopologyError("table: its query has a stateful operator that is not fkjoin's, and only Spark runs that")
    return spec


def _as_read(records: pa.RecordBatch, now_ms: int, schema: pa.Schema) -> pa.RecordBatch:
    """Records as Spark's source of topics gives them."""
    rows = records.num_rows
    more = {"offset": np.arange(rows), "timestamp": np.full(rows, now_ms * 1000), "timestampType": np.zeros(rows, int)}
    columns = [records.column(name) if name in records.schema.names else pa.array(more[name]) for name in schema.names]
    return pa.record_batch([one.cast(kind.type) for one, kind in zip(columns, schema, strict=True)], schema)


def _mixed(records: pa.RecordBatch, by: random.Random) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Records of a batch in any order, and those that come later: the rest of them, and some that have come already."""
    places = by.sample(range(records.num_rows), records.num_rows)
    now = places[: by.randint(0, len(places))]
    later = [*places[len(now) :], *now[: len(now) // 2]]
    return records.take(pa.array(now, pa.int64())), records.take(pa.array(later, pa.int64()))


class DrivenTopology:
    """The queries that keep a table up to date: those of its staged operators, and its own.

    Each has what was written of the internal topics that it reads, as far as it has not read it.
    """

    def __init__(self, lowered: Lowered, inputs: Mapping[str, Input]) -> None:
        frame, unpack = (lowered.frame, None) if lowered.encoded is None else lowered.encoded
        topics = {topic for stage in lowered.stages for topic in (stage.internal, stage.topics.last) if topic is not None}
        self._own = DrivenQuery(frame, inputs, unpack, topics)
        self._before = [DrivenQuery(stage.frame, inputs, topics=topics) for stage in lowered.stages]
        letters = lowered.dead_letters
        self._letters = None if letters is None else (letters, inputs, topics)
        self._waiting: dict[tuple[int, str], list[pa.RecordBatch]] = defaultdict(list)

    @property
    def queries(self) -> list[DrivenQuery]:
        """The queries, each after those that write what it reads."""
        return [*self._before, self._own]

    @property
    def stages(self) -> list[DrivenStage]:
        return [stage for query in self.queries for stage in query.stages]

    def ends(self, before_ms: int, now_ms: int) -> list[int]:
        """The ends of clocks' intervals that have to be heard on the way from one time to another."""
        return ends_between(before_ms, now_ms, {one for query in self.queries for one in query.intervals})

    @property
    def count(self) -> Counters:
        found: Counters = Counters()
        for query in self.queries:
            found.update(query.count)
        return found

    def letters(self) -> DrivenQuery | None:
        """A query of the dead letters, which is new."""
        return None if self._letters is None else DrivenQuery(self._letters[0], self._letters[1], topics=self._letters[2])

    def clear(self) -> None:
        """Forget all state, and all records."""
        for query in self.queries:
            query.clear()
        self._waiting.clear()

    def run(self, batch: DrivenBatch, *, lose: bool, mixed: random.Random | None = None) -> tuple[pa.RecordBatch, DrivenBatch]:
        """Run a batch; return the rows of the table's own query, and the batch with the records that were written in it.

        ``lose``: each query loses it first, up to each of its stages, and what it wrote stays.  ``mixed``: some records wait
        for a later batch, and others come twice, in any order.
        """
        written: dict[str, pa.RecordBatch] = {}
        for place, query in enumerate(self._before):
            found = self._run(place, query, batch, lose=lose, mixed=mixed)
            for topic in pc.unique(found.column("topic")).to_pylist():
                written[topic] = found.filter(pc.equal(found.column("topic"), topic))
                for reader, other in enumerate(self.queries):
                    if topic in other.topics:
                        self._waiting[reader, topic] += [written[topic]] * (1 + lose)
        found = self._run(len(self._before), self._own, batch, lose=lose, mixed=mixed)
        return found, batch._replace(records=written)

    def _run(
        self, place: int, query: DrivenQuery, batch: DrivenBatch, *, lose: bool, mixed: random.Random | None
    ) -> pa.RecordBatch:
        """Run a query with what waits for it of its topics."""
        waiting = {topic: self._waiting.pop((place, topic), []) for topic in query.topics}
        records = {topic: joined(some, some[0].schema) for topic, some in waiting.items() if some}
        if mixed is not None:
            for topic, some in records.items():
                records[topic], later = _mixed(some, mixed)
                self._waiting[place, topic].append(later)
        one = batch._replace(records=records)
        if lose:
            query.lose(one)
        return query.run(one)
