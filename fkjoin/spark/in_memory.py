"""A physical plan over batches at hand: its stages run in this process, over stores in memory.

Rows of sources come from the caller.  Workers' functions and stages are the objects that Spark
would send to workers.  Expressions that only Spark evaluates are a plain select over the rows at
hand.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.plan.physical import (
    BySpark,
    Counted,
    Given,
    InWorkers,
    MessagesOnly,
    Physical,
    Picked,
    Stage,
    Ticks,
    Union,
    stages,
)
from fkjoin.spark.bucket_run import Envelope, Inbox, InMemoryRun
from fkjoin.spark.buckets import BATCH_MS, TICK, bucket_ids
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.packing import ENVELOPES, counter
from fkjoin.spark.schemas import as_arrow, nullable
from fkjoin.spark.spark_api import analyzed, java_frame, java_session, jvm
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.state import MemoryStore


class LostError(Exception):
    """A batch was lost, as it should be."""


@dataclass
class MemoryStage:
    """A stage with its stores, a bucket's each."""

    spec: StageSpec
    stores: dict[int, MemoryStore] = field(default_factory=dict)

    def run(self, envelopes: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
        """Envelopes in, envelopes out, as the stage's operator has them in a batch."""
        inboxes = defaultdict[int, Inbox](lambda: Inbox(now_ms))
        columns = [column.to_pylist() for column in envelopes.columns]
        for bucket, payload, counted, count in zip(*columns, strict=True):
            inboxes[bucket].add(payload, counted, count)
        sent: list[Envelope] = []
        for bucket in sorted(inboxes):
            store = self.stores.setdefault(bucket, MemoryStore())
            sent += InMemoryRun(self.spec, bucket, store).envelopes(inboxes[bucket])
        if not sent:
            return _no_rows(ENVELOPES)
        return pa.record_batch([*zip(*sent, strict=True)], schema=ENVELOPES)


@dataclass(frozen=True)
class MemoryBatch:
    """One batch of a query."""

    read: Callable[[Physical], pa.RecordBatch | None]
    """Rows of a source; None where it has none."""
    now_ms: int
    before_ms: int
    """The time of the batch before it."""

    def end_of(self, interval_ms: int) -> int | None:
        """The last end of an interval since the batch before; None if none was."""
        end = self.now_ms - self.now_ms % interval_ms
        return end if end > self.before_ms else None


class MemoryQuery:
    """A plan, with its stages' stores."""

    def __init__(self, spark: SparkSession, plan: Physical) -> None:
        self.plan = plan
        self._spark = spark
        self.stages = list(map(MemoryStage, stages(plan)))
        """The stages, each after those that it reads."""
        self.count: Counters = Counters()
        """The counters of all batches."""

    def clear(self) -> None:
        """Forget all state."""
        for stage in self.stages:
            stage.stores = {}
        self.count = Counters()

    def run(self, batch: MemoryBatch) -> pa.RecordBatch:
        """Run a batch; return the plan's rows."""
        return self._run(batch, len(self.stages) + 1)

    def lose(self, batch: MemoryBatch) -> None:
        """Run a batch up to each stage in turn, and lose all that it did."""
        for most in range(1, len(self.stages) + 1):
            stores = copy.deepcopy([stage.stores for stage in self.stages])
            count = self.count.copy()
            self._run(batch, most)
            for stage, before in zip(self.stages, stores, strict=True):
                stage.stores = before
            self.count = count

    def _run(self, batch: MemoryBatch, most: int) -> pa.RecordBatch:
        try:
            run = _BatchRun(self._spark, batch, iter(self.stages[:most]), self.count)
            return run.rows(self.plan)
        except LostError:
            return _none(self._spark, self.plan)


@dataclass
class _BatchRun:
    """A batch on its way through a plan."""

    spark: SparkSession
    batch: MemoryBatch
    stages: Iterator[MemoryStage]
    """Those that are yet to run."""
    count: Counters

    def rows(self, node: Physical) -> pa.RecordBatch:
        """The rows of a node."""
        if isinstance(node, BySpark):
            return self._by_spark(node)
        if isinstance(node, Ticks):
            return self._ticks(node)
        inputs = [self.rows(read) for read in node.inputs]
        if not inputs:
            rows = self.batch.read(node)
            return _none(self.spark, node) if rows is None else rows
        if isinstance(node, Union):
            return joined(inputs, inputs[0].schema)
        (rows,) = inputs
        if isinstance(node, Picked):
            columns = {new: rows.column(name) for new, name in node.names.items()}
            return pa.record_batch(columns)
        if isinstance(node, InWorkers):
            return self._in_workers(node, rows)
        if isinstance(node, Stage):
            stage = next(self.stages, None)
            if stage is None:
                raise LostError
            return stage.run(rows, self.batch.now_ms)
        if isinstance(node, MessagesOnly):
            return rows.filter(pc.is_null(rows.column("counter")))
        assert isinstance(node, Counted)
        self._counted(node, rows)
        return rows

    def _by_spark(self, node: BySpark) -> pa.RecordBatch:
        """Rows by Spark's expressions, of a node and of those below that are such, too, at once."""
        frame = self._frame(node)
        if frame is None:
            return _none(self.spark, node)
        return joined(list(_collected(frame)), as_arrow(columns_of(self.spark, node)))

    def _frame(self, node: Physical) -> DataFrame | None:
        """The rows as a DataFrame; None where nothing has any."""
        if not isinstance(node, BySpark):
            rows = self.rows(node)
            if not rows.num_rows:
                return None
            columns = cast(StructType, nullable(columns_of(self.spark, node)))
            local = self.spark.createDataFrame(pa.Table.from_batches([rows]), columns)
            return _as_given(local, node.frame) if isinstance(node, Given) else local
        frames = [self._frame(read) for read in node.inputs]
        if not any(frame is not None for frame in frames):
            return None
        for number, frame in enumerate(frames):
            if frame is None:
                columns = columns_of(self.spark, node.inputs[number])
                frames[number] = self.spark.createDataFrame([], columns)
        whole: DataFrame = node.transform(*frames)
        return whole

    def _in_workers(self, node: InWorkers, rows: pa.RecordBatch) -> pa.RecordBatch:
        if node.dated:
            times = pa.array(np.full(rows.num_rows, self.batch.now_ms))
            rows = rows.append_column(BATCH_MS, times)
        batches = [rows] if rows.num_rows else []
        schema = as_arrow(columns_of(self.spark, node))
        return joined(list(node.function(iter(batches))), schema)

    def _ticks(self, node: Ticks) -> pa.RecordBatch:
        end = self.batch.end_of(node.interval_ms)
        if end is None:
            return _no_rows(ENVELOPES)
        return counter(TICK, end, bucket_ids(node.buckets))

    def _counted(self, node: Counted, envelopes: pa.RecordBatch) -> None:
        counted = set(counters.ALL)
        for stage in node.stages:
            counted |= set(STAGES[stage].counts)
        names, counts = envelopes.column("counter"), envelopes.column("count")
        for name, number in zip(names.to_pylist(), counts.to_pylist(), strict=True):
            if name in counted:
                self.count[name] += number


def _as_given(rows: DataFrame, frame: DataFrame) -> DataFrame:
    """Rows at hand as rows of a user's DataFrame.

    The user's expressions may be over its own columns, such as ``df["id"]``.
    """
    spark: Any = rows.sparkSession
    relation = analyzed(rows)
    columns = analyzed(frame).output()
    plan = relation.copy(columns, relation.data(), False, relation.stream())
    dataset = jvm().org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(java_session(spark), plan), spark)


def _collected(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame.

    Spark evaluates those over rows at hand while it optimizes, so that no job runs.

    ``toArrow`` runs one, which takes ten times as long.
    """
    spark: Any = frame.sparkSession
    plan = java_frame(frame).queryExecution().executedPlan()
    rows = list(plan.executeCollect())
    converters = getattr(jvm().org.apache.spark.sql.execution.arrow, "ArrowConverters$")
    batches = getattr(converters, "MODULE$").toBatchWithSchemaIterator(
        jvm().PythonUtils.toSeq(rows).iterator(),
        plan.schema(),
        _BYTES,
        _BYTES,
        spark.conf.get("spark.sql.session.timeZone"),
        False,
        False,
    )
    while batches.hasNext():
        yield from pa.ipc.open_stream(batches.next())


_BYTES = 1 << 30
"""Bytes and rows of a batch that Spark hands over at once."""


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of several, under the names of ``schema``."""
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return _no_rows(schema)
    if len(some) == 1:
        return pa.record_batch(some[0].columns, names=schema.names)
    columns = []
    for number, kind in enumerate(schema):
        columns.append(_concatenated([batch.column(number) for batch in some], kind.type))
    return pa.record_batch(columns, names=schema.names)


def _concatenated(columns: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Columns one after the other; of ``kind`` where types differ, as binary and large binary."""
    if any(column.type != columns[0].type for column in columns):
        columns = [column.cast(kind) for column in columns]
    return pa.concat_arrays(columns)


def _none(spark: SparkSession, node: Physical) -> pa.RecordBatch:
    return _no_rows(as_arrow(columns_of(spark, node)))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], names=schema.names)
