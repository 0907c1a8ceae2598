"""The end of commands that are told to end: at once, and with all that they have started."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def end_when_told() -> None:
    """Leave by SIGTERM as by Ctrl-C, through all ``finally`` on the way: also the first process of a container, which a
    signal that it does not handle does not reach.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def stopped_after(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of a command, stopped after it.

    A command that is told to end does not wait for what the JVM is doing: the JVM ends with the process.
    """
    if threading.current_thread() is threading.main_thread():  # PySpark's own handler asks the JVM first, and waits
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    spark.stop()
