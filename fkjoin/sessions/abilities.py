"""Abilities of a session's Spark.

Spark itself is asked, since vendors change it and leave its version unchanged.  What is missing is
refused by name, with the version that has it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from fkjoin.errors import SessionError
from fkjoin.spark.spark_api import checkpoint_manager, jvm

_STREAMING = "org.apache.spark.sql.execution.streaming"

_FILE_MANAGERS = (
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
)
"""Names of one class, the newest first."""


def require_rescale(spark: SparkSession) -> None:
    """Raise ``SessionError`` if Spark cannot spread a state over other partitions."""
    if checkpoint_manager(spark) is None:
        way = 'run it, and the query after it, in a Python environment with "pyspark>=4.2"'
        raise _too_old("fkjoin state rescale", "4.2", spark.version, way)


def require_connect(spark: SparkSession) -> None:
    """Raise ``SessionError`` if a side of a session of Spark Connect has no stateful operators.

    The sides may be of different releases.
    """
    from pyspark.sql.connect.group import GroupedData

    if not hasattr(GroupedData, "transformWithStateInPandas"):
        client, way = "a client of Spark Connect", 'pip install "pyspark>=4.1"'
        raise _too_old(client, "4.1", pyspark.__version__, way)
    if not _takes_operators(spark):
        raise _too_old("a server of Spark Connect", "4.1", spark.version, "start it with that")


def _too_old(feature: str, since: str, release: str, way: str) -> SessionError:
    """Make the error for what a Spark cannot do yet.

    ``feature``: what needs it, as a user calls it; ``since``: the Spark that has it; ``release``:
    the one that was asked; ``way``: the way out.
    """
    return SessionError(f"{feature} needs Spark {since} or newer, and this is {release}; {way}")


def _takes_operators(spark: SparkSession) -> bool:
    rows = spark.range(1).groupBy("id")
    operator = rows.transformWithStateInPandas(_Idle(), "id long", "append", "none")
    try:
        return operator.columns == ["id"]
    except PySparkException:
        return False


class _Idle(StatefulProcessor):
    """A stateful operator that only analysis sees."""

    def init(self, handle: StatefulProcessorHandle) -> None: ...
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any: ...  # noqa: N802, N803
    def close(self) -> None: ...


def local_file_manager() -> str | None:
    """Spark's class that writes a checkpoint's files without processes; None if it is elsewhere."""
    for name in _FILE_MANAGERS:
        with contextlib.suppress(Py4JJavaError):
            jvm().java.lang.Class.forName(name)
            return name
    return None
