"""The sources that a streaming DataFrame reads, as the plan that Spark has analyzed names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from fkjoin.sessions.access import is_connect

PlanSource = tuple[str, Mapping[str, str]]
"""The name that Spark gives a source's format, and its options, whose names are in lower case."""


def sources_of(frame: DataFrame) -> list[PlanSource]:
    """The sources that a streaming frame reads; none in a session without a JVM to ask."""
    if is_connect(frame.sparkSession):
        return []
    return [source for node in listed(analyzed(frame).collectLeaves()) if (source := source_of(node)) is not None]


def analyzed(frame: DataFrame) -> Any:
    """The plan that Spark has analyzed."""
    return frame._jdf.queryExecution().analyzed()


def listed(items: Any) -> Iterator[Any]:
    """The items of a sequence of Scala's."""
    return (items.apply(place) for place in range(items.size()))


def source_of(node: Any) -> PlanSource | None:
    """The source that a node of a plan streams; None of another node."""
    kind = node.nodeName()
    if kind == "StreamingRelation":
        of = node.dataSource()
        return str(of.className()), {str(pair._1()).lower(): str(pair._2()) for pair in listed(of.options().toSeq())}
    if kind == "StreamingRelationV2":
        given = node.extraOptions()
        return str(node.sourceName()), {str(name): str(given.get(name)) for name in given.keySet()}
    return None
