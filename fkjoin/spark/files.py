"""Small files beside a checkpoint, on whatever file system it is on."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession


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
    """Make a file, or replace it."""
    out = files.create(path, True)
    out.write(data)
    out.close()


def begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a query was started with the checkpoint."""
    path, files = hadoop(spark, f"{checkpoint}/metadata")
    return bool(files.exists(path))


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """What a checkpoint's query is called for as long as it lives."""
    return str(json.loads(read_file(*hadoop(spark, f"{checkpoint.rstrip('/')}/metadata")))["id"])
