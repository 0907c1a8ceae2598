"""The files of a source that are there, as Spark finds them, the newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_WHICH = {"pathglobfilter", "recursivefilelookup", "basepath"}


def newest(spark: SparkSession, pattern: str, options: Mapping[str, Any], most: int) -> list[str]:
    """The paths of the newest files that are not empty, ``most`` of them; none if a glob has none yet."""
    files = spark.read.format("binaryFile").options(**finding(options))
    try:
        found = files.load(pattern).where("length > 0").select("path", "modificationTime")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []
    return [row.path for row in found.orderBy(F.desc("modificationTime"), F.desc("path")).limit(most).collect()]


def finding(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say which files there are."""
    return {name: value for name, value in options.items() if name.lower() in _WHICH}


def reading(options: Mapping[str, Any], places: str | list[str]) -> dict[str, Any]:
    """The options with which files are read; of single ones, without those for folders."""
    return {name: value for name, value in options.items() if isinstance(places, str) or name.lower() not in _WHICH}
