"""Types of columns that files came to have: those of the oldest file, compared with those of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.files.source import open_files
from fkjoin.spark.schemas import listed

_OF_FILES = "key", "format", "options"


def types_changed(spark: SparkSession, path: Any, learned: StructType, about: Mapping[str, Any]) -> bool:
    """Tell whether a column has another type in the oldest file than it was learned to have; true if that cannot be told.

    A query that has read the files before may have begun with that type.

    Parameters
    ----------
    spark
        The session.
    path
        The folder or glob.
    learned
        The columns that were learned from all files.
    about
        The arguments of ``Table.from_files``.
    """
    if "format" not in about:
        return True
    try:
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(path))
        (oldest,) = files.orderBy("modificationTime", "path").select(F.col("path")).limit(1).collect()
        numbers = [*listed(about["version"]), about["timestamp"]]
        same = {name: about[name] for name in _OF_FILES}
        alone = open_files(spark, oldest["path"], schema=None, numbers=numbers, **same)
    except Exception:  # the error that is told about is another one
        return True
    first = {field.name: field.dataType for field in alone.schema}
    return any(first.get(field.name, field.dataType) != field.dataType for field in learned)
