"""The stateful operators that a query's checkpoint was begun with, compared when the query starts again.

Each bucket's store says the same of itself, but only once there is data, and in a worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.damage import NEW_OR_BACK
from fkjoin.checkpoint.files import hadoop, read_file, write_file
from fkjoin.errors import FkJoinError
from fkjoin.spark.identity import difference
from fkjoin.spark.specs import StageSpec

OPERATORS = "fkjoin-operators.json"
"""The file in a query's checkpoint with the names of its operators' stores, and what each is bound to."""

_STATEFUL = ("TransformWithStateInPySpark", "TransformWithStateInPandas")
"""Names of one operator; Spark 4.0 has the second."""


def require_begun_with(frame: DataFrame, checkpoint: str) -> Callable[[], None]:
    """Raise ``FkJoinError`` if the checkpoint has batches of a query with other operators than the frame's.

    Returns what notes the operators, to be called when the query is about to start.  A checkpoint without a batch is bound to
    nothing yet, and of one that an older release has begun nothing is noted.
    """
    spark, place = frame.sparkSession, checkpoint.rstrip("/")
    now = [[spec.name, spec.state.identity] for spec in specs_in(frame)]
    path, files = hadoop(spark, f"{place}/{OPERATORS}")
    if BatchLog(spark, place).done < 0:
        return lambda: write_file(path, files, json.dumps(now, indent=1).encode())
    if files.exists(path) and (changed := _changed(json.loads(read_file(path, files)), now)) is not None:
        raise FkJoinError(f"checkpoint: {checkpoint} was made by another job: {changed}; {NEW_OR_BACK}")
    return lambda: None


def _changed(was: list[list[str]], now: list[list[str]]) -> str | None:
    """Say what is other than it was; None if nothing is."""
    if len(was) != len(now):
        rules = "spark.fkjoin.optimize, spark.fkjoin.optimizer.excludedRules"
        return f"its operators were {_names(was)} and are now {_names(now)}, perhaps by other rules of the optimizer ({rules})"
    differences = (difference(before.encode(), after.encode()) for (_, before), (_, after) in zip(was, now, strict=True))
    return next((found for found in differences if found is not None), None)


def _names(operators: list[list[str]]) -> str:
    return ", ".join(name for name, _ in operators) or "none"


def specs_in(frame: DataFrame) -> Iterator[StageSpec]:
    """The stateful operators of a streaming DataFrame, read from its plan, each after those that it reads."""
    yield from _below(frame._jdf.queryExecution().analyzed(), frame.sparkSession)


def _below(node: Any, spark: SparkSession) -> Iterator[StageSpec]:
    if is_stateful(node):
        yield from _below(node.left(), spark)
        yield spec_of(node, spark)
        return
    children = node.children()
    for place in range(children.size()):
        yield from _below(children.apply(place), spark)


def is_stateful(node: Any) -> bool:
    """Tell whether a node of Spark's plan is a stage."""
    return node.nodeName() in _STATEFUL


def spec_of(node: Any, spark: SparkSession) -> StageSpec:
    """The operator's spec, from the function that this process has given to Spark."""
    tag: Any = spark.sparkContext._jvm.scala.reflect.ClassTag.Byte()  # type: ignore[union-attr]
    command = bytes(node.functionExpr().func().command().toArray(tag))
    function, _ = CloudPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    spec: StageSpec = function.__self__._stateful_processor._spec
    return spec
