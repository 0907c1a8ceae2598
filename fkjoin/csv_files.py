"""Columns of CSV files by the names in their headers, where Spark goes by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.errors import TopologyError

_FINDING = {"pathglobfilter", "recursivefilelookup"}


def by_name(spark: SparkSession, pattern: str, options: Mapping[str, Any], columns: StructType) -> StructType:
    """The columns in the order of the newest file's header, others of it among them as text.

    Spark refuses files with another header by name, when it comes to them.  Without a header, or with ``enforceSchema``, the
    columns are as they are given.
    """
    chosen = {name.lower(): str(value).lower() for name, value in options.items()}
    if chosen.get("header") != "true" or chosen.get("enforceschema") == "true":
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


def as_newest(
    spark: SparkSession, pattern: str, options: Mapping[str, Any], inferred: StructType, folders: Sequence[str]
) -> StructType:
    """What was inferred of all files: the columns of the newest one's header, and those of ``folders``."""
    if str(options.get("header", "")).lower() != "true" or (file := _newest(spark, pattern, options)) is None:
        return inferred
    types = {field.name.lower(): field for field in inferred}
    found = [types.get(name.lower(), StructField(name, StringType())) for name in _header(spark, file, options)]
    return StructType([*found, *(inferred[name] for name in folders)])


def _newest(spark: SparkSession, pattern: str, options: Mapping[str, Any]) -> str | None:
    """The path of the newest file that is not empty."""
    chosen = {name: value for name, value in options.items() if name.lower() in _FINDING}
    files = spark.read.format("binaryFile").options(**chosen).load(pattern).where("length > 0")
    newest = files.select(F.max_by("path", F.struct("modificationTime", "path"))).first()
    return None if newest is None else newest[0]


def _header(spark: SparkSession, file: str, options: Mapping[str, Any]) -> list[str]:
    chosen = {name: value for name, value in options.items() if name.lower() not in {*_FINDING, "inferschema", "basepath"}}
    path = "".join(f"\\{letter}" if letter in "[]{}*?\\" else letter for letter in file)
    return spark.read.format("csv").options(**chosen).load(path).columns
