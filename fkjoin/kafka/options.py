"""Options of Spark's Kafka source and sink: checked, and fit to be printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fkjoin.errors import TopologyError, nearest
from fkjoin.spark.option_values import require_whole

_SECRET = re.compile(
    r"password|secret|jaas|token|credential|private|\.key$|truststore\.certificates", re.IGNORECASE
)
_OURS = {
    *("subscribe", "subscribepattern", "assign", "topic"),
    *("kafka.bootstrap.servers", "includeheaders"),
}
_SOURCE = {
    "startingOffsets": None,
    "startingOffsetsByTimestamp": None,
    "startingTimestamp": None,
    "startingOffsetsByTimestampStrategy": None,
    "failOnDataLoss": None,
    "maxOffsetsPerTrigger": 1,
    "minOffsetsPerTrigger": 1,
    "maxTriggerDelay": None,
    "minPartitions": 1,
    "maxRecordsPerPartition": 1,
    "groupIdPrefix": None,
    "kafkaConsumer.pollTimeoutMs": 0,
    "fetchOffset.numRetries": 0,
    "fetchOffset.retryIntervalMs": 0,
}
"""Options of Spark's source, and the least of a whole number; None for those that are none."""

_ISOLATION = "kafka.isolation.level"
"""The default is explicit in a table's options: questions for ends agree with Spark's source."""

_OUTAGE_MS = "120000"
"""Time for which brokers may be gone; with the clients' own minute, a minute is too long."""

_CONSUMER = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.fetch.max.wait.ms": "10",
    "kafka.default.api.timeout.ms": _OUTAGE_MS,
}
"""Spark asks for a partition's bounds after each fetch, on the connection of the next fetch.

That may be waiting for records that are yet to come.  So long, by default half a second, a task
stands still at a partition's end (docs/adr/0034).
"""

_PRODUCER = {
    "kafka.max.request.size": str(64 << 20),
    "kafka.batch.size": str(256 << 10),
    "kafka.linger.ms": "20",
    "kafka.compression.type": "lz4",
    "kafka.max.block.ms": _OUTAGE_MS,
    "kafka.delivery.timeout.ms": _OUTAGE_MS,
}
"""Settings for batches of many records (docs/adr/0034); a task's last records do not linger."""


def masked(options: Mapping[str, Any]) -> dict[str, str]:
    """The options as they may be shown: secrets are ``***``."""
    shown = {name: str(value) for name, value in options.items()}
    return shown | dict.fromkeys(filter(_SECRET.search, options), "***")


def source_options(chosen: Mapping[str, Any] | None) -> dict[str, str]:
    """Check options for the source; ``TopologyError`` for those without effect."""
    spellings = {name.lower(): name for name in _SOURCE}
    options = {}
    for name, value in _checked(chosen or {}).items():
        if not name.startswith("kafka.") and name.lower() not in spellings:
            raise TopologyError(
                f"options: Spark's Kafka source has no option {name!r}; {nearest(name, _SOURCE)} "
                "Settings of the consumer itself begin with kafka."
            )
        # Spark reads its own options in any spelling, so a second one could be the one that counts.
        options[spellings.get(name.lower(), name)] = value
    least = {name: number for name, number in _SOURCE.items() if number is not None}
    require_whole(options, least)
    return {"startingOffsets": "earliest", _ISOLATION: "read_committed", **options}


def with_fetching(options: Mapping[str, str]) -> dict[str, str]:
    """Add to a source's options the consumer's options that are not set."""
    return {**_CONSUMER, **options}


def sink_options(chosen: Mapping[str, Any] | None) -> dict[str, str]:
    """Options for the sink: settings of the producer."""
    options = _checked(chosen or {})
    for name in options:
        if not name.startswith("kafka."):
            raise TopologyError(
                f"options: {name!r} is not a setting of the producer; those begin with kafka."
            )
    return {**_PRODUCER, **options}


def producer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The ``kafka.…`` options of a consumer, without its isolation level, for a producer."""
    known = {name: value for name, value in options.items() if name.startswith("kafka.")}
    known.pop(_ISOLATION, None)
    return known


def _checked(chosen: Mapping[str, Any]) -> dict[str, str]:
    """The options as texts.

    Names of Java's client are in lower case, as Spark writes them for its own.
    """
    options = {}
    for name, value in chosen.items():
        own_name = name.lower() if name.startswith("kafka.") else name
        options[own_name] = str(value).lower() if isinstance(value, bool) else str(value)
    for name in options:
        if name.lower() in _OURS:
            raise TopologyError(
                f"options: {name} is set by fkjoin; give the argument of the same meaning instead"
            )
    return options
