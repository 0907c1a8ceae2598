"""Small files beside a checkpoint, on whatever file system it is on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark import SparkContext
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
    """Make a file, or replace it in one step: a process that is killed meanwhile leaves the file as it was."""
    scheme = files.getUri().getScheme()
    if scheme == "file":
        _replace_local(Path(path.toUri().getPath()), data)
        return
    draft = path.suffix(".draft") if scheme == "hdfs" else path  # an object store shows a file when it is whole
    out = files.create(draft, True)
    out.write(data)
    out.close()
    if scheme == "hdfs":
        _rename_over(files, draft, path)


def _replace_local(path: Path, data: bytes) -> None:
    """Replace a file of this machine.  Hadoop deletes it first, so that for an instant there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop refuses a file that its checksum does not fit
    draft.replace(path)


def _rename_over(files: Any, draft: Any, path: Any) -> None:
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
