"""The staged deployment: rekey, subscription and resolve as queries of their own.

Two internal topics connect them.
Here messages really do overtake each other and come twice; versions alone decide (see
``fkjoin.kafka.wire`` for the records).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from fkjoin.codec.messages import ANSWER, SUBSCRIPTION, column
from fkjoin.kafka import wire
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.formats import header
from fkjoin.kafka.internal import RECORD, StageQuery, TopicSettings, read_internal, record_batch
from fkjoin.kafka.murmur2 import partitions_of
from fkjoin.plan.physical import Counted, InWorkers, Physical, Stage, by_spark, union
from fkjoin.spark.buckets import ENVELOPE, packed_by_bucket
from fkjoin.spark.packing import Batches, envelopes
from fkjoin.spark.specs import SubscriptionSpec
from fkjoin.spark.unpacking import unpacked


@dataclass(frozen=True)
class InternalTopics:
    """The two topics of a staged join, and how many partitions they have.

    By default they have as many as the right and the left topic.
    """

    registration: str
    response: str
    registration_partitions: int
    response_partitions: int
    connection: Connection
    """The connection of the left topic."""
    right: Connection
    settings: TopicSettings

    @property
    def last(self) -> str:
        """The topic that resolve reads."""
        return self.response

    def create(self) -> None:
        """Create what is not there; ``TopologyError`` for another number of partitions."""
        wanted = {
            self.registration: self.registration_partitions,
            self.response: self.response_partitions,
        }
        self.settings.create(self.connection, wanted)


def internal_topics(
    application: str, join: str, left: Connection, right: Connection, *, settings: TopicSettings
) -> InternalTopics:
    """Names and partitions of a join's internal topics."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{application}-{join}")
    names = f"{stem}-subscription-registration", f"{stem}-subscription-response"
    partitions = settings.partitions or right.partitions, settings.partitions or left.partitions
    return InternalTopics(*names, *partitions, left, right, settings)


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
    registered = _read(spark, topics, topics.registration)
    pack = PackMessages("registration", buckets)
    subscribed = Stage(union(InWorkers(registered, pack, ENVELOPE), packed_right), subscription)
    answered = Counted(subscribed, f"{join}-subscription", ("subscription",))
    answers = PackMessages("response", buckets)
    responses = InWorkers(_read(spark, topics, topics.response), answers, ENVELOPE)
    registrations = InWorkers(rekeyed, to_records, RECORD)
    rekey = StageQuery(f"{join}-rekey", spark, registrations, topics, (topics.connection,))
    subscribing = StageQuery(
        f"{join}-subscription",
        spark,
        InWorkers(answered, to_records, RECORD),
        topics,
        (topics.right,),
        topics.registration,
    )
    return responses, (rekey, subscribing)


@dataclass(frozen=True)
class ToRecords:
    """Envelopes of ``SUBSCRIPTION`` and ``ANSWER`` → records for the internal topics."""

    topics: InternalTopics

    def __call__(self, batches: Batches) -> Batches:
        for messages in unpacked(batches):
            subscribes = messages.schema.equals(SUBSCRIPTION)
            yield (self._registrations if subscribes else self._responses)(messages)

    def _registrations(self, messages: pa.Table) -> pa.RecordBatch:
        to, total = self.topics.registration, self.topics.registration_partitions
        partitions = partitions_of(column(messages, "foreign_key"), total)
        return record_batch(to, partitions, wire.registrations(messages), wire.HEADERS)

    def _responses(self, messages: pa.Table) -> pa.RecordBatch:
        assert messages.schema.equals(ANSWER)
        to, total = self.topics.response, self.topics.response_partitions
        partitions = wire.source_partitions(column(messages, "version")) % total
        return record_batch(to, partitions, wire.responses(messages), wire.HEADERS)


@dataclass(frozen=True)
class PackMessages:
    """Records of an internal topic → envelopes of ``SUBSCRIPTION`` or ``ANSWER``.

    They are by foreign key, or by left key.
    """

    kind: Literal["registration", "response"]
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            if not batch.num_rows:
                continue
            records = wire.records_in(batch, wire.HEADERS)
            if self.kind == "registration":
                messages, by = wire.read_registrations(records), "foreign_key"
            else:
                messages, by = wire.read_responses(records), "key"
            yield envelopes(packed_by_bucket(messages, by, self.buckets))


def _read(spark: SparkSession, topics: InternalTopics, topic: str) -> Physical:
    """Key, value and the four headers of an internal topic's records."""
    headers = [header(f"{wire.HEADER_PREFIX}{name}").alias(name) for name in wire.HEADERS]
    records = read_internal(spark, topics.connection, topic)
    return by_spark(lambda frame: frame.select("key", "value", *headers), records)
