"""Spark's daemon, which forks the Python workers of a local session, with what they all need imported before: they share its
memory, and start faster.  ``local-python`` runs this file in place of ``-m pyspark.daemon``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

NEEDED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "fkjoin.spark.bucket_run",
    "fkjoin.spark.parquet",
    "fkjoin.spark.topic_values",
)
"""Modules that may be imported before a fork: the one thread that they start is a memory allocator's, which knows of forks."""


def load() -> None:
    """Import what is ``NEEDED``.  What cannot be imported is left to the worker that needs it, which says so."""
    with contextlib.redirect_stdout(sys.stderr):  # Spark reads the daemon's output
        for name in NEEDED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if numpy := sys.modules.get("numpy"):  # workers are not to draw the same numbers
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())  # and not this file's folder: as it is with -m
    if sys.platform == "linux" and sys.argv[1:] == ["pyspark.worker"]:
        load()
    from pyspark.daemon import manager

    manager()
