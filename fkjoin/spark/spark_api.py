"""Private names of PySpark: the JVM behind a process, a session, a frame, a column or a query.

No public name leads to them.  A release of Spark that renames one is followed here alone.
A client of Spark Connect has no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.errors import SessionError


def is_connect(spark: SparkSession) -> bool:
    """Tell whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def require_classic(spark: SparkSession, feature: str, instead: str) -> None:
    """``SessionError`` if the session is one of Spark Connect; ``instead``: what to do."""
    if is_connect(spark):
        raise SessionError(
            f"{feature} needs a classic Spark session, and this is one of Spark Connect: {instead}"
        )


def spark_home() -> str:
    """The folder of the installed Spark."""
    return str(_find_spark_home())


def java_gateway() -> Any:
    """The connection to this process's JVM; None before it is started."""
    return SparkContext._gateway


def use_gateway(gateway: Any) -> None:
    """Have PySpark use a JVM that fkjoin has started."""
    SparkContext._ensure_initialized(gateway=gateway)


def jvm() -> Any:
    """The classes of this process's JVM; None if there is none."""
    return SparkContext._jvm


def running_context() -> Any:
    """The context of this process's classic session; None if none runs."""
    return SparkContext._active_spark_context


def running_session() -> Any:
    """The classic session that this process has made, whichever thread asks."""
    return SparkSession._instantiatedSession


def java_context(context: SparkContext) -> Any:
    """The JVM's context; None of a context that was stopped."""
    return context._jsc


def accumulator_server(context: SparkContext) -> Any:
    """The server to which workers send their accumulators; None if there is none."""
    return context._accumulatorServer


def hadoop_settings(context: SparkContext) -> Any:
    """The settings of Hadoop, as the JVM's object."""
    return java_context(context).hadoopConfiguration()


def java_session(spark: SparkSession) -> Any:
    """The JVM's session."""
    return spark._jsparkSession


def java_frame(frame: DataFrame) -> Any:
    """The JVM's frame."""
    return frame._jdf


def analyzed(frame: DataFrame) -> Any:
    """The plan that Spark has analyzed."""
    return java_frame(frame).queryExecution().analyzed()


def java_column(column: Column) -> Any:
    """The JVM's column."""
    return column._jc


def java_query(query: StreamingQuery) -> Any:
    """The JVM's handle of a query; None of one of Spark Connect."""
    return getattr(query, "_jsq", None)


def checkpoint_manager(spark: SparkSession) -> Any:
    """Spark's manager of checkpoints, which rescales them; None before Spark 4.2."""
    return getattr(spark, "_streamingCheckpointManager", None)


def client_query(query: StreamingQuery) -> tuple[Any, ...]:
    """The arguments that make a query of Spark Connect again."""
    client: Any = query
    return client._session, client._query_id, client._run_id, client._name


def client_expression(column: Column) -> Any:
    """The expression of a column of Spark Connect, as the client sends it."""
    client: Any = column
    return client._expr


def listed(items: Any) -> Iterator[Any]:
    """The items of a sequence of Scala's."""
    return (items.apply(index) for index in range(items.size()))
