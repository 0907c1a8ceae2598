"""The staged deployment: stages of joins and aggregates as queries of their own.

Two internal topics connect the stages of a join: rekey, subscription and resolve.  Here messages
really do overtake each other and come twice; versions alone decide (see ``fkjoin.kafka.wire`` for
the records).

A repartition topic connects the stages of an aggregate: regroup and aggregate.  Its records are in
KIP-904's form (see ``fkjoin.kafka.wire``), with fkjoin's own bytes of keys, values and
versions. Any other record goes to the dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bools
from fkjoin.codec.messages import GROUPED, SUBSCRIPTION, column
from fkjoin.codec.rows import RowCodec
from fkjoin.errors import TopologyError
from fkjoin.kafka import wire
from fkjoin.kafka.connection import RAW_COLUMNS, Connection
from fkjoin.kafka.internal import (
    RECORD,
    InternalTopics,
    StageQuery,
    TopicSettings,
    read_internal,
    record_batch,
    with_headers,
)
from fkjoin.kafka.murmur2 import partitions_of
from fkjoin.plan.physical import Counted, InWorkers, Physical, Stage, by_spark, union
from fkjoin.spark.buckets import ENVELOPE, packed_by_bucket
from fkjoin.spark.frame import PROBLEM, RAW
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.packing import Batches, dead_letters, envelopes
from fkjoin.spark.specs import SubscriptionSpec
from fkjoin.spark.unpacking import unpacked


def internal_topics(
    application: str, join: str, left: Connection, right: Connection, *, settings: TopicSettings
) -> InternalTopics:
    """The two topics of a staged join.

    By default they have as many partitions as the right and the left topic.
    """
    stem = _stem(application, join)
    partitions = {
        f"{stem}-subscription-registration": settings.partitions or right.partitions,
        f"{stem}-subscription-response": settings.partitions or left.partitions,
    }
    return InternalTopics((left, right), partitions, settings)


def staged(
    spark: SparkSession,
    rekeyed: Physical,
    packed_right: Physical,
    subscription: SubscriptionSpec,
    *,
    join: str,
    buckets: int,
    topics: InternalTopics,
) -> tuple[Physical, tuple[StageQuery, StageQuery]]:
    """Answers for resolve to read, and the queries of the two stages before it."""
    to_records = ToRecords(topics)
    left, right = topics.reads
    registration, response = topics.partitions
    registered = _read(spark, topics, registration)
    pack = PackMessages(wire.read_registrations, "foreign_key", buckets)
    subscribed = Stage(union(InWorkers(registered, pack, ENVELOPE), packed_right), subscription)
    answered = Counted(subscribed, f"{join}-subscription", ("subscription",))
    answers = PackMessages(wire.read_responses, "key", buckets)
    responses = InWorkers(_read(spark, topics, response), answers, ENVELOPE)
    registrations = InWorkers(rekeyed, to_records, RECORD)
    rekey = StageQuery(f"{join}-rekey", spark, registrations, topics, (left,))
    subscribing = StageQuery(
        f"{join}-subscription",
        spark,
        InWorkers(answered, to_records, RECORD),
        topics,
        (right,),
        {registration: topics.connection},
    )
    return responses, (rekey, subscribing)


@dataclass(frozen=True)
class ToRecords:
    """Envelopes of ``SUBSCRIPTION``, ``ANSWER`` and ``GROUPED`` → records for internal topics."""

    topics: InternalTopics

    def __call__(self, batches: Batches) -> Batches:
        total, last = self.topics.partitions, self.topics.last
        for messages in unpacked(batches):
            topic, headers = last, wire.HEADERS
            if messages.schema.equals(SUBSCRIPTION):
                topic, records = next(iter(total)), wire.registrations(messages)
                partitions = partitions_of(column(messages, "foreign_key"), total[topic])
            elif messages.schema.equals(GROUPED):
                records, headers = wire.changes(messages), wire.REPARTITION_HEADERS
                partitions = partitions_of(records.key, total[topic])
            else:
                records = wire.responses(messages)
                # The partitions of the topic that the left rows came from.
                places = versions.first_places(column(messages, "version"))
                partitions = places.partition % total[topic]
            yield record_batch(topic, partitions, records, headers)


@dataclass(frozen=True)
class PackMessages:
    """Records of an internal topic → envelopes of ``SUBSCRIPTION``, ``ANSWER`` or ``GROUPED``.

    They are by foreign key, by left key, or by group.  Records with a problem are dropped and
    counted.
    """

    read: Callable[[wire.WireRecords], pa.Table]
    by: str
    buckets: int
    headers: tuple[str, ...] = wire.HEADERS
    find: _FindProblems | None = None

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            if self.find is not None:
                problem = self.find.of(batch)
                if problem.null_count < batch.num_rows:
                    yield from dead_letters(problem)
                batch = batch.filter(pc.is_null(problem))
            if batch.num_rows:
                messages = self.read(wire.records_in(batch, self.headers))
                yield envelopes(packed_by_bucket(messages, self.by, self.buckets))


def _read(spark: SparkSession, topics: InternalTopics, topic: str) -> Physical:
    """Key, value and the four headers of an internal topic's records."""
    records = read_internal(spark, topics.connection, topic)
    return with_headers(records, ("key", "value"), wire.HEADERS)


