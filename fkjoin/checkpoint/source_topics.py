"""Sources of a running query as Spark's plan has them: the topics that it reads, and how often it reads a source."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

_SOURCE = "StreamingDataSourceV2ScanRelation"
_OLDER_SOURCE = "StreamingExecutionRelation"
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
        for leaf in _leaves(query):
            if leaf.getClass().getSimpleName() == _SOURCE:
                options: dict[str, str] = dict(leaf.relation().options().asCaseSensitiveMap())
                named = {name.lower(): value for name, value in options.items()}
                for topic in named["subscribe"].split(",") if {"subscribe", _BROKERS} <= named.keys() else ():
                    found.setdefault(topic, set()).add(SourceTopic(topic, named[_BROKERS], options))
    return tuple(one for of_name in found.values() if len(of_name) == 1 for one in of_name)


def scans_of(query: StreamingQuery) -> Counter[str]:
    """Count how often a query reads each source, by the source's description in progress; nothing where Spark does not say.

    Operators that need the same table read its source each for itself.
    """
    scans: Counter[str] = Counter()
    with contextlib.suppress(Exception):  # as above
        for leaf in _leaves(query):
            kind = leaf.getClass().getSimpleName()
            if kind in (_SOURCE, _OLDER_SOURCE):
                source = leaf.stream() if kind == _SOURCE else leaf.source()
                scans[str(source.toString())] += 1
    return scans


def _leaves(query: StreamingQuery) -> Iterator[Any]:
    leaves = query._jsq.streamingQuery().logicalPlan().collectLeaves()
    return (leaves.apply(place) for place in range(leaves.size()))
