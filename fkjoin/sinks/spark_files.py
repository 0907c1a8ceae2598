"""Queries that Spark's own sink of files ends: JSON, ORC and others, in a job file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.files import files_at
from fkjoin.checkpoint.indexes import owner
from fkjoin.errors import TopologyError, nearest, plain_line
from fkjoin.plan.physical import Physical
from fkjoin.sinks.ledger import require_spark_at
from fkjoin.spark.cause import cause_of
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.spark_api import java_session, jvm
from fkjoin.storage.local_files import require_writable

_OF_FILES = "json", "orc", "csv", "text", "xml", "avro"
"""Formats whose batch writer takes what the streaming one takes, and writes files at its path."""
_NAMES = (*_OF_FILES, "parquet", "delta", "console", "noop")


def require_written(
    frame: DataFrame, format: str, options: Mapping[str, Any], *, path: str, checkpoint: str
) -> None:
    """Raise ``FkJoinError`` if Spark's sink cannot write such a frame there; nothing is made.

    Spark's batch writer writes no rows to a temporary folder, and finds what the streaming one
    would find in a batch.  It does so where the executors are on this machine: others would make
    that folder on theirs.
    """
    spark = frame.sparkSession
    require_spark_at(spark, checkpoint, path)
    if (folder := files_at(spark, path).local) is not None:
        require_writable(folder)
    _require_source(spark, format)
    if format.lower() not in _OF_FILES or not str(spark.sparkContext.master).startswith("local"):
        return
    writer = spark.createDataFrame([], frame.schema).write.format(format).options(**_texts(options))
    with tempfile.TemporaryDirectory() as trial:
        try:
            writer.save(Path(trial, "out").as_uri())
        except (PySparkException, Py4JError) as error:
            condition = error.getCondition() if isinstance(error, PySparkException) else None
            if condition == "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE" or format.lower() == "text":
                raise TopologyError(
                    f"format: {format} cannot contain these changes: {_line_of(error)}; choose one "
                    "that can, such as json; or write a program, in which table.changes.drop(…) "
                    "leaves columns out"
                ) from error
            raise TopologyError(
                f"options: {format} cannot be written with {', '.join(options) or 'none'}: "
                f"{_line_of(error)}; set them as Spark's documentation of the format says"
            ) from error


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def _line_of(error: Exception) -> str:
    """Return what Spark or Java says, in a line."""
    return (cause_of(error) if isinstance(error, Py4JJavaError) else plain_line(error)).rstrip(".")


def _require_source(spark: SparkSession, format: str) -> None:
    """Raise ``TopologyError`` if Spark has no such format."""
    source = jvm().org.apache.spark.sql.execution.datasources.DataSource
    try:
        source.lookupDataSource(format, java_session(spark).sessionState().conf())
    except (PySparkException, Py4JError) as error:
        raise TopologyError(
            f"format: Spark has no {format!r}; {nearest(format, _NAMES)} For a format of another "
            "package, name the package in spark.jars.packages"
        ) from error


def _forget_cut_off(spark: SparkSession, checkpoint: str, path: str) -> None:
    """Take a batch that is not done out of the log of Spark's sink, which writes it again then.

    The sink would leave out the batch, and run no stage.  Spark cannot commit a batch without the
    states that its stages have written, and so fails at each start.
    """
    log = BatchLog(spark, checkpoint)
    if log.last > log.done:
        files = files_at(spark, path)
        for name in (f"{log.last}", f"{log.last}.compact"):
            files.delete(f"_spark_metadata/{name}")


def start_by_spark(
    spark: SparkSession,
    plan: Physical,
    format: str,
    options: Mapping[str, Any],
    *,
    path: str,
    checkpoint: str,
    begun: Begun,
    trigger: Mapping[str, Any],
    query_name: str,
    tables: Mapping[str, Any] = MappingProxyType({}),
) -> StreamingQuery:
    """Start a query that Spark's own sink of files ends; ``tables``: see ``require_begun_with``."""
    frame = on_spark(spark, plan)
    require_written(frame, format, options, path=path, checkpoint=checkpoint)
    require_begun_with(begun, spark, checkpoint, plan, tables=tables)
    begun.write(spark, checkpoint)
    _forget_cut_off(spark, checkpoint, path)
    writer = frame.writeStream.format(format).options(**_texts(options)).queryName(query_name)
    with owner(spark, checkpoint):
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start(path)
