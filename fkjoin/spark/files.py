"""Small files beside a checkpoint, on whatever file system it is on."""

from __future__ import annotations

import json
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

_RENAMING = ("file", "hdfs")
"""Where a file can be seen while it is written; object stores show it when it is whole."""


def hadoop(spark: SparkSession, where: str) -> tuple[Any, Any]:
    """A path, and the file system that it is on."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(where)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())


def read_file(path: Any, files: Any) -> bytes:
    """All of a file."""
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def write_file(path: Any, files: Any, data: bytes) -> None:
    """Make a file, or replace it in one step: a process that is killed meanwhile leaves the file as it was."""
    renames = files.getUri().getScheme() in _RENAMING
    draft = path.suffix(".draft") if renames else path
    out = files.create(draft, True)
    out.write(data)
    out.close()
    if not renames:
        return
    context: Any = SparkContext._active_spark_context
    hadoop_fs = context._jvm.org.apache.hadoop.fs
    overwrite = context._gateway.new_array(hadoop_fs.Options.Rename, 1)
    overwrite[0] = hadoop_fs.Options.Rename.OVERWRITE
    hadoop_fs.FileContext.getFileContext(files.getUri(), files.getConf()).rename(
        files.makeQualified(draft), files.makeQualified(path), overwrite
    )


def begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a query was started with the checkpoint."""
    path, files = hadoop(spark, f"{checkpoint}/metadata")
    return bool(files.exists(path))


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """What a checkpoint's query is called for as long as it lives."""
    return str(json.loads(read_file(*hadoop(spark, f"{checkpoint.rstrip('/')}/metadata")))["id"])
