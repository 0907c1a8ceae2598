"""Topics that a running query reads, as Spark's plan of it has them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

_SOURCE = "StreamingDataSourceV2ScanRelation"
_BROKERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class SourceTopic:
    """A topic that a source of a query reads, and how to reach it."""

    topic: str
    bootstrap_servers: str
    options: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)
    """Those of the source, secrets among them."""


def source_topics(query: StreamingQuery) -> tuple[SourceTopic, ...]:
    """Read which topics a query reads; none before its sources are there, and none of a query of Spark Connect.

    A topic that the query reads from two clusters is left out: its name alone would not say which one is meant.
    """
    found: dict[str, set[SourceTopic]] = {}
    with contextlib.suppress(Exception):  # Spark does not say it until it has made the sources
        leaves = query._jsq.streamingQuery().logicalPlan().collectLeaves()
        for leaf in (leaves.apply(place) for place in range(leaves.size())):
            if leaf.getClass().getSimpleName() == _SOURCE:
                options: dict[str, str] = dict(leaf.relation().options().asCaseSensitiveMap())
                named = {name.lower(): value for name, value in options.items()}
                for topic in (
                    named["subscribe"].split(",") if {"subscribe", _BROKERS} <= named.keys() else ()
                ):
                    found.setdefault(topic, set()).add(SourceTopic(topic, named[_BROKERS], options))
    return tuple(one for of_name in found.values() if len(of_name) == 1 for one in of_name)
