"""Questions to brokers about topics, by Java's own client in the driver's JVM.

It is given the options that Spark's source and sink are given, so that what they reach is reached
here, whatever logs them in. A client of Spark Connect has no JVM, and asks nothing: a topic that is
not there stops the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError

from fkjoin.errors import FkJoinError, TopologyError, nearest
from fkjoin.sessions.connector import HOW, package
from fkjoin.spark.spark_api import java_gateway, jvm

_TIMEOUT_S = 10
_END_S = 30
_FIRST_LOOK = 8
"""Offsets before a partition's end in which its last record is looked for first.

The very last may be of transactions.
"""
_UNKNOWN_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The answers of brokers that give topics no ids."""
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


class Topic(NamedTuple):
    """A topic, as brokers describe it."""

    partitions: int
    """Number of partitions; 0 where no broker was asked."""
    topic_id: str | None
    """Another topic of the same name has another one; None where brokers know none."""


def require_topic(topic: str, bootstrap_servers: str, options: Mapping[str, str]) -> Topic:
    """The topic; without a JVM nothing is known of it.

    Raises ``TopologyError`` when the brokers cannot be reached or have no such topic.
    """
    if jvm() is None:
        return Topic(0, None)
    with _admin(bootstrap_servers, options) as client:
        description = _described(client, [topic])[topic]
        if description is None:
            raise TopologyError(
                f"topic: there is no topic {topic!r} at {bootstrap_servers}; "
                f"{nearest(topic, _names(client), 10)} Create it first."
            )
        return description


def topic_names(bootstrap_servers: str, options: Mapping[str, str]) -> list[str]:
    """The topics that there are.  Raises ``TopologyError`` when the brokers cannot be reached."""
    with _admin(bootstrap_servers, options) as client:
        return _names(client)


def create_topics(
    bootstrap_servers: str,
    options: Mapping[str, str],
    wanted: Mapping[str, int],
    *,
    replication: int,
    config: Mapping[str, str],
) -> None:
    """Create the topics that are not there, with so many partitions.

    ``TopologyError`` when one has another number.  ``replication``: replicas of each partition, -1:
    as many as the brokers' default; ``config``: settings of the new topics.
    """
    with _admin(bootstrap_servers, options) as client:
        new: list[Any] = []
        descriptions = _described(client, list(wanted))
        for topic, partitions in wanted.items():
            existing = descriptions[topic]
            if existing is None:
                created = _kafka().clients.admin.NewTopic(topic, partitions, replication)
                new.append(created.configs(dict(config)))
            elif existing.partitions != partitions:
                raise TopologyError(
                    f"internal topic {topic} has {existing.partitions} partitions, but needs "
                    f"{partitions}, the number of the topic that it is partitioned like: stop the "
                    "stages when they have caught up, delete the internal topic and start the "
                    "stages again"
                )
        for topic, done in dict(client.createTopics(new).values()).items():
            try:
                done.get()
            except Py4JJavaError as error:
                kinds, text = _reason(error)
                if "TopicExistsException" not in kinds:
                    raise FkJoinError(f"internal topic {topic} cannot be created: {text}") from None


def offset_ranges(
    topic: str, bootstrap_servers: str, options: Mapping[str, str]
) -> dict[int, range]:
    """The offsets that each partition still has; no partitions where there is no such topic."""
    with _consumer(bootstrap_servers, options) as consumer:
        infos, partition = consumer.partitionsFor(topic) or (), _kafka().common.TopicPartition
        parts = [partition(topic, info.partition()) for info in infos]
        begins = dict(consumer.beginningOffsets(parts))
        ends = dict(consumer.endOffsets(parts))
        return {part.partition(): range(begins[part], ends[part]) for part in parts}


def delete_records(
    topic: str, bootstrap_servers: str, options: Mapping[str, str], before: Mapping[int, int]
) -> None:
    """Delete the records of each partition that lie before an offset."""
    with _admin(bootstrap_servers, options) as client:
        partition = _kafka().common.TopicPartition
        limits = {partition(topic, number): _before(offset) for number, offset in before.items()}
        try:
            client.deleteRecords(limits).all().get()
        except Py4JJavaError as error:
            raise FkJoinError(
                f"topic {topic}: the brokers did not delete its records: {_reason(error)[1]}"
            ) from None


def _before(offset: int) -> Any:
    """Java's ``RecordsToDelete.beforeOffset(offset)``, by reflection.

    A method without arguments has the same name, and Py4J takes the one that the JVM lists first,
    which is not always this one.
    """
    kind, new = jvm().java.lang, java_gateway().new_array
    loader = kind.Thread.currentThread().getContextClassLoader()
    types, arguments = new(kind.Class, 1), new(kind.Object, 1)
    types[0], arguments[0] = kind.Long.TYPE, offset
    owner = kind.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete", True, loader)
    return owner.getMethod("beforeOffset", types).invoke(None, arguments)


