"""What a session's JVM and its workers write on standard error, without the lines that a user can do nothing about.

They pass through this process.  JVM options and Spark's log settings do not reach all of them: the JVM says some before it has
a log, and PySpark's workers print.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fkjoin.errors import SessionError, nearest
from fkjoin.sessions.pump import Pump

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_LEVEL = "spark.log.level"
_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
_PROGRESS = "spark.ui.showConsoleProgress"
"""Spark's bar, which is a line without an end."""

_WORKER = rb"(?:Starting )?Streaming TransformWithState\w* Python worker"
"""Printed, each with an empty line, by the process that a query starts for each stateful operator to ask for its states."""

_LOGGED = (
    rb"Utils: Your hostname, .* resolves to a loopback address",
    rb"Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    rb"NativeCodeLoader: Unable to load native-hadoop library",
    rb"SparkSession: Using an existing Spark session; only runtime SQL configurations will take effect",
    rb"ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming",
    rb"MicroBatchExecution: Disabling AQE since AQE is not supported in stateful workloads",
    rb"TransformWithStateInPySparkStateServer: \w+ state .* doesn't contain a value",
    rb"TransformWithStateInPySparkStateServer: No more data to read from the socket",
    rb"DAGScheduler: Failed to cancel job group .* Cannot find active jobs for it",
)
"""Warnings of each start, of each new bucket, and of each stop."""

_SAID = (
    rb"WARNING: Using incubator modules: jdk.incubator.vector",
    rb"Using Spark's default log4j profile: ",
    rb'Setting default log level to "',
    rb"To adjust logging level use sc.setLogLevel",
    _WORKER,
    rb"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN (?:" + b"|".join(_LOGGED) + b")",
)

_NOISE = re.compile(b"|".join(_SAID))

_told_all = threading.Event()
"""Somebody wants to see every line."""

_pumps: list[Pump] = []
"""Of the JVM, and of starts that came to nothing."""


def level(settings: Mapping[str, Any]) -> str | None:
    """The log level that the settings ask for; None: a session is quiet.  ``SessionError`` for one that there is not."""
    if LOG_LEVEL not in settings:
        return None
    given = str(settings[LOG_LEVEL]).upper()
    if given not in _LEVELS:
        raise SessionError(f"log_level, {LOG_LEVEL}, is {given!r}; {nearest(given, _LEVELS)}")
    return given


def tell_all(spark: SparkSession, log_level: str) -> None:
    """Leave out no line from here on, and set the level of Spark's log."""
    _told_all.set()
    # Spark does nothing about a level that its own defaults name, INFO, though it has its log begin at WARN in such a JVM.
    for one in ("WARN", log_level):
        spark.sparkContext.setLogLevel(one)


def pumped(settings: Mapping[str, Any]) -> Pump | None:
    """A pipe for the standard error of a JVM with these settings; None where all that it says is to be seen as it comes."""
    if LOG_LEVEL in settings or str(settings.get(_PROGRESS, "false")) != "false":
        return None
    try:
        pump = Pump(_Words().take)
    except OSError:  # this process has no standard error
        return None
    pump.start()
    _pumps.append(pump)
    return pump


@atexit.register
def catch_up() -> None:
    """Wait until what the JVM has written already is on standard error."""
    for pump in _pumps:
        pump.catch_up()


class _Words:
    """Write lines on what is this process's standard error at the JVM's start, except those of no use."""

    def __init__(self) -> None:
        self._error = os.dup(2)
        self._dropped = False

    def take(self, line: bytes) -> None:
        is_rest = self._dropped and line == b"\n"
        self._dropped = not _told_all.is_set() and (is_rest or _NOISE.match(line) is not None)
        if self._dropped:
            return
        with contextlib.suppress(OSError):  # closed: those that write must not wait
            while line:
                line = line[os.write(self._error, line) :]
