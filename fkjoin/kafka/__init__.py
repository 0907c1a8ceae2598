"""Formats of Kafka records, with which ``Table.from_kafka`` and ``Table.to_kafka`` work."""

from fkjoin.kafka.decoding import Decoded
from fkjoin.kafka.formats import Bytes, Debezium, Format, Json, String
from fkjoin.kafka.purging import purge
from fkjoin.kafka.registry import Registry

__all__ = ["Bytes", "Debezium", "Decoded", "Format", "Json", "Registry", "String", "purge"]


def __dir__() -> list[str]:
    return __all__
