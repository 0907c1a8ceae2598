"""Formats of Kafka records; ``Table.from_kafka`` and ``Table.to_kafka`` read and write topics with it."""

from fkjoin.kafka.decoding import Decoded
from fkjoin.kafka.formats import Bytes, Debezium, Format, Json, String
from fkjoin.kafka.purging import purge
from fkjoin.kafka.registry import Registry

__all__ = ["Bytes", "Debezium", "Decoded", "Format", "Json", "Registry", "String", "purge"]


def __dir__() -> list[str]:
    return __all__
