"""The end of commands that are told to end: at once, and with all that they have started."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def end_when_told() -> None:
    """Leave by SIGTERM as by Ctrl-C, through all ``finally`` on the way.

    Also the first process of a container, which a signal that it does not handle does not reach.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def stopped_after(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of a command, stopped after it.

    A command that is told to end does not wait for what the JVM is doing: the JVM ends with the
    process.
    """
    # PySpark's own handler asks the JVM first, and waits.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _say_nothing_of_broken_connections(spark)
    with naming_the_end_of_the_jvm():
        try:
            yield spark
        except Exception:
            spark.stop()
            raise
        spark.stop()


@contextlib.contextmanager
def naming_the_end_of_the_jvm(heard: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Raise ``SessionError`` in the place of whatever goes wrong because the JVM has ended.

    ``heard`` gets its text.
    """
    try:
        yield
    except Exception as error:
        from fkjoin.sessions.launch import end_of_jvm

        if (end := end_of_jvm(error)) is None:
            raise
        heard(str(end))
        raise end from None


def _say_nothing_of_broken_connections(spark: SparkSession) -> None:
    """Leave out tracebacks about connections of the JVM that break.

    Py4J logs them, and PySpark's server of accumulators prints them.
    """
    from fkjoin.spark.spark_api import accumulator_server

    logging.getLogger().addFilter(_is_not_of_py4j)
    server = accumulator_server(spark.sparkContext)
    if server is not None:
        others = server.handle_error

        def handle_error(*request: Any) -> None:
            if sys.exc_info()[0] is not EOFError:
                others(*request)

        server.handle_error = handle_error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname
