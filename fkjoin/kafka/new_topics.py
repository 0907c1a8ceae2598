"""Topics that were deleted and created again under their names: noticed by their ids when a query starts.

A file beside the checkpoint keeps the id of each topic that the query reads.  A topic with another id stops the start, or is
read from its beginning in the place of the one before: then the offsets in the checkpoint are set to its beginning, first of
all, so that an end in between begins again; after that the file says the new id, and where the topic ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from fkjoin import versions
from fkjoin.errors import FkJoinError
from fkjoin.kafka.options import client_settings
from fkjoin.kafka.source import Connection
from fkjoin.spark.files import begun, hadoop, read_file, write_file
from fkjoin.stages.start_over import StartOver

TOPICS = "fkjoin-topics.json"
"""Lies in the checkpoint of a query: for each topic ``{"id": …, "again": ends}``, the latter if it has started over."""

_FIRST_LOOK = 8
"""So many offsets before its end a partition is first asked for its last record: the very last may be marks of transactions."""


def checked_topics(spark: SparkSession, checkpoint: str, topics: Iterable[Connection]) -> dict[str, StartOver]:
    """Compare topics with those that the checkpoint knows, and keep what is new; those that have started over, by name.

    Raises ``FkJoinError`` for one with another id, unless it is to start over.
    """
    place = checkpoint.rstrip("/")
    path, files = hadoop(spark, f"{place}/{TOPICS}")
    known: dict[str, Any] = {}
    if begun(spark, place) and files.exists(path):
        known = json.loads(read_file(path, files))
    kept = dict(known)
    for connection in topics:
        topic, now = connection.topic, connection.topic_id
        was = known.get(topic)
        if now is None or (was is not None and was["id"] == now):
            continue
        kept[topic] = {"id": now}
        if was is not None:
            if connection.on_new_topic != "start-over":
                raise FkJoinError(_refused(topic, place, was["id"], now))
            kept[topic]["again"] = _starts_over(spark, place, connection)
    if kept != known:
        write_file(path, files, json.dumps(kept, indent=1).encode())
    return {
        topic: StartOver(
            versions.topic_identity(topic, about["id"], again=True),
            versions.topic_identity(topic, None),
            tuple((number, end) for number, end in about["again"]),
        )
        for topic, about in kept.items()
        if "again" in about
    }


def _refused(topic: str, checkpoint: str, was: str, now: str) -> str:
    return (
        f"topic {topic} was deleted and created again since checkpoint {checkpoint} was begun: its id was {was} and is {now}. "
        "The query would read it from the middle, or not at all. Start with a new checkpoint and an empty target; or read the "
        f'new topic from its beginning in the place of the one before: on_new_topic="start-over" for the table, '
        f"or fkjoin run --start-over {topic}"
    )


def _starts_over(spark: SparkSession, checkpoint: str, connection: Connection) -> list[tuple[int, int]]:
    """Set the checkpoint's offsets of the topic to its beginning; where it ends now."""
    begins, ends = _bounds(connection)
    if not ends:
        raise FkJoinError(
            f"topic {connection.topic} was created again and has no records yet: to start over with it now would delete all "
            "rows. Start when it has records, or with a new checkpoint"
        )
    for pattern, newest in (("offsets", 2), ("sources/*", 1)):
        _rewrite(spark, f"{checkpoint}/{pattern}", connection.topic, begins, newest)
    return sorted(ends.items())


def _rewrite(spark: SparkSession, folders: str, topic: str, begins: Mapping[int, int], newest: int) -> None:
    """Put other offsets of the topic into the newest files of Spark's logs.

    Of the log of batches these are the last that was committed and the one after it, which then has nothing of the topic.
    """
    jvm: Any = spark._jvm
    place, files = hadoop(spark, folders)
    for folder in files.globStatus(place) or []:
        found = [status.getPath() for status in files.listStatus(folder.getPath())]
        logs = sorted((path for path in found if path.getName().isdigit()), key=lambda path: int(path.getName()))
        for path in logs[-newest:]:
            lines = read_file(path, files).decode().split("\n")
            changed = [_with_offsets(line, topic, begins) for line in lines]
            if changed != lines:
                write_file(jvm.org.apache.hadoop.fs.Path(str(path)), files, "\n".join(changed).encode())


def _with_offsets(line: str, topic: str, begins: Mapping[int, int]) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    if not isinstance(found, dict) or not isinstance(found.get(topic), dict):
        return line
    return json.dumps({**found, topic: {str(number): offset for number, offset in begins.items()}}, separators=(",", ":"))


def _bounds(connection: Connection, timeout_s: float = 30.0) -> tuple[dict[int, int], dict[int, int]]:
    """The first offset of each partition, and the offset of the last record of each that has any."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = client_settings(connection.bootstrap_servers, connection.options)
    assert settings is not None, "its id is known"
    isolation = connection.options.get("kafka.isolation.level", "read_uncommitted")
    more = {"group.id": "fkjoin-start-over", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, **more, "isolation.level": isolation})
    try:
        begins, ends = {}, {}
        for number in consumer.list_topics(connection.topic, timeout_s).topics[connection.topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(connection.topic, number), timeout_s)
            begins[number] = low
            look = _FIRST_LOOK
            while number not in ends and low < high:
                start = max(low, high - look)
                if (last := _last_record(consumer, TopicPartition(connection.topic, number, start), timeout_s)) is not None:
                    ends[number] = last
                elif start == low:
                    break
                look *= 16
        return begins, ends
    except KafkaException as error:
        raise FkJoinError(f"topic {connection.topic} cannot be asked where it ends: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _last_record(consumer: Any, start: Any, timeout_s: float) -> int | None:
    """The offset of the partition's last record from there on; None where there is none."""
    consumer.assign([start])
    last = None
    while True:
        message = consumer.poll(timeout_s)
        if message is None:
            raise FkJoinError(f"topic {start.topic}: partition {start.partition} does not answer within {timeout_s:.0f} s")
        if message.error() is not None:
            if message.error().name() == "_PARTITION_EOF":
                return last
            raise FkJoinError(f"topic {start.topic}: partition {start.partition}: {message.error().str()}")
        last = message.offset()
