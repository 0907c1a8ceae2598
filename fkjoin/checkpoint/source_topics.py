"""Topics that a running query reads, as Spark's plan of it has them."""

from __future__ import annotations

import contextlib

from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.spark.spark_api import java_query, listed

_SOURCE = "StreamingDataSourceV2ScanRelation"
_BROKERS = "kafka.bootstrap.servers"


def source_topics(query: StreamingQuery) -> dict[str, str]:
    """Read which topics a query reads, with the brokers of each.

    None before its sources are there, and none of a query of Spark Connect.  A topic that the query
    reads from two clusters is left out: its name alone would not say which one is meant.
    """
    clusters: dict[str, set[str]] = {}
    with contextlib.suppress(Exception):  # Spark does not say it until it has made the sources
        plan = java_query(query).streamingQuery().logicalPlan()
        for leaf in listed(plan.collectLeaves()):
            if leaf.getClass().getSimpleName() != _SOURCE:
                continue
            options: dict[str, str] = dict(leaf.relation().options().asCaseSensitiveMap())
            named = {name.lower(): value for name, value in options.items()}
            if {"subscribe", _BROKERS} <= named.keys():
                for topic in named["subscribe"].split(","):
                    clusters.setdefault(topic, set()).add(named[_BROKERS])
    return {topic: next(iter(brokers)) for topic, brokers in clusters.items() if len(brokers) == 1}
