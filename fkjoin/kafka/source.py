"""A topic as a table: each record is an upsert or a tombstone of its key, ordered by its offset in its partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin import versions
from fkjoin.columns import fields_of, require_plain_keys, type_of
from fkjoin.errors import FkJoinError, TopologyError, nearest
from fkjoin.frame import CHAINS, DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.kafka import positions
from fkjoin.kafka.formats import Format, as_format, decode_key, key_reader, reader
from fkjoin.kafka.options import client_settings, masked, source_options, with_fetching
from fkjoin.names import require_apart
from fkjoin.spark.topic_records import TAKEN, DeadRecords, TopicRecords
from fkjoin.topology import Source

OnError = Literal["fail", "dead-letter", "skip"]

RAW_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""What a dead letter says of its record, besides the reason."""


_MOST_ROOTS = 16


@dataclass(frozen=True)
class Connection:
    """Where a topic is, and how to reach it; ``partitions`` is 0 when that cannot be asked."""

    topic: str
    bootstrap_servers: str
    options: dict[str, str] = field(repr=False)
    partitions: int


class TopicRead(NamedTuple):
    """A topic's node and frame, and where it comes from."""

    node: Source
    frame: DataFrame
    connection: Connection
    dead: DataFrame
    """``RAW`` and ``PROBLEM``."""
    unread: tuple[DataFrame, TopicRecords] | None
    """The records, and how workers read them; None where they cannot."""


def read_topic(
    spark: SparkSession,
    topic: str,
    bootstrap_servers: str,
    key: Format | str,
    value: Format | str,
    name: str | None,
    on_error: OnError,
    headers: bool,
    roots: int | None,
    options: Mapping[str, Any] | None,
) -> TopicRead:
    """See ``Table.from_kafka``."""
    if on_error not in get_args(OnError):
        raise TopologyError(f"on_error: {on_error!r} is not one of {', '.join(get_args(OnError))}")
    if roots is not None and not 1 <= roots <= _MOST_ROOTS:
        raise TopologyError(f"roots: {roots!r} is not a number from 1 to {_MOST_ROOTS}: of as many topics the records are made")
    chosen = source_options(options)
    partitions = require_topic(topic, bootstrap_servers, chosen)
    try:
        records = (
            spark.readStream.format("kafka")
            .options(**with_fetching(chosen))
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("subscribe", topic)
            .option("includeHeaders", "true")
            .load()
        )
    except Exception as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise TopologyError(
            "Spark's Kafka connector is not there: start the session with "
            'fkjoin.session(jars_packages="org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION"), VERSION being that of your '
            "PySpark (spark-submit: --packages)"
        ) from error
    key_format, value_format = as_format("key", key, "key"), as_format("value", value, "value")
    decoded_key, decoded = decode_key(key_format, F.col("key")), value_format.decode(F.col("value"))
    key_names = fields_of(records, decoded_key.row)
    require_plain_keys("key", type_of(records, decoded_key.row))
    row = decoded.row
    _require_names(key_names, fields_of(records, row))
    if headers:
        names = fields_of(records, row)
        if "headers" in map(str.lower, names):
            raise TopologyError("headers: the value has a column 'headers' already; leave headers=False")
        row = F.when(row.isNotNull(), F.struct(*[row.getField(n).alias(n) for n in names], F.col("headers")))
    problem = F.coalesce(
        F.when(F.col("key").isNull(), F.lit("null key")),
        F.concat(F.lit("key: "), decoded_key.problem),
        *[F.when(decoded_key.row.getField(n).isNull(), F.lit(f"key: no {n}")) for n in key_names],
        F.concat(F.lit("value: "), decoded.problem),
    )
    version, source, chains = F.struct(F.col("offset").alias("v0")), partition_identity(topic), []
    if roots is not None:
        found, unusable = positions.given_chains(roots)
        problem = F.coalesce(problem, unusable)
        chains.append(F.when(problem.isNull(), found).alias(CHAINS))
        version, source = positions.version(found, roots), F.lit(None).cast("binary")
    usable = problem.isNull()  # what is not must not reach Python: it may not even be UTF-8
    if on_error == "fail":
        problem = failing(problem)
    frame = records.select(
        F.when(usable, decoded_key.row).alias(KEY),
        F.when(usable & ~decoded.deleted, row).alias(ROW),
        decoded.deleted.alias(DELETED),
        version.alias(VERSION),
        source.alias(SOURCE),
        F.unix_micros("timestamp").alias(TS),
        problem.alias(PROBLEM),
        F.struct(*RAW_COLUMNS).alias(RAW),
        *chains,
    )
    shown = {"bootstrap.servers": bootstrap_servers, **masked(chosen), "on_error": on_error}
    node = Source(
        name or topic,
        key_names,
        ("topic", "partition", "offset") if roots is None else tuple(f"root {place + 1}" for place in range(roots)),
        "null value",
        "timestamp",
        fields_of(records, row),
        f"kafka topic {topic} ({', '.join(f'{item}={text}' for item, text in shown.items())})",
        topic=topic,
        parts=roots or 1,
    )
    dead, unread = frame, None
    read_key, read_value = key_reader(key_format), reader(value_format)
    if not headers and roots is None and read_key is not None and read_value is not None:
        reading = TopicRecords(topic, read_key, read_value, partition_stem(topic), on_error == "fail")
        unread = records.select(*TAKEN), reading
        raw = records.select(*RAW_COLUMNS)
        letters = raw.mapInArrow(DeadRecords(reading), StructType([*raw.schema, StructField("problem", StringType())]))
        dead = letters.select(F.struct(*RAW_COLUMNS).alias(RAW), F.col("problem").alias(PROBLEM))
    return TopicRead(node, frame, Connection(topic, bootstrap_servers, chosen, partitions), dead, unread)


