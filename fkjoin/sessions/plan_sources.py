"""The sources that a streaming DataFrame reads, as the plan that Spark has analyzed names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from fkjoin.spark.spark_api import analyzed, is_connect, listed

STATEFUL = ("TransformWithStateInPySpark", "TransformWithStateInPandas")
"""Names of one operator; Spark 4.0 has the second."""

PlanSource = tuple[str, Mapping[str, str]]
"""The name that Spark gives a source's format, and its options, whose names are in lower case."""


def sources_of(frame: DataFrame) -> Iterator[PlanSource]:
    """Yield the sources that a streaming frame reads; none in a session without a JVM to ask."""
    if is_connect(frame.sparkSession):
        return
    for node in listed(analyzed(frame).collectLeaves()):
        kind = node.nodeName()
        if kind == "StreamingRelation":
            source = node.dataSource()
            pairs = listed(source.options().toSeq())
            options = {str(pair._1()).lower(): str(pair._2()) for pair in pairs}
            yield str(source.className()), options
        elif kind == "StreamingRelationV2":
            extra = node.extraOptions()
            options = {str(name): str(extra.get(name)) for name in extra.keySet()}
            yield str(node.sourceName()), options


def explodes(frame: DataFrame) -> bool:
    """Tell whether the frame makes several rows of one, since the last stateful operator.

    It is not known of a session without a JVM to ask, and false there.
    """
    return not is_connect(frame.sparkSession) and _explodes(analyzed(frame))


def _explodes(node: Any) -> bool:
    kind = node.nodeName()
    if kind in STATEFUL:
        return False
    if kind == "Generate" and node.generator().prettyName() != "json_tuple":  # one row of one
        return True
    return any(_explodes(child) for child in listed(node.children()))
