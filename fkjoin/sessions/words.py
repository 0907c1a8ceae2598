"""Standard error of a session's JVM and its workers, without lines that a user cannot act on.

They pass through a pipe of this process.  JVM options and Spark's log settings do not reach all of
them: the JVM says some before it has a log, and PySpark's workers print.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import select
import threading
import time
import warnings
from collections.abc import Callable

LOG_LEVEL = "spark.log.level"

_DATE = rb"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN "

_PANDAS = "PySpark does not yet fully support pandas"
"""The beginning of PySpark's warning about pandas 3; ``fkjoin doctor`` repeats it."""

_NOISE = re.compile(
    rb"WARNING: Using incubator modules: jdk.incubator.vector"
    rb"|Using Spark's default log4j profile: "
    rb'|Setting default log level to "'
    rb"|To adjust logging level use sc.setLogLevel"
    # Printed by the process that a query starts for each operator, to ask for its states.
    rb"|(?:Starting )?Streaming TransformWithState\w* Python worker"
    rb"|.*:\d+: FutureWarning: " + _PANDAS.encode() + rb"|  require_minimum_pandas_version\(\)$"
    # Of each start, of each new bucket, of each stop, and of each pattern of paths.
    rb"|" + _DATE + rb"(?:"
    rb"Utils: Your hostname, .* resolves to a loopback address"
    rb"|Utils: Set SPARK_LOCAL_IP if you need to bind to another address"
    rb"|NativeCodeLoader: Unable to load native-hadoop library"
    rb"|SparkSession: Using an existing Spark session; only runtime SQL config"
    rb"|ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming"
    rb"|MicroBatchExecution: Disabling AQE since AQE is not supported in stateful workloads"
    rb"|TransformWithStateIn\w+StateServer: \w+ state .* doesn't contain a value"
    rb"|TransformWithStateIn\w+StateServer: No more data to read from the socket"
    rb"|DAGScheduler: Failed to cancel job group .* Cannot find active jobs for it"
    rb"|FileStreamSink: Assume no metadata directory)"
)
"""Lines that are left out."""

_REST = re.compile(
    rb"\n|\tat |\t\.\.\. \d+ more|(?:Caused by: )?[a-z]\w*(?:\.\w+)+(?:Exception|Error)\b"
)
"""Lines that belong to the one before them: an empty one, and the lines of an exception."""

_RETRY = re.compile(_DATE + rb"NetworkClient: \[[^]]*\] (.*?)(?: with correlation id \d+|\n|$)")
"""A retry of Kafka's client, which says it of each client, many times a second."""

_SILENT_S = 60.0
"""The time without a retry from which on the same one is said again."""

_PACKAGES = re.compile(rb"\A.* artifacts copied, \d+ already retrieved[^\n]*\n", re.DOTALL)
"""The report on packages that were fetched, and what comes before it."""

_MARK = b"fkjoin: this is as far as it has come\n"
_PATIENCE_S = 2


def drop_warnings() -> None:
    """Leave out PySpark's warning about pandas 3, unless the program asks for it."""
    warnings.filterwarnings("ignore", _PANDAS, FutureWarning, append=True)


@functools.cache
def output() -> Output:
    """The output of all JVMs of this process."""
    return Output()


class Output(threading.Thread):
    """Lines that other processes write into a pipe; a thread hands on all but useless ones."""

    def __init__(self) -> None:
        super().__init__(name="fkjoin-log", daemon=True)
        reading, self.writing = os.pipe()
        self._source = os.fdopen(reading, "rb")
        self.take: Callable[[bytes], None] = show
        """A function that gets each line."""
        self.next_take: Callable[[bytes], None] = show
        """Its successor from the next ``catch_up`` on: each gets what was written in its time."""
        self.everything = False
        """True if lines of no use are handed on, too."""
        self.held = False
        """True if lines wait, as they do while a JVM starts."""
        self.waiting: list[bytes] = []
        self._dropped = False
        self._retries: dict[bytes, float] = {}
        """The times of retries, by what they say."""
        self._reached = threading.Event()
        atexit.register(self.catch_up)
        self.start()

    def run(self) -> None:
        for line in self._source:
            is_marked = line.endswith(_MARK)  # perhaps after a line that was not finished
            self.waiting.append(line.removesuffix(_MARK))
            if not self.held:
                self._hand_on()
            if is_marked:
                self.take = self.next_take
                self._reached.set()

    def catch_up(self) -> None:
        """Wait until what is written already has come here, for two seconds at most."""
        # In a fork of this process there is no thread, and nothing reads a pipe that is full.
        if self.is_alive() and select.select([], [self.writing], [], _PATIENCE_S)[1]:
            self._reached.clear()
            os.write(self.writing, _MARK)
            self._reached.wait(_PATIENCE_S)

    def said(self) -> str:
        """Return the lines that wait."""
        self.catch_up()
        return b"".join(self.waiting).decode(errors="replace")

    def release(self) -> None:
        """Hand on the lines that wait, without the report on packages."""
        self.held = False
        self.catch_up()

    def _hand_on(self) -> None:
        text = b"".join(self.waiting)
        self.waiting.clear()
        for line in _PACKAGES.sub(b"", text).splitlines(keepends=True):
            if self.everything or not self._is_noise(line):
                self.take(line)

    def _is_noise(self, line: bytes) -> bool:
        is_rest = self._dropped and _REST.match(line) is not None
        self._dropped = is_rest or _NOISE.match(line) is not None or self._is_repeated(line)
        return self._dropped

    def _is_repeated(self, line: bytes) -> bool:
        """Tell whether a line is a retry that continues, and was said when it began."""
        if (retry := _RETRY.match(line)) is None:
            return False
        now = time.monotonic()
        last = self._retries.get(retry[1], -_SILENT_S)
        self._retries[retry[1]] = now
        return now - last < _SILENT_S


def show(line: bytes) -> None:
    """Write a line on standard error; to one that is closed, nothing."""
    with contextlib.suppress(OSError):
        while line:
            select.select([], [2], [])  # a terminal or pipe that does not wait by itself
            line = line[os.write(2, line) :]
