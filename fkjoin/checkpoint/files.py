"""The files of a folder as a session reaches them, and the id of a checkpoint's query."""

from __future__ import annotations

import json
import re
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fkjoin.checkpoint.damage import RESTORE
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.sessions.access import access
from fkjoin.sessions.settings import require_running
from fkjoin.spark.cause import cause_of
from fkjoin.spark.spark_api import jvm
from fkjoin.storage.files import Files

IN_GLOBS = re.compile(r"[\[\]{}*?\\]")
"""Characters that Spark reads as patterns."""


def escaped(path: str) -> str:
    """The path as a pattern that nothing else fits."""
    return IN_GLOBS.sub(r"\\\g<0>", path)


def without_escapes(pattern: str) -> str:
    """The path of a pattern that nothing else fits, such as ``/data/[o]rders``."""
    return re.sub(r"\[(\w)\]|\\(.)", r"\1\2", pattern).rstrip("/")


def files_at(spark: SparkSession, folder: str | Path) -> Files:
    """The files of a folder; ``FkJoinError`` if the session has no file system for it."""
    require_running(spark)
    try:
        return access(spark).files(str(folder))
    except (Py4JJavaError, PySparkException, OSError) as error:
        raise FkJoinError(
            f"{folder} cannot be opened: {cause_of(error)}; give a place that this session can "
            f"reach, or {_what_is_lacking(str(folder))}"
        ) from error


_LIBRARIES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""Hadoop's libraries for file systems that Spark comes without."""


def _what_is_lacking(where: str) -> str:
    """Say what would let a session reach a place."""
    if (library := _LIBRARIES.get(where.partition(":")[0])) is None:
        return (
            "a session the jars and the settings of its file system "
            "(spark.jars.packages, spark.hadoop.…)"
        )
    classes, version = jvm(), "VERSION"
    if classes is not None:  # a client of Spark Connect has none
        version = classes.org.apache.hadoop.util.VersionInfo.getVersion()
    return f'a session the setting spark.jars.packages = "org.apache.hadoop:{library}:{version}"'


def checkpoint_files(spark: SparkSession, checkpoint: str) -> Files:
    """The files of a checkpoint; ``TopologyError`` if it is not a folder of its own."""
    if not checkpoint.rstrip("/"):
        raise TopologyError(
            f"checkpoint: {checkpoint!r} is not a folder of a query's own; give one, such as "
            "'ck/joined'"
        )
    return files_at(spark, checkpoint)


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Tell whether a query was started with the checkpoint.

    ``FkJoinError`` if the query has batches, and the file with its id is lost.
    """
    files = checkpoint_files(spark, checkpoint)
    if files.is_file("metadata"):
        return True
    if files.numbers("offsets") or files.numbers("commits"):
        raise FkJoinError(
            f"checkpoint {checkpoint} is damaged: its file metadata is lost; {RESTORE}"
        )
    return False


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of a checkpoint's query."""
    return str(json.loads(files_at(spark, checkpoint).read("metadata"))["id"])
