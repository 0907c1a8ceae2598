"""Abilities of a session's Spark.

Spark itself is asked, since vendors change it and leave its version unchanged.  What is missing is
refused by name, with the version that has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Ability:
    """Something that not every Spark can do."""

    feature: str
    """Name of what needs it, as a user calls it."""
    since: str
    """The Spark that has it, such as ``4.2``."""
    is_in: Callable[[SparkSession], bool]
    """Asks a session."""
    way: str
    """Way out."""
    release: Callable[[SparkSession], str] = lambda spark: spark.version
    """The release that was asked."""

    def require(self, spark: SparkSession) -> None:
        """Raise ``SessionError`` if the session lacks it."""
        if not self.is_in(spark):
            raise SessionError(
                f"{self.feature} needs Spark {self.since} or newer, "
                f"and this is {self.release(spark)}; {self.way}"
            )


def _has_operators(spark: SparkSession) -> bool:
    from pyspark.sql.connect.group import GroupedData

    return hasattr(GroupedData, "transformWithStateInPandas")


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


RESCALE = Ability(
    "fkjoin state rescale",
    "4.2",
    lambda spark: checkpoint_manager(spark) is not None,
    'run it, and the query after it, in a Python environment with "pyspark>=4.2"',
)

CONNECT = (
    Ability(
        "a client of Spark Connect",
        "4.1",
        _has_operators,
        'pip install "pyspark>=4.1"',
        lambda _: pyspark.__version__,
    ),
    Ability("a server of Spark Connect", "4.1", _takes_operators, "start it with that"),
)
"""Abilities of both sides of a session of Spark Connect, which may be of different releases."""


def local_file_manager() -> str | None:
    """Spark's class that writes a checkpoint's files without processes; None if it is elsewhere."""
    for name in _FILE_MANAGERS:
        with contextlib.suppress(Py4JJavaError):
            jvm().java.lang.Class.forName(name)
            return name
    return None
