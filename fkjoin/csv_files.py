"""Columns of CSV files by the names in their headers, where Spark goes by place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.errors import TopologyError

_WHICH = {"pathglobfilter", "recursivefilelookup", "basepath"}


def by_name(spark: SparkSession, pattern: str, options: Mapping[str, Any], columns: StructType) -> StructType:
    """The columns in the order of the newest file's header, others of it among them as text.

    Spark refuses files with another header by name, when it comes to them.  Without a header, or with ``enforceSchema``, the
    columns are as they are given.
    """
    by_place = any(name.lower() == "enforceschema" and str(value).lower() == "true" for name, value in options.items())
    if by_place or not _has_header(options):
        return columns
    file = _newest(spark, pattern, options)
    if file is None:
        return columns
    header = _header(spark, file, options)
    wanted = {field.name.lower(): field for field in columns}
    there = {name.lower() for name in header}
    if missing := [field.name for name, field in wanted.items() if name not in there]:
        raise TopologyError(
            f"schema: {file} has no column {', '.join(missing)}; its header is {', '.join(header)}. Name the columns as the "
            'header does, or read them by place: options={"enforceSchema": True}'
        )
    return StructType([wanted.get(name.lower(), StructField(name, StringType())) for name in header])


def learned(spark: SparkSession, pattern: str, options: Mapping[str, Any]) -> StructType:
    """The columns of the files whose header is that of the newest one, as Spark makes their types out."""
    lines = spark.read.format("text").options(**_finding(options)).load(pattern).where("_metadata.file_block_start = 0")
    about = F.max("_metadata.file_modification_time").alias("time"), F.first("value").alias("header")
    files = lines.groupBy(F.col("_metadata.file_path").alias("path")).agg(*about).collect()
    newest = max(files, key=lambda file: (file.time, file.path), default=None)
    same = [_escaped(unquote(file.path)) for file in files if newest is not None and file.header == newest.header]
    places = pattern if len(same) == len(files) or not _has_header(options) else same
    return spark.read.format("csv").options(**{"inferSchema": True, **_reading(options, places)}).load(places).schema


def _newest(spark: SparkSession, pattern: str, options: Mapping[str, Any]) -> str | None:
    """The path of the newest file that is not empty."""
    files = spark.read.format("binaryFile").options(**_finding(options)).load(pattern).where("length > 0")
    newest = files.select(F.max_by("path", F.struct("modificationTime", "path"))).first()
    return None if newest is None else newest[0]


def _header(spark: SparkSession, file: str, options: Mapping[str, Any]) -> list[str]:
    chosen = {name: value for name, value in _reading(options, [file]).items() if name.lower() != "inferschema"}
    return spark.read.format("csv").options(**chosen).load(_escaped(file)).columns


def _has_header(options: Mapping[str, Any]) -> bool:
    return any(name.lower() == "header" and str(value).lower() == "true" for name, value in options.items())


def _finding(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say which files there are."""
    return {name: value for name, value in options.items() if name.lower() in _WHICH}


def _reading(options: Mapping[str, Any], places: str | list[str]) -> dict[str, Any]:
    """The options with which files are read; of single ones, without those for folders."""
    return {name: value for name, value in options.items() if isinstance(places, str) or name.lower() not in _WHICH}


def _escaped(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "[]{}*?\\" else letter for letter in path)
