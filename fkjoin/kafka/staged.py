"""The staged deployment: rekey, subscription and resolve as queries of their own.

Two internal topics connect them.
Here messages really do overtake each other and come twice; versions alone decide (see
``fkjoin.kafka.wire`` for the records).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from fkjoin.codec import versions
from fkjoin.codec.messages import SUBSCRIPTION, column
from fkjoin.kafka import wire
from fkjoin.kafka.connection import Connection
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
from fkjoin.plan.physical import Counted, InWorkers, Physical, Stage, union
from fkjoin.spark.buckets import ENVELOPE, packed_by_bucket
from fkjoin.spark.packing import Batches, envelopes
from fkjoin.spark.specs import SubscriptionSpec
from fkjoin.spark.unpacking import unpacked


def internal_topics(
    application: str, join: str, left: Connection, right: Connection, *, settings: TopicSettings
) -> InternalTopics:
    """The two topics of a staged join.

    By default they have as many partitions as the right and the left topic.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{application}-{join}")
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
        registration,
    )
    return responses, (rekey, subscribing)


@dataclass(frozen=True)
class ToRecords:
    """Envelopes of ``SUBSCRIPTION`` and ``ANSWER`` → records for the internal topics."""

    topics: InternalTopics

    def __call__(self, batches: Batches) -> Batches:
        # In the order of the stages, which ``internal_topics`` gives them.
        registration, response = self.topics.partitions
        total = self.topics.partitions
        for messages in unpacked(batches):
            if messages.schema.equals(SUBSCRIPTION):
                topic, records = registration, wire.registrations(messages)
                partitions = partitions_of(column(messages, "foreign_key"), total[topic])
            else:
                topic, records = response, wire.responses(messages)
                # The partitions of the topic that the left rows came from.
                places = versions.first_places(column(messages, "version"))
                partitions = places.partition % total[topic]
            yield record_batch(topic, partitions, records, wire.HEADERS)


@dataclass(frozen=True)
class PackMessages:
    """Records of an internal topic → envelopes of ``SUBSCRIPTION`` or ``ANSWER``.

    They are by foreign key, or by left key.
    """

    read: Callable[[wire.WireRecords], pa.Table]
    by: str
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            if batch.num_rows:
                messages = self.read(wire.records_in(batch, wire.HEADERS))
                yield envelopes(packed_by_bucket(messages, self.by, self.buckets))


def _read(spark: SparkSession, topics: InternalTopics, topic: str) -> Physical:
    """Key, value and the four headers of an internal topic's records."""
    records = read_internal(spark, topics.connection, topic)
    return with_headers(records, ("key", "value"), wire.HEADERS)