def bounds(
    topic: str, bootstrap_servers: str, options: Mapping[str, str], *, tombstones: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """The first offset of each partition, and the offset of the last record of each that has any.

    ``tombstones``: null values count as records.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    with _consumer(bootstrap_servers, options) as consumer:
        for info in consumer.partitionsFor(topic):
            number = info.partition()
            part = _kafka().common.TopicPartition(topic, number)
            # Just before it is read: retention may delete records while other partitions are read.
            low = dict(consumer.beginningOffsets([part]))[part]
            high = dict(consumer.endOffsets([part]))[part]
            begins[number] = low
            look = _FIRST_LOOK
            while number not in ends and low < high:
                start = max(low, high - look)
                last = _last_record(consumer, part, start, high, tombstones=tombstones)
                if last is not None:
                    ends[number] = last
                elif start == low:
                    break
                look *= 16
    return begins, ends


def _last_record(consumer: Any, part: Any, start: int, end: int, *, tombstones: bool) -> int | None:
    """The offset of the last record from ``start`` to ``end`` that a table reads; None for none."""
    consumer.assign([part])
    consumer.seek(part, start)
    last, idle = None, 0
    second = jvm().java.time.Duration.ofSeconds(1)
    while (offset := consumer.position(part)) < end:
        for record in list(consumer.poll(second).records(part)):
            if tombstones or record.serializedValueSize() >= 0:  # -1: it is null
                last = record.offset()
        idle = idle + 1 if consumer.position(part) == offset else 0
        if idle == _END_S:
            raise FkJoinError(
                f"topic {part.topic()}: partition {part.partition()} does not answer "
                f"within {_END_S} s"
            )
    return last


def _consumer(bootstrap_servers: str, options: Mapping[str, str]) -> AbstractContextManager[Any]:
    """A consumer that creates no topic and commits nothing; of one thread alone, as Java's is."""
    more = dict.fromkeys(("enable.auto.commit", "allow.auto.create.topics"), "false")
    more |= dict.fromkeys(("key.deserializer", "value.deserializer"), _BYTES)
    return _client(_kafka().clients.consumer.KafkaConsumer, bootstrap_servers, options, more)


def _admin(bootstrap_servers: str, options: Mapping[str, str]) -> AbstractContextManager[Any]:
    return _client(_kafka().clients.admin.AdminClient.create, bootstrap_servers, options, {})


@contextmanager
def _client(
    make: Callable[[Any], Any],
    bootstrap_servers: str,
    options: Mapping[str, str],
    more: Mapping[str, str],
) -> Iterator[Any]:
    """A client for as long as it is needed; what Java says is wrong becomes a ``TopologyError``."""
    waits = dict.fromkeys(("default.api.timeout.ms", "request.timeout.ms"), str(_TIMEOUT_S * 1000))
    own = {name: value for name, value in options.items() if name.startswith("kafka.")}
    chosen = {name.removeprefix("kafka."): value for name, value in own.items()}
    settings = {**chosen, **waits, **more, "bootstrap.servers": bootstrap_servers}
    try:
        client = make(settings)
    except Py4JJavaError as error:
        _, text = _reason(error)
        if "bootstrap" in text:
            raise TopologyError(
                f"bootstrap_servers: {bootstrap_servers} cannot be asked: {text}"
            ) from None
        raise TopologyError(
            f"options: Java's Kafka client cannot be made with the settings kafka.…: {text}"
        ) from None
    try:
        yield client
    except Py4JJavaError as error:
        raise _unreachable(error, bootstrap_servers) from None
    finally:
        client.close(jvm().java.time.Duration.ZERO)


def _unreachable(error: Py4JJavaError, bootstrap_servers: str) -> TopologyError:
    kinds, text = _reason(error)
    if re.search("Authentication|Authorization", kinds):
        return TopologyError(
            f"bootstrap_servers: the brokers at {bootstrap_servers} refuse this client ({text}); "
            "look at the options: kafka.security.protocol, kafka.sasl.…, kafka.ssl.…"
        )
    return TopologyError(
        f"bootstrap_servers: no broker answers at {bootstrap_servers} within {_TIMEOUT_S} s "
        f"({text}). Check that the broker is not busy, that the address is right and reachable "
        "from here, and the options: kafka.security.protocol, kafka.sasl.…, kafka.ssl.…"
    )


def _described(client: Any, topics: list[str]) -> dict[str, Topic | None]:
    """Ask brokers to describe each topic; None: there is none."""
    described: dict[str, Topic | None] = {}
    for topic, asked in dict(client.describeTopics(topics).topicNameValues()).items():
        try:
            answer = asked.get()
        except Py4JJavaError as error:
            if not re.search("UnknownTopic|InvalidTopic", _reason(error)[0]):
                raise
            described[topic] = None
        else:
            text = str(answer.topicId().toString())
            topic_id = None if text == _UNKNOWN_ID else text
            described[topic] = Topic(answer.partitions().size(), topic_id)
    return described


def _names(client: Any) -> list[str]:
    return sorted(name for name in client.listTopics().names().get() if not name.startswith("__"))


def _reason(error: Py4JJavaError) -> tuple[str, str]:
    """The names of the exceptions that led to it, and what the first says, without secrets."""
    cause = error.java_exception
    kinds = [cause.getClass().getSimpleName()]
    while (deeper := cause.getCause()) is not None:
        cause = deeper
        kinds.append(cause.getClass().getSimpleName())
    text = str(cause.getMessage()).partition("\n")[0]  # more lines are Java's stack
    if "JAAS" in text:  # a piece of the login that cannot be read, perhaps of the password
        text = re.sub("'.*'", "'***'", text)
    return " ".join(kinds), re.sub(r"\b(\w+\.)+\w+Exception: ", "", text)


def _kafka() -> Any:
    """Java's package.  Raises ``TopologyError`` where the session has no connector."""
    kafka = jvm().org.apache.kafka
    if isinstance(kafka.clients.admin.AdminClient, JavaPackage):
        raise TopologyError(
            f"Spark's Kafka connector is missing: {HOW}; with spark-submit, --packages {package()}"
        )
    return kafka
