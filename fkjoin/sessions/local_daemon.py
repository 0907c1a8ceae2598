"""Modules that Spark's daemon of a local session imports before it forks Python workers.

They share its memory, and PySpark's collection of garbage after each task has little to look at
(docs/adr/0023-workers-share-what-they-import.md).  ``local-python`` starts the daemon so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable
from io import BufferedReader
from typing import Any

NEEDED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "fkjoin.folds.bulk",
    "fkjoin.spark.bucket_run",
    "fkjoin.spark.parquet",
    "fkjoin.spark.stepped",
    "fkjoin.spark.topic_records",
    "fkjoin.spark.topic_values",
    "fkjoin.analysis.vectorize",
)
"""Modules that may be imported before a fork.

The one thread that they start is a memory allocator's, which knows of forks.
"""


def load() -> None:
    """Import what is ``NEEDED``.

    What cannot be imported is left to the worker that needs it, which says so.
    """
    if sys.platform != "linux":  # elsewhere libraries do not outlive a fork
        return
    with contextlib.redirect_stdout(sys.stderr):  # Spark reads the daemon's output
        for name in NEEDED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if worker := sys.modules.get("pyspark.worker"):
        worker.main = while_open(worker.main)  # type: ignore[attr-defined]
    if numpy := sys.modules.get("numpy"):  # workers are not to draw the same numbers
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()


def while_open(
    run: Callable[[BufferedReader, Any], None],
) -> Callable[[BufferedReader, Any], None]:
    """A worker's work, unless there is no more.

    Spark closes the connections of workers that had no task for a minute.  PySpark then writes an
    error to the closed connection, which fails, and prints that failure: a traceback for each
    worker of a query that waits for rows.
    """

    def work(infile: BufferedReader, outfile: Any) -> None:
        if not infile.peek(1):
            raise SystemExit(1)
        run(infile, outfile)

    return work
