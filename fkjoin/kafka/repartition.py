"""The staged deployment of an aggregate: regroup and aggregate as queries of their own.

A repartition topic connects them.  Its records are in KIP-904's form (see
``fkjoin.kafka.wire_repartition``), with fkjoin's own bytes of keys, values and versions. Any other
record goes to the dead letters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.codec.arrays import Bools
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import TopologyError
from fkjoin.kafka import wire_repartition as wire_change
from fkjoin.kafka.connection import RAW_COLUMNS, Connection
from fkjoin.kafka.internal import (
    RECORD,
    InternalTopics,
    TopicSettings,
    read_internal,
    record_batch,
    with_headers,
)
from fkjoin.kafka.murmur2 import partitions_of
from fkjoin.kafka.wire import WireRecords, records_in
from fkjoin.plan.physical import InWorkers, Physical, by_spark
from fkjoin.spark.buckets import ENVELOPE, packed_by_bucket
from fkjoin.spark.frame import PROBLEM, RAW
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.packing import Batches, dead_letters, envelopes
from fkjoin.spark.unpacking import unpacked


def repartition_topic(
    application: str,
    aggregate: str,
    connection: Connection | None,
    table: str,
    *,
    settings: TopicSettings,
) -> InternalTopics:
    """The topic between the stages, by default with as many partitions as the table's topic.

    Raises ``TopologyError`` where there is no broker to have it.
    """
    if connection is None:
        raise TopologyError(
            "deployment: a staged aggregate reads tables that are made from topics "
            f"(Table.from_kafka), and {table} is not one; write it to a topic first, or leave the "
            "deployment fused"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{application}-{aggregate}-repartition")
    partitions = {name: settings.partitions or connection.partitions}
    return InternalTopics((connection,), partitions, settings)


def to_records(grouped: Physical, topic: InternalTopics) -> Physical:
    """Envelopes of ``GROUPED`` as records."""
    return InWorkers(grouped, _ToRecords(topic.last, topic.partitions[topic.last]), RECORD)


def read_back(
    spark: SparkSession, topic: InternalTopics, value: pa.Schema, buckets: int
) -> tuple[Physical, Physical]:
    """The topic as envelopes of ``GROUPED``, and the rows that its dead letters come from."""
    read = read_internal(spark, topic.connection, topic.last)
    records = with_headers(read, RAW_COLUMNS, wire_change.REPARTITION_HEADERS)
    unusable = _FindProblems(value)
    raw = on_spark(spark, read).select(*RAW_COLUMNS).schema
    problems = InWorkers(records, unusable, raw.add(PROBLEM, "string"))
    letter = F.struct(*RAW_COLUMNS)
    dead = by_spark(lambda frame: frame.select(letter.alias(RAW), PROBLEM), problems)
    usable = by_spark(lambda frame: frame.drop("headers"), records)
    return InWorkers(usable, _Pack(unusable, buckets), ENVELOPE), dead


@dataclass(frozen=True)
class _ToRecords:
    topic: str
    partitions: int

    def __call__(self, batches: Batches) -> Batches:
        for grouped in unpacked(batches):
            records = wire_change.changes(grouped)
            partitions = partitions_of(records.key, self.partitions)
            yield record_batch(self.topic, partitions, records, wire_change.REPARTITION_HEADERS)


@dataclass(frozen=True)
class _FindProblems:
    """Records that cannot be used, with the reason."""

    value: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            wrong = self.of(batch)
            rows = batch.select(list(RAW_COLUMNS)).append_column(PROBLEM, wrong)
            yield rows.filter(pc.is_valid(wrong))

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """The reason why each record cannot be used; null: it can."""
        problems = wire_change.problems(_records(batch))
        fine = pc.is_null(problems)
        old, new = wire_change.parts(_records(batch.filter(fine)))
        codec = RowCodec(self.value)
        fits: Bools = codec.fits(old) & codec.fits(new)
        if fits.all():
            return problems
        reasons = problems.to_pylist()
        for index in pc.indices_nonzero(fine).to_numpy()[~fits].tolist():
            reasons[index] = "what the row contributes is not of the aggregate's columns"
        return pa.array(reasons, pa.string())


@dataclass(frozen=True)
class _Pack:
    find: _FindProblems
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            if not batch.num_rows:
                continue
            problem = self.find.of(batch)
            fine = pc.is_null(problem)
            if problem.null_count < batch.num_rows:
                yield from dead_letters(problem)
            grouped = wire_change.read_changes(_records(batch.filter(fine)))
            if len(grouped):
                yield envelopes(packed_by_bucket(grouped, "key", self.buckets))


def _records(batch: pa.RecordBatch) -> WireRecords:
    return records_in(batch, wire_change.REPARTITION_HEADERS)
