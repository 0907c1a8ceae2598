"""What Spark's daemon imports in a local session before it forks Python workers: they share its memory, and start faster.
``local-python`` starts the daemon so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

NEEDED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "fkjoin.aggregates.bulk",
    "fkjoin.spark.bucket_run",
    "fkjoin.spark.parquet",
    "fkjoin.spark.stepped",
    "fkjoin.spark.topic_records",
    "fkjoin.spark.topic_values",
    "fkjoin.spark.vectorized",
)
"""Modules that may be imported before a fork: the one thread that they start is a memory allocator's, which knows of forks."""


def load() -> None:
    """Import what is ``NEEDED``.  What cannot be imported is left to the worker that needs it, which says so."""
    if sys.platform != "linux":  # elsewhere libraries do not outlive a fork
        return
    with contextlib.redirect_stdout(sys.stderr):  # Spark reads the daemon's output
        for name in NEEDED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if numpy := sys.modules.get("numpy"):  # workers are not to draw the same numbers
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()