def _require_names(key: Iterable[str], row: Iterable[str]) -> None:
    """``TopologyError`` if columns of key and value cannot be told apart; both may have one of the same name."""
    hint = "name it otherwise, or leave it out and read it from Json(…, text=…) with map_values"
    require_apart("key", key, hint)
    require_apart("value", row, hint)
    require_apart("key and value", dict.fromkeys([*key, *row]), hint)


def failing(problem: Column) -> Column:
    """A problem that stops the query and says where the record is; ``RAW_COLUMNS`` must be at hand."""
    where = [F.lit("record "), F.col("topic"), F.lit("-"), F.col("partition").cast("string"), F.lit(" offset ")]
    text = F.concat(*where, F.col("offset").cast("string"), F.lit(": "), problem)
    hint = F.lit('; with on_error="dead-letter" such records are set aside')
    return F.when(problem.isNotNull(), F.raise_error(F.concat(text, hint)).cast("string"))


def partition_identity(topic: str) -> Column:
    """The identity of a record's source: four bytes for the topic, then the number of the partition, big-endian.

    So whoever has a version knows which partition the row came from.
    """
    return F.unhex(F.concat(F.lit(partition_stem(topic).hex()), F.lpad(F.hex("partition"), 8, "0")))


def partition_stem(topic: str) -> bytes:
    """The four bytes of it that stand for the topic."""
    return versions.identity(topic)[:4]


def require_topic(topic: str, bootstrap_servers: str, options: Mapping[str, str]) -> int:
    """How many partitions the topic has; 0 where that cannot be asked.

    ``TopologyError`` when the brokers cannot be reached or have no such topic.
    """
    settings = client_settings(bootstrap_servers, options)
    if settings is None:
        return 0
    topics = known_topics(settings)
    if topic not in topics:
        hint = nearest(topic, sorted(topics), 10)
        raise TopologyError(f"topic: there is no topic {topic!r} at {bootstrap_servers}; {hint} Create it first.")
    return topics[topic]


def known_topics(settings: Mapping[str, str], timeout_s: float = 10.0) -> dict[str, int]:
    """The topics and how many partitions each has."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise FkJoinError('topics need confluent-kafka: pip install "fkjoin[kafka]"') from error
    try:
        found = AdminClient({**settings, "log_level": 0}).list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        raise TopologyError(
            f"bootstrap_servers: no broker answers at {settings['bootstrap.servers']} within {timeout_s:.0f} s "
            f"({error.args[0].str()}); is the address right, and reachable from here?"
        ) from error
    return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}
