"""The stateful operators of a query, read from the plan that Spark runs: so nothing that is said of them can differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from fkjoin.lowering.lowered import Lowered
from fkjoin.plan.stages import Running
from fkjoin.spark.specs import StageSpec

_STATEFUL = ("TransformWithStateInPySpark", "TransformWithStateInPandas")
"""Names of one operator; Spark 4.0 has the second."""


def running(table: Lowered, end: str | None = None) -> list[Running]:
    """The stateful operators of the queries that keep a sink up to date with the table; ``end``: what the sink is called."""
    last = table.frame if table.encoded is None else table.encoded[0]
    frames = [*(stage.frame for stage in table.stages), last]
    return [one for frame in frames for one in running_in(frame, end or table.name)]


def running_in(frame: DataFrame, end: str) -> Iterator[Running]:
    """The stateful operators of a streaming DataFrame, each after those that it reads."""
    yield from _below(frame._jdf.queryExecution().analyzed(), frame.sparkSession, "", end)


def _below(node: Any, spark: SparkSession, above: str, reader: str) -> Iterator[Running]:
    """``above``: the table of the nearest stateful operator above; ``reader``: what reads that table."""
    if node.nodeName() in _STATEFUL:
        spec = _spec(node, spark)
        operator = spec.state.operator
        of_it = reader if operator == above or not above else above
        yield from _below(node.left(), spark, operator, of_it)
        yield Running(operator, spec.stage, of_it)
        return
    children = node.children()
    for place in range(children.size()):
        yield from _below(children.apply(place), spark, above, reader)


def _spec(node: Any, spark: SparkSession) -> StageSpec:
    """The operator's spec, from the function that this process has given to Spark."""
    tag: Any = spark.sparkContext._jvm.scala.reflect.ClassTag.Byte()  # type: ignore[union-attr]
    command = bytes(node.functionExpr().func().command().toArray(tag))
    function, _ = CloudPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    spec: StageSpec = function.__self__._stateful_processor._spec
    return spec
