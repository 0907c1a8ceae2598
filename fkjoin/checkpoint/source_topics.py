"""Topics that a running query reads, as Spark's plan of it has them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.spark.spark_api import java_query, listed

_SOURCE = "StreamingDataSourceV2ScanRelation"
_BROKERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class SourceTopic:
    """A topic that a source of a query reads, and how to reach it."""

    topic: str
    bootstrap_servers: str


def source_topics(query: StreamingQuery) -> tuple[SourceTopic, ...]:
    """Read which topics a query reads.

    None before its sources are there, and none of a query of Spark Connect.  A topic that the query
    reads from two clusters is left out: its name alone would not say which one is meant.
    """
    by_name: dict[str, set[SourceTopic]] = {}
    with contextlib.suppress(Exception):  # Spark does not say it until it has made the sources
        plan = java_query(query).streamingQuery().logicalPlan()
        for leaf in listed(plan.collectLeaves()):
            if leaf.getClass().getSimpleName() != _SOURCE:
                continue
            options: dict[str, str] = dict(leaf.relation().options().asCaseSensitiveMap())
            named = {name.lower(): value for name, value in options.items()}
            if {"subscribe", _BROKERS} <= named.keys():
                for name in named["subscribe"].split(","):
                    topic = SourceTopic(name, named[_BROKERS])
                    by_name.setdefault(name, set()).add(topic)
    return tuple(next(iter(topics)) for topics in by_name.values() if len(topics) == 1)
