"""Standard error of a session's JVM and its workers, without the lines that a user can do nothing about.

They pass through this process.  JVM options and Spark's log settings do not reach all of them: the JVM says some before it has
a log, and PySpark's workers print.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import threading
import time
import warnings
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
    rb"TransformWithStateIn\w+StateServer: \w+ state .* doesn't contain a value",
    rb"TransformWithStateIn\w+StateServer: No more data to read from the socket",
    rb"DAGScheduler: Failed to cancel job group .* Cannot find active jobs for it",
    rb"FileStreamSink: Assume no metadata directory",
)
"""Warnings of each start, of each new bucket, of each stop, and of each pattern of paths."""

_PANDAS = "PySpark does not yet fully support pandas"
"""The beginning of PySpark's warning about pandas 3, which each process gives; ``fkjoin doctor`` repeats it."""

_SAID = (
    rb"WARNING: Using incubator modules: jdk.incubator.vector",
    rb"Using Spark's default log4j profile: ",
    rb'Setting default log level to "',
    rb"To adjust logging level use sc.setLogLevel",
    _WORKER,
    rb".*:\d+: FutureWarning: " + _PANDAS.encode(),
    rb"  require_minimum_pandas_version\(\)$",
    rb"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN (?:" + b"|".join(_LOGGED) + b")",
)

_RETRY = re.compile(rb"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN NetworkClient: \[[^]]*\] (.*?)(?: with correlation id \d+|\n|$)")
"""A retry of Kafka's client, which says it of each client, many times a second."""
_SILENT_S = 60.0
"""The time without a retry from which on the same one is said again."""
_MOST_RETRIES = 1000

_NOISE = re.compile(b"|".join(_SAID))

_REST = re.compile(rb"\n|\tat |\t\.\.\. \d+ more|(?:Caused by: )?[a-z]\w*(?:\.\w+)+(?:Exception|Error)\b")
"""Lines that belong to the one before them: an empty one, and those of an exception."""

_FOUND = re.compile(rb".*\d+ artifacts copied, \d+ already retrieved[^\n]*\n", re.DOTALL)
"""The report on packages that were found, and what comes before it."""

_told_all = threading.Event()
"""An event that is set where every line is wanted."""

_outputs: list[FilteredOutput] = []
"""Outputs of the JVM, and of starts that came to nothing."""


def level(settings: Mapping[str, Any]) -> str | None:
    """The log level that the settings ask for; None: a session is quiet.  ``SessionError`` for one that there is not."""
    if LOG_LEVEL not in settings:
        return None
    given = str(settings[LOG_LEVEL]).upper()
    if given not in _LEVELS:
        raise SessionError(f"log_level, {LOG_LEVEL}, is {given!r}; {nearest(given, _LEVELS)}")
    return given


def drop_warnings() -> None:
    """Leave out PySpark's warning about pandas 3 in this process, unless its filters have another action for it."""
    warnings.filterwarnings("ignore", _PANDAS, FutureWarning, append=True)


def tell_all(spark: SparkSession, log_level: str) -> None:
    """Leave out no line from here on, and set the level of Spark's log."""
    _told_all.set()
    # Spark does nothing about a level that its own defaults name, INFO, though it has its log begin at WARN in such a JVM.
    for one in ("WARN", log_level):
        spark.sparkContext.setLogLevel(one)


def output(settings: Mapping[str, Any], *, held: bool = False) -> FilteredOutput | None:
    """Make a pipe for the standard error of a JVM with these settings; None where all that it says is seen as it comes.

    ``held``: what it says waits for ``Output.release``.
    """
    everything = LOG_LEVEL in settings or str(settings.get(_PROGRESS, "false")) != "false"
    if everything and not held:
        return None
    try:
        made = FilteredOutput(held=held, everything=everything)
    except OSError:  # this process has no standard error
        return None
    _outputs.append(made)
    return made


@atexit.register
def catch_up() -> None:
    """Wait until what the JVM has written already is on standard error."""
    for one in _outputs:
        one.pump.catch_up()


class FilteredOutput:
    """Lines that go on to this process's standard error of the moment, except those of no use.

    Parameters
    ----------
    held
        Lines wait for ``release``.
    everything
        Lines of no use go on, too.
    """

    def __init__(self, *, held: bool = False, everything: bool = False) -> None:
        self._error, self._everything = os.dup(2), everything
        self._dropped = False
        self._retries: dict[bytes, float] = {}
        """The times of retries, by what they say."""
        self._held: list[bytes] | None = [] if held else None
        self._lock = threading.Lock()
        self.pump = Pump(self._take)
        self.pump.start()

    def said(self) -> str:
        """Return the lines that are held."""
        self.pump.catch_up()
        return b"".join(self._held or ()).decode(errors="replace")

    def release(self) -> None:
        """Let lines go on, without the report on packages that were found."""
        self.pump.catch_up()
        with self._lock:
            held, self._held = self._held, None
            for line in _FOUND.sub(b"", b"".join(held or ())).splitlines(keepends=True):
                self._show(line)

    def _take(self, line: bytes) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
            else:
                self._show(line)

    def _is_said(self, line: bytes) -> bool:
        """Tell whether a line is a retry that goes on, and was said when it began."""
        if (retry := _RETRY.match(line)) is None:
            return False
        if len(self._retries) == _MOST_RETRIES:
            self._retries.clear()
        now = time.monotonic()
        last = self._retries.get(retry[1])
        self._retries[retry[1]] = now
        return last is not None and now - last < _SILENT_S

    def _show(self, line: bytes) -> None:
        is_rest = self._dropped and _REST.match(line) is not None
        all_lines = self._everything or _told_all.is_set()
        self._dropped = not all_lines and (is_rest or _NOISE.match(line) is not None or self._is_said(line))
        if self._dropped:
            return
        with contextlib.suppress(OSError):  # closed: those that write must not wait
            while line:
                try:
                    line = line[os.write(self._error, line) :]
                except BlockingIOError:  # a terminal or pipe that does not wait by itself
                    select.select([], [self._error], [])
