"""The staged deployment: rekey, subscription and resolve as queries of their own, connected by two internal topics.

Here messages really do overtake each other and come twice; versions alone decide (see ``fkjoin.wire`` for the records).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import wire
from fkjoin.arrays import as_bytes
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka.formats import header
from fkjoin.kafka.options import client_settings, with_fetching
from fkjoin.kafka.sink import start
from fkjoin.kafka.source import Connection, known_topics
from fkjoin.messages import ANSWER, SUBSCRIPTION, column, unpack
from fkjoin.murmur2 import partitions_of
from fkjoin.spark.buckets import packed_by_bucket
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import envelopes
from fkjoin.wire import Records, Wire

RECORD = "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_RECORD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_HEADER)),
    ]
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class InternalTopics:
    """The two topics of a staged join, and how many partitions they have: those of the right and of the left topic."""

    registration: str
    response: str
    registration_partitions: int
    response_partitions: int
    wire: Wire
    connection: Connection

    def create(self) -> None:
        """Create what is not there yet; ``TopologyError`` when a topic is there with another number of partitions."""
        settings = client_settings(self.connection.bootstrap_servers, self.connection.options)
        if settings is None:
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        wanted = {self.registration: self.registration_partitions, self.response: self.response_partitions}
        there = known_topics(settings)
        for topic, partitions in wanted.items():
            if there.get(topic, partitions) != partitions:
                raise TopologyError(
                    f"internal topic {topic} has {there[topic]} partitions, {partitions} are needed, as many as the topic "
                    "that it is partitioned like: stop the stages when they have caught up, delete it and start them again"
                )
        missing = [NewTopic(topic, partitions) for topic, partitions in wanted.items() if topic not in there]
        client = AdminClient({**settings, "log_level": 0})
        for topic, done in client.create_topics(missing).items() if missing else ():
            try:
                done.result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise FkJoinError(f"internal topic {topic} cannot be created: {error.args[0].str()}") from error


@dataclass(frozen=True)
class StageQuery:
    """A stage that runs as a query of its own; it may be started in another process, and restarted at any time."""

    name: str
    frame: DataFrame
    topics: InternalTopics

    def start(
        self, checkpoint: str | Path, *, trigger: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> StreamingQuery:
        """Start the query with a checkpoint folder of its own.  ``trigger``, ``options``: as for ``Table.to_kafka``."""
        self.topics.create()
        servers = self.topics.connection.bootstrap_servers
        return start(self.frame, None, servers, str(checkpoint), options, trigger, self.name)


def internal_topics(application: str, join: str, left: Connection, right: Connection, form: Wire) -> InternalTopics:
    """Names and partitions of a join's internal topics."""
    for argument, connection in (("left", left), ("right", right)):
        if not connection.partitions:
            raise TopologyError(
                f"{argument}: how many partitions topic {connection.topic} has cannot be asked with these security settings; "
                "the staged deployment needs to know"
            )
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{application}-{join}")
    names = f"{stem}-subscription-registration", f"{stem}-subscription-response"
    return InternalTopics(*names, right.partitions, left.partitions, form, left)


Stage = Callable[[DataFrame, Literal["rekey", "subscription"]], DataFrame]


def staged(
    packed_left: DataFrame, packed_right: DataFrame, stage: Stage, join: str, buckets: int, topics: InternalTopics
) -> tuple[DataFrame, tuple[StageQuery, StageQuery]]:
    """Answers for resolve to read, and the queries of the two stages before it."""
    spark = packed_left.sparkSession
    to_records = ToRecords(topics)
    rekeyed = stage(packed_left, "rekey").mapInArrow(to_records, RECORD)
    registered = _read(spark, topics, topics.registration)
    registrations = registered.mapInArrow(PackRecords("registration", topics.wire, buckets), ENVELOPE)
    answered = stage(registrations.unionAll(packed_right), "subscription").mapInArrow(to_records, RECORD)
    responses = _read(spark, topics, topics.response).mapInArrow(PackRecords("response", topics.wire, buckets), ENVELOPE)
    return responses, (
        StageQuery(f"{join}-rekey", rekeyed, topics),
        StageQuery(f"{join}-subscription", answered, topics),
    )


@dataclass(frozen=True)
class ToRecords:
    """Envelopes of ``SUBSCRIPTION`` and ``ANSWER`` → records for the internal topics, with their partitions."""

    topics: InternalTopics

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for payload in batch.column("payload").to_pylist():
                if payload:
                    messages = unpack(payload)
                    yield self._registrations(messages) if messages.schema.equals(SUBSCRIPTION) else self._responses(messages)

    def _registrations(self, messages: pa.Table) -> pa.RecordBatch:
        to, total = self.topics.registration, self.topics.registration_partitions
        partitions = partitions_of(column(messages, "foreign_key"), total)
        return _record_batch(to, partitions, wire.registrations(messages, self.topics.wire))

    def _responses(self, messages: pa.Table) -> pa.RecordBatch:
        assert messages.schema.equals(ANSWER)
        partitions = wire.source_partitions(column(messages, "version")) % self.topics.response_partitions
        return _record_batch(self.topics.response, partitions, wire.responses(messages, self.topics.wire))


@dataclass(frozen=True)
class PackRecords:
    """Records of an internal topic → envelopes of ``SUBSCRIPTION`` by foreign key, or of ``ANSWER`` by left key."""

    kind: Literal["registration", "response"]
    wire: Wire
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            if not batch.num_rows:
                continue
            headers = tuple(as_bytes(batch.column(name)) for name in wire.HEADERS)
            records = Records(as_bytes(batch.column("key")), as_bytes(batch.column("value")), headers)
            if self.kind == "registration":
                yield envelopes(packed_by_bucket(wire.read_registrations(records, self.wire), "foreign_key", self.buckets))
            else:
                yield envelopes(packed_by_bucket(wire.read_responses(records, self.wire), "key", self.buckets))


def _read(spark: SparkSession, topics: InternalTopics, topic: str) -> DataFrame:
    """Key, value and the four headers of an internal topic's records."""
    options = {n: v for n, v in topics.connection.options.items() if n.startswith("kafka.") or n == "maxOffsetsPerTrigger"}
    records = (
        spark.readStream.format("kafka")
        .options(**with_fetching(options))
        .option("kafka.bootstrap.servers", topics.connection.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    return records.select("key", "value", *[header(f"{wire.PREFIX}{name}").alias(name) for name in wire.HEADERS])


def _record_batch(topic: str, partitions: np.ndarray, records: Records) -> pa.RecordBatch:
    rows = len(partitions)
    present = [(name, data) for name, data in zip(wire.HEADERS, records.headers, strict=True) if data.null_count == 0]
    if present and rows:
        names = pa.array([f"{wire.PREFIX}{name}" for name, _ in present] * rows)
        # Headers of a record stand together: the columns, transposed.
        places = np.arange(len(present) * rows).reshape(len(present), rows).T.reshape(-1)
        values = pa.concat_arrays([data for _, data in present]).take(pa.array(places)).cast(pa.binary())
        items = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
        headers = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * len(present)), items)
    else:
        headers = pa.nulls(rows, pa.list_(_HEADER))
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(topic), rows),
            pa.array(partitions.astype(np.int32)),
            pc.cast(records.key, pa.binary()),
            pc.cast(records.value, pa.binary()),
            headers,
        ],
        schema=_RECORD,
    )