def _stem(application: str, operator: str) -> str:
    """The beginning of the names of an operator's topics."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{application}-{operator}")


def repartition_topic(
    application: str,
    aggregate: str,
    read: Mapping[str, Connection | None],
    *,
    settings: TopicSettings,
) -> InternalTopics:
    """The topic between the stages, by default with as many partitions as the first that is read.

    ``read``: all tables that are read, by name, the left ones first.  Raises ``TopologyError`` if
    one of them is not a topic: the stages would not know what the other ones have learned of it.
    """
    connections = []
    for table, connection in read.items():
        if connection is None:
            raise TopologyError(
                "deployment: a staged aggregate reads tables that are made from topics "
                f"(Table.from_kafka), and {table} is not one; write it to a topic first, or leave "
                "the deployment fused"
            )
        connections.append(connection)
    name = f"{_stem(application, aggregate)}-repartition"
    partitions = {name: settings.partitions or connections[0].partitions}
    return InternalTopics(tuple(connections), partitions, settings)


def to_records(grouped: Physical, topic: InternalTopics) -> Physical:
    """Envelopes of ``GROUPED`` as records."""
    return InWorkers(grouped, ToRecords(topic), RECORD)


def read_back(
    spark: SparkSession, topic: InternalTopics, value: pa.Schema, buckets: int
) -> tuple[Physical, Physical]:
    """The topic as envelopes of ``GROUPED``, and the rows that its dead letters come from."""
    read = read_internal(spark, topic.connection, topic.last)
    records = with_headers(read, RAW_COLUMNS, wire.REPARTITION_HEADERS)
    unusable = _FindProblems(value)
    raw = on_spark(spark, read).select(*RAW_COLUMNS).schema
    problems = InWorkers(records, unusable, raw.add(PROBLEM, "string"))
    letter = F.struct(*RAW_COLUMNS)
    dead = by_spark(lambda frame: frame.select(letter.alias(RAW), PROBLEM), problems)
    usable = by_spark(lambda frame: frame.drop("headers"), records)
    headers = wire.REPARTITION_HEADERS
    pack = PackMessages(wire.read_changes, "key", buckets, headers, unusable)
    return InWorkers(usable, pack, ENVELOPE), dead


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
        problems = wire.problems(wire.records_in(batch, wire.REPARTITION_HEADERS))
        fine = pc.is_null(problems)
        usable = wire.records_in(batch.filter(fine), wire.REPARTITION_HEADERS)
        old, new = wire.parts(usable)
        codec = RowCodec(self.value)
        fits: Bools = codec.fits(old) & codec.fits(new)
        if fits.all():
            return problems
        reasons = problems.to_pylist()
        for index in pc.indices_nonzero(fine).to_numpy()[~fits].tolist():
            reasons[index] = "what the row contributes is not of the aggregate's columns"
        return pa.array(reasons, pa.string())
