"""Columns of CSV files by the names in their headers, and quotes as RFC 4180 has them.

Spark goes by the places of columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.checkpoint.files import escaped
from fkjoin.errors import TopologyError
from fkjoin.files.newest import finding, newest, reading
from fkjoin.spark.names import quoted


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and where they say nothing a header and the quotes of RFC 4180.

    Such quotes have lines within, and are doubled for one.
    """
    defaults = {"header": True, "multiLine": True, "escape": options.get("quote", '"')}
    return {**defaults, **options}


def unclosed(fields: StructType, options: Mapping[str, Any]) -> Iterator[Column]:
    """Yield the problems of texts that Spark's reader has made of a quote without an end.

    It takes all up to the next quotes, and the text then begins with one; or all up to the end of
    the file.
    """
    mark = str(options.get("quote", '"'))
    separator = str(options.get("sep", options.get("delimiter", ",")))
    for index, field in enumerate(fields):
        if not mark or not isinstance(field.dataType, StringType):
            continue
        text = F.col(quoted(field.name))
        swallowed = text.startswith(mark)
        if index == len(fields) - 1:
            last = F.substring_index(F.substring_index(text, "\n", -2), "\n", 1)
            separators = F.size(F.split(last, re.escape(separator))) - 1
            swallowed |= text.endswith("\n") & (separators >= F.lit(max(index, 1)))
        problem = f'column {field.name}: a quote has no end; write "" for a quote within quotes'
        yield F.when(text.contains("\n") & swallowed, F.lit(problem))


def by_name(
    spark: SparkSession, pattern: str, options: Mapping[str, Any], columns: StructType
) -> StructType:
    """The columns in the order of the newest file's header, others of it among them as text.

    One without a name is among them, too.  Spark refuses files with another header by name, when it
    comes to them.  Without a header, or with ``enforceSchema``, the columns are as they are given.
    """
    by_place = str(options.get("enforceSchema", False)).lower() == "true"
    if by_place or not _has_header(options):
        return columns
    files = newest(spark, pattern, options, 1)
    if not files:
        return columns
    file = files[0]
    header = _header(spark, file, options)
    _require_once(file, header)
    wanted = {field.name.lower(): field for field in columns}
    known = {name.lower() for name in header if name is not None}
    shown = ", ".join(name or "(no name)" for name in header)
    if missing := [field.name for name, field in wanted.items() if name not in known]:
        raise TopologyError(
            f"schema: {file} has no column {', '.join(missing)}; its header is {shown}. Name the "
            'columns as the header does, or read them by position: options={"enforceSchema": True}'
        )
    # Spark finds this in a header where there is no name.
    empty = str(options.get("nullValue", ""))
    ordered = StructType()
    for title in header:
        name = empty if title is None else title
        ordered.add(wanted.get(name.lower(), StructField(name, StringType())))
    return ordered


def learned(spark: SparkSession, pattern: str, options: Mapping[str, Any]) -> StructType:
    """Find the columns of the files with the newest one's header; Spark makes their types out."""
    lines = spark.read.format("text").options(**finding(options)).load(pattern)
    first_lines = lines.where("_metadata.file_block_start = 0")
    time = F.max("_metadata.file_modification_time").alias("time")
    by_file = first_lines.groupBy(F.col("_metadata.file_path").alias("path"))
    files = by_file.agg(time, F.first("value").alias("header")).collect()
    newest = max(files, key=lambda file: (file.time, file.path), default=None)
    header = None if newest is None else newest.header
    same = [escaped(unquote(file.path)) for file in files if file.header == header]
    paths = pattern if len(same) == len(files) or not _has_header(options) else same
    chosen = {"inferSchema": True, **reading(options, paths)}
    schema = spark.read.format("csv").options(**chosen).load(paths).schema
    if newest is None or not _has_header(options):
        return schema
    names = _header(spark, unquote(newest.path), options)
    unnamed = [index for index, name in enumerate(names) if name is None]
    return StructType([field for index, field in enumerate(schema) if index not in unnamed])


def _header(spark: SparkSession, file: str, options: Mapping[str, Any]) -> list[str | None]:
    """The names of a file's columns as they stand there; None where there is no name."""
    chosen = {**reading(options, [file]), "header": False, "inferSchema": False}
    return list(spark.read.format("csv").options(**chosen).load(escaped(file)).first() or ())


def _require_once(file: str, header: Sequence[str | None]) -> None:
    """``TopologyError`` if names repeat: Spark tells a header's columns apart by their names."""
    lower = [name and name.lower() for name in header]
    repeated = [name for index, name in enumerate(header) if lower[index] in lower[:index]]
    if repeated:
        names = dict.fromkeys(name or "(no name)" for name in repeated)
        raise TopologyError(
            f"path: {file} has several columns {', '.join(names)} in its header. Rename them in "
            "the file, or read all columns by position: schema= with a name for each, and "
            'options={"enforceSchema": True}'
        )


def _has_header(options: Mapping[str, Any]) -> bool:
    return str(options.get("header", False)).lower() == "true"
