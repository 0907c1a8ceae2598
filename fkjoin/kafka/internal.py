"""Topics between the stages of a staged join or aggregate: created, written and read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.claim import start_claimed
from fkjoin.checkpoint.files import has_begun
from fkjoin.codec.arrays import valid
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka.admin import create_topics, offset_ranges
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.formats import header
from fkjoin.kafka.new_topics import checked_topics, require_known_topics
from fkjoin.kafka.options import producer_options
from fkjoin.kafka.reading import records_of
from fkjoin.kafka.wire import HEADER_PREFIX, WireRecords
from fkjoin.kafka.writing import start
from fkjoin.plan.physical import Physical, Read, by_spark
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.trigger import Trigger, arguments_of

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
RECORD = spark_schema(_RECORD)
"""Columns of a record, as Spark's sink takes them."""

_OF_TOPICS = "spark.fkjoin.topic."
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Settings that the session may replace.

No record expires: what no stage has read yet would be lost to the result.
"""


@dataclass(frozen=True)
class TopicSettings:
    """The session's settings ``spark.fkjoin.topic.…`` of internal topics, for new ones."""

    partitions: int | None = None
    """Number of partitions; None: as many as the topic that one is partitioned like."""
    replication: int = -1
    """Replicas of each partition; -1: the brokers' default."""
    config: Mapping[str, str] = field(default_factory=lambda: dict(_CONFIG))

    @staticmethod
    def of(spark: SparkSession) -> TopicSettings:
        """Raises ``TopologyError`` for a number that is none."""
        settings = dict(spark.conf.getAll).items()
        own = {name: value for name, value in settings if name.startswith(_OF_TOPICS)}
        config = {name.removeprefix(_OF_TOPICS): value for name, value in own.items()}
        numbers: dict[str, int] = {}
        for name in ("partitions", "replication.factor"):
            if (text := config.pop(name, None)) is not None:
                if not text.isdecimal() or not int(text):
                    raise TopologyError(
                        f"{_OF_TOPICS}{name}: {text!r} is not a number from 1; write one, such as 3"
                    )
                numbers[name] = int(text)
        replication = numbers.get("replication.factor", -1)
        return TopicSettings(numbers.get("partitions"), replication, _CONFIG | config)


@dataclass(frozen=True)
class InternalTopics:
    """Topics that the stages of an operator write to."""

    reads: tuple[Connection, ...]
    """The topics of tables that the stages read; these are at the brokers of the first."""
    partitions: Mapping[str, int]
    """The number of partitions of each, in the order of the stages that write to them."""
    settings: TopicSettings

    @property
    def connection(self) -> Connection:
        return self.reads[0]

    @property
    def last(self) -> str:
        """The topic that the operator's own query reads."""
        return list(self.partitions)[-1]

    def create(self) -> None:
        """Create what is not there; ``TopologyError`` for another number of partitions."""
        create_topics(
            self.connection.bootstrap_servers,
            self.connection.options,
            self.partitions,
            replication=self.settings.replication,
            config=self.settings.config,
        )


@dataclass(frozen=True)
class StageQuery:
    """A stage that runs as a query of its own, perhaps in another process."""

    name: str
    spark: SparkSession
    plan: Physical
    topics: InternalTopics
    reads: tuple[Connection, ...] = ()
    """The topics of tables that it reads."""
    internal: Mapping[str, Connection] = field(default_factory=dict)
    """The internal topics that it reads, with how each is reached."""
    as_begun: Callable[[str], Physical] | None = field(default=None, repr=False, compare=False)
    """Make the plan as the query of a checkpoint reads it; None where each reads the same."""

    @property
    def frame(self) -> DataFrame:
        """The records that it writes, as a streaming DataFrame."""
        return on_spark(self.spark, self.plan)

    def start(
        self,
        checkpoint: str | Path,
        *,
        trigger: Trigger = None,
        options: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start the query with a checkpoint folder of its own.

        ``trigger``, ``options``: as for ``Table.to_kafka``.  Settings ``kafka.…`` of the table's
        source hold for the sink, too, unless ``options`` has others: the internal topics are at the
        same brokers.
        """
        spark, folder, when = self.spark, str(checkpoint), arguments_of(trigger)
        chosen = {**producer_options(self.topics.connection.options), **(options or {})}

        def begin() -> StreamingQuery:
            self.topics.create()
            self._require_first_records(folder)
            begun = Begun.of(spark, folder)
            checked_topics(spark, folder, begun, self._own_reads)
            common: Any = {"checkpoint": folder, "begun": begun, "options": chosen}
            plan = self.plan if self.as_begun is None else self.as_begun(folder)
            servers = self.topics.connection.bootstrap_servers
            return start(spark, plan, None, servers, trigger=when, name=self.name, **common)

        return start_claimed(spark, folder, begin)

    def check(self, checkpoint: str) -> None:
        """Raise what would stop its start, as checkpoint and topics tell it; nothing changes."""
        if self.as_begun is not None:
            self.as_begun(checkpoint)
        self._require_first_records(checkpoint)
        begun = Begun.of(self.spark, checkpoint)
        require_known_topics(begun, checkpoint, self._own_reads, stateful=True)
        require_begun_with(begun, self.spark, checkpoint, self.plan)

    def _require_first_records(self, checkpoint: str) -> None:
        for topic, connection in self.internal.items():
            require_first_records(self.spark, checkpoint, connection, topic)

    @property
    def _own_reads(self) -> list[Connection]:
        """The topics, none of which starts over: other queries would not start over with it."""
        return [replace(read, on_new_topic="fail") for read in self.reads]


def require_first_records(
    spark: SparkSession, checkpoint: str, connection: Connection, topic: str
) -> None:
    """Raise ``FkJoinError`` if a query would begin with a topic that has lost its first records.

    A topic that is not there has lost none.
    """
    if has_begun(spark, checkpoint):
        return
    ranges = offset_ranges(topic, connection.bootstrap_servers, connection.options)
    for partition, offsets in ranges.items():
        if first := offsets.start:
            raise FkJoinError(
                f"internal topic {topic} begins at offset {first} of partition {partition}, and "
                f"checkpoint {checkpoint} is new, so its query would miss the rows before that; "
                "give another application= (a job: another name), and give all stages new "
                "checkpoints"
            )


def read_internal(spark: SparkSession, connection: Connection, topic: str) -> Read:
    """The records of an internal topic, from its beginning, with headers."""
    options = {"startingOffsets": "earliest"}
    for name, value in connection.options.items():
        if name.startswith("kafka.") or name == "maxOffsetsPerTrigger":
            options[name] = value
    return records_of(spark, topic, connection.bootstrap_servers, options)


def with_headers(records: Physical, columns: Sequence[str], headers: Sequence[str]) -> Physical:
    """Columns of an internal topic's records, and its headers as ``records_in`` reads them."""
    chosen = [header(f"{HEADER_PREFIX}{name}").alias(f"header_{name}") for name in headers]
    return by_spark(lambda frame: frame.select(*columns, *chosen), records)


def record_batch(
    topic: str, partitions: np.ndarray, records: WireRecords, headers: Sequence[str]
) -> pa.RecordBatch:
    """Records for Spark's sink (``RECORD``); a header that is null in a record is not there."""
    rows = len(partitions)
    # Headers of a record stand together: the columns, transposed.
    is_there = (
        np.array([valid(data) for data in records.headers], bool).reshape(len(headers), rows).T
    )
    numbers, columns_of_them = np.nonzero(is_there)
    titles = pa.array([f"{HEADER_PREFIX}{name}" for name in headers])
    names = titles.take(pa.array(columns_of_them))
    places = pa.array(columns_of_them * rows + numbers)
    values = pa.concat_arrays(records.headers).take(places).cast(pa.binary())
    counts = is_there.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    items = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    listed = pa.ListArray.from_arrays(pa.array(offsets), items, mask=pa.array(counts == 0))
    columns = [pa.repeat(pa.scalar(topic), rows), pa.array(partitions.astype(np.int32))]
    columns += [pc.cast(records.key, pa.binary()), pc.cast(records.value, pa.binary()), listed]
    return pa.record_batch(columns, schema=_RECORD)
