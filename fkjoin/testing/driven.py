"""A table's queries without Spark's streaming.

Their plans run over rows that are fed, with topics in memory between them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from fkjoin.checkpoint.stores import Identified
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.physical import Physical, Read, Ticks, reads, topics_read
from fkjoin.spark.identity import read_identity
from fkjoin.spark.in_memory import MemoryBatch, MemoryQuery, MemoryStage, joined
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.schemas import as_arrow
from fkjoin.spark.spark_api import require_classic
from fkjoin.stages.counters import Counters
from fkjoin.state import MemoryStore

_HEARD = 6
"""The number of ends that are heard before and after each time.

From the first to the last, a source becomes idle.
"""


@dataclass
class DrivenStage(Identified):
    """A stage of a driven query, as readers of its stores know it."""

    memory_stage: MemoryStage
    checkpoint = "the driver"

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.memory_stage.spec.state.identity.encode())

    @property
    def stores(self) -> dict[int, MemoryStore]:
        return self.memory_stage.stores


class DrivenQuery(MemoryQuery):
    """A query, with the records of internal topics that it has not read yet."""

    def __init__(self, spark: SparkSession, plan: Physical) -> None:
        super().__init__(spark, plan)
        topics = topics_read(plan)
        self.waiting: dict[str, list[pa.RecordBatch]] = {topic: [] for topic in topics}

    def clear(self) -> None:
        """Forget all state, and all records."""
        super().clear()
        self.waiting = {topic: [] for topic in self.waiting}

    def records(self, mixed: random.Random | None) -> dict[str, pa.RecordBatch]:
        """The records to read now, by topic.

        ``mixed``: they come in any order; some of them wait for a later batch, and others come
        again in it.
        """
        records: dict[str, pa.RecordBatch] = {}
        for topic, waiting in self.waiting.items():
            if not waiting:
                continue
            records[topic] = joined(waiting, waiting[0].schema)
            waiting.clear()
            if mixed is not None:
                records[topic], later = _mixed(records[topic], mixed)
                waiting.append(later)
        return records


def _mixed(records: pa.RecordBatch, by: random.Random) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Records in any order, and those that come later.

    These are the rest of them, and some that have come already.
    """
    order = by.sample(range(records.num_rows), records.num_rows)
    now = order[: by.randint(0, len(order))]
    later = [*order[len(now) :], *now[: len(now) // 2]]
    return records.take(pa.array(now, pa.int64())), records.take(pa.array(later, pa.int64()))


class DrivenTopology:
    """The queries that keep a table up to date.

    These are the queries of its staged operators, and its own, which is the last.
    """

    def __init__(self, table: TablePlan) -> None:
        self._spark = table.spark
        require_classic(
            self._spark,
            "fkjoin.testing.Driver",
            "make the table in a process with a classic session",
        )
        plans = [*(query.plan for query in table.stages), table.results_plan]
        self.queries = [DrivenQuery(self._spark, plan) for plan in plans]

    @property
    def stages(self) -> list[DrivenStage]:
        """The stages of all queries."""
        stages: list[DrivenStage] = []
        for query in self.queries:
            stages += map(DrivenStage, query.stages)
        return stages

    @property
    def count(self) -> Counters:
        """The counters of all queries."""
        return sum((query.count for query in self.queries), Counters())

    def clear(self) -> None:
        """Forget all state, and all records."""
        for query in self.queries:
            query.clear()

    def ends(self, before_ms: int, now_ms: int) -> list[int]:
        """The ends of clocks' intervals that must be heard on the way from one time to another."""
        intervals: set[int] = set()
        for query in self.queries:
            intervals |= {node.interval_ms for node in reads(query.plan) if isinstance(node, Ticks)}
        return ends_between(before_ms, now_ms, intervals)

    def run(
        self,
        batch: MemoryBatch,
        *,
        lose: bool = False,
        mixed: random.Random | None = None,
    ) -> tuple[pa.RecordBatch, MemoryBatch]:
        """Run a batch, which reads inputs.

        Return the rows of the table, and the batch with the records that were written in it.
        ``lose``: each query loses it first, up to each of its stages, and what it wrote stays.
        ``mixed``: see ``records``.
        """
        written: dict[str, pa.RecordBatch] = {}
        for query in self.queries:
            come = self._reading(batch, query.records(mixed))
            if lose:
                query.lose(come)
            rows = query.run(come)
            if query is not self.queries[-1]:
                written |= self._deliver(rows, times=1 + lose)
        return rows, self._reading(batch, written)

    def _deliver(self, records: pa.RecordBatch, *, times: int) -> dict[str, pa.RecordBatch]:
        """Hand records of internal topics to the queries that read them; return them by topic."""
        topics = records.column("topic")
        names = pc.unique(topics).to_pylist()
        by_topic = {name: records.filter(pc.equal(topics, name)) for name in names}
        for query in self.queries:
            for topic in by_topic.keys() & query.waiting.keys():
                query.waiting[topic] += [by_topic[topic]] * times
        return by_topic

    def _reading(self, batch: MemoryBatch, records: Mapping[str, pa.RecordBatch]) -> MemoryBatch:
        """The batch, which also reads records of internal topics."""

        def read(node: Physical) -> pa.RecordBatch | None:
            if not isinstance(node, Read):
                return batch.read(node)
            come = records.get(node.options["subscribe"])
            if come is None:
                return None
            return _as_read(come, batch.now_ms, as_arrow(columns_of(self._spark, node)))

        return replace(batch, read=read)


def _as_read(records: pa.RecordBatch, now_ms: int, schema: pa.Schema) -> pa.RecordBatch:
    """Records as Spark's source of topics gives them."""
    rows = records.num_rows
    columns = {name: records.column(name) for name in records.schema.names}
    columns["offset"] = pa.array(np.arange(rows))
    columns["timestamp"] = pa.array(np.full(rows, now_ms * 1000))
    columns["timestampType"] = pa.array(np.zeros(rows, np.int32))
    return pa.record_batch([columns[field.name].cast(field.type) for field in schema], schema)


def ends_between(before_ms: int, now_ms: int, intervals: Collection[int]) -> list[int]:
    """The ends of intervals between two times that a table has to hear, in order.

    *Law*: batches without rows come at these ends, and one at the second time.  The table is then
    as if each end of each interval had been heard.  Not all are needed.  Ends soon after a time at
    which something happens bring all that waits, and make idle sources idle.  Then nothing happens.
    A clock that is heard again after a pause counts silence again (``stages.stream_time``).  So
    ends just before the next such time make these sources idle again.  Something happens at both
    ends of the way, and when longer intervals of other clocks end.
    """
    times = {before_ms, now_ms}
    for interval in sorted(set(intervals), reverse=True):
        times.update(*(_near(time, interval) for time in times))
    return sorted(time for time in times if before_ms < time < now_ms)


def _near(time: int, interval: int) -> Iterator[int]:
    last = time // interval
    yield from (number * interval for number in range(last - _HEARD + 1, last + _HEARD + 1))
