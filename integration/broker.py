"""A real broker in a container, and calls on its topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from testcontainers.core.container import DockerContainer

from .machine import free_port, until

Headers = Sequence[tuple[str, bytes]]


class Record(NamedTuple):
    """A record to send; ``partition`` below 0 lets the partitioner choose, ``timestamp_ms`` of 0 is the time of sending."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    timestamp_ms: int = 0


class Broker:
    """One Kafka broker at ``localhost``, on ports that stay the same when it is restarted.

    ``listeners``: names and protocols of further listeners; ``places``: the address of each.  ``more``: the broker's
    settings as variables without ``KAFKA_``.
    """

    def __init__(self, image: str, listeners: Mapping[str, str] | None = None, **more: str) -> None:
        protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        ports = {name: free_port() for name in protocols}
        self.places = {name: f"localhost:{port}" for name, port in ports.items()}
        self.bootstrap = self.places["PLAINTEXT"]
        protocols["CONTROLLER"] = "PLAINTEXT"
        bound = {**ports, "CONTROLLER": 9093}
        settings = {
            "NODE_ID": "1",
            "PROCESS_ROLES": "broker,controller",
            "LISTENERS": ",".join(f"{name}://:{port}" for name, port in bound.items()),
            "ADVERTISED_LISTENERS": ",".join(f"{name}://{where}" for name, where in self.places.items()),
            "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "LISTENER_SECURITY_PROTOCOL_MAP": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
            "LOG_DIRS": "/tmp/kafka-data",
            "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "AUTO_CREATE_TOPICS_ENABLE": "false",
            **more,
        }
        self._container = DockerContainer(image)
        for port in ports.values():
            self._container.ports[port] = ("127.0.0.1", port)  # type: ignore[assignment]  # docker's own form: this host only
        for name, value in settings.items():
            self._container = self._container.with_env(f"KAFKA_{name}", value)

    def start(self) -> None:
        self._container.start()
        self._wait()

    def stop(self) -> None:
        self._container.stop()

    def restart(self) -> None:
        self._container.get_wrapped_container().restart(timeout=2)
        self._wait()

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """Pause the broker: it answers no client, and no client is told."""
        container = self._container.get_wrapped_container()
        container.pause()
        try:
            yield
        finally:
            container.unpause()
            self._wait()

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.client)

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0}

    def create(self, *topics: str, partitions: int = 3, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        for done in self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings) for topic in topics]).values():
            done.result(30)
        until(f"{topics} appear", lambda: self.topics().issuperset(topics))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=30).topics)

    def delete(self, *topics: str) -> None:
        """Delete the topics, and wait until they are gone."""
        for done in self.admin.delete_topics(list(topics)).values():
            done.result(30)
        until(f"{topics} are gone", lambda: self.topics().isdisjoint(topics))

    def anew(self, topic: str, partitions: int) -> None:
        """Delete the topic and create it again."""
        self.delete(topic)
        self.create(topic, partitions=partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        for done in self.admin.create_partitions([NewPartitions(topic, total)]).values():
            done.result(30)

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Produce in order, partitioned as Java's producer does."""
        java: dict[str, Any] = {"partitioner": "murmur2_random", "enable.idempotence": True}
        producer = Producer(self.client | java | {"linger.ms": 20, "message.max.bytes": 64 << 20})
        results = set[object]()
        for key, value, headers, partition, timestamp_ms in records:
            where: dict[str, Any] = {"timestamp": timestamp_ms, "partition": partition, "headers": list(headers)}
            where["on_delivery"] = lambda error, _: results.add(error)
            producer.produce(topic, value, key, **where)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert results <= {None}

    def ends(self, topic: str) -> dict[int, int]:
        """The end offset of each partition of the topic; to ask for it is cheap, to read all records again is not."""
        asked = self.admin.list_offsets({TopicPartition(topic, one): OffsetSpec.latest() for one in self._partitions(topic)})
        return {place.partition: done.result(10).offset for place, done in asked.items()}

    def read(self, topic: str) -> list[Message]:
        """All committed records that the topic has, each partition's in order."""
        reads: dict[str, Any] = {"isolation.level": "read_committed", "enable.partition.eof": True}
        reads["auto.offset.reset"] = "earliest"  # where first records were deleted
        group = {"group.id": "fkjoin-tests", "enable.auto.commit": False}
        consumer = Consumer(self.client | group | reads)
        open_ = set(self._partitions(topic))
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_])
        found: list[Message] = []
        while open_:
            for message in consumer.consume(5000, 0.2):
                if message.error() is None:
                    found.append(message)
                elif message.error().name() == "_PARTITION_EOF":
                    open_.discard(message.partition())
                else:
                    raise KafkaException(message.error())
        consumer.close()
        return found

    def table(self, topic: str) -> dict[bytes, bytes]:
        """The records that are left of the topic when it is compacted."""
        last = {message.key(): message.value() for message in self.read(topic)}
        assert None not in last
        return {key: value for key, value in last.items() if value is not None}

    def _partitions(self, topic: str) -> list[int]:
        return list(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)

    def _wait(self) -> None:
        until("the broker comes up", self._answers, 90, 0.5)

    def _answers(self) -> bool:
        with contextlib.suppress(KafkaException):
            self.admin.list_topics(timeout=2)
            return True
        return False


class Transactions:
    """Transactions on a topic, each by a producer of its own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker, self._topic, self._number = broker, topic, 0

    def begin(self, *records: Record) -> Producer:
        self._number += 1
        name = {"transactional.id": f"{self._topic}-{self._number}"}
        producer = Producer(self._broker.client | name)
        producer.init_transactions(30)
        producer.begin_transaction()
        for record in records:
            producer.produce(self._topic, record.value, record.key)
        assert producer.flush(30) == 0
        return producer

    def commit(self, *records: Record) -> None:
        self.begin(*records).commit_transaction(30)

    def abort(self, *records: Record) -> None:
        self.begin(*records).abort_transaction(30)
