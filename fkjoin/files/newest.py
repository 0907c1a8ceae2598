"""The files of a source that are there, as Spark finds them, the newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_WHICH = {"pathGlobFilter", "recursiveFileLookup", "basePath"}


def newest(spark: SparkSession, pattern: str, options: Mapping[str, Any], most: int) -> list[str]:
    """The paths of the ``most`` newest files that are not empty; none if a glob has none yet."""
    reader = spark.read.format("binaryFile").options(**finding(options))
    try:
        files = reader.load(pattern).where("length > 0").select("path", "modificationTime")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []
    newest_first = files.orderBy(F.desc("modificationTime"), F.desc("path"))
    return [row.path for row in newest_first.limit(most).collect()]


def finding(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say which files there are."""
    return {name: value for name, value in options.items() if name in _WHICH}


def reading(options: Mapping[str, Any], paths: str | list[str]) -> dict[str, Any]:
    """The options with which files are read; of single ones, without those for folders."""
    if isinstance(paths, str):
        return dict(options)
    return {name: value for name, value in options.items() if name not in _WHICH}
