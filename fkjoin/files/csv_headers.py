"""Columns of CSV files by the names in their headers, where Spark goes by place; and quotes as RFC 4180 has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.errors import TopologyError
from fkjoin.files.newest import finding, newest, reading
from fkjoin.spark.names import quoted


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and where they say nothing a header and the quotes of RFC 4180: with lines within, and doubled for one."""
    defaults = {"header": True, "multiLine": True, "escape": _option(options, "quote", '"')}
    known = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in known}, **options}


def unclosed(fields: StructType, options: Mapping[str, Any]) -> Iterator[Column]:
    """Yield the problems of texts that Spark's reader has made of a quote without an end, and of the records behind it.

    It takes all up to the next quotes, and the text then begins with one; or all up to the end of the file.
    """
    mark, separator = str(_option(options, "quote", '"')), str(_option(options, "sep", _option(options, "delimiter", ",")))
    told = 'column {}: a quote has no end; write "" for a quote within quotes'.format
    for place, field in enumerate(fields):
        if not mark or not isinstance(field.dataType, StringType):
            continue
        text = F.col(quoted(field.name))
        swallowed = text.startswith(mark)
        if place == len(fields) - 1:
            last = F.substring_index(F.substring_index(text, "\n", -2), "\n", 1)
            separators = F.size(F.split(last, re.escape(separator))) - 1
            swallowed |= text.endswith("\n") & (separators >= F.lit(max(place, 1)))
        yield F.when(text.contains("\n") & swallowed, F.lit(told(field.name)))


def by_name(spark: SparkSession, pattern: str, options: Mapping[str, Any], columns: StructType) -> StructType:
    """The columns in the order of the newest file's header, others of it among them as text.

    One without a name is among them, too.  Spark refuses files with another header by name, when it comes to them.  Without a
    header, or with ``enforceSchema``, the columns are as they are given.
    """
    by_place = str(_option(options, "enforceSchema", False)).lower() == "true"
    if by_place or not _has_header(options):
        return columns
    files = newest(spark, pattern, options, 1)
    if not files:
        return columns
    file = files[0]
    header = _header(spark, file, options)
    _require_once(file, header)
    wanted = {field.name.lower(): field for field in columns}
    there = {name.lower() for name in header if name is not None}
    shown = ", ".join(name or "(no name)" for name in header)
    if missing := [field.name for name, field in wanted.items() if name not in there]:
        raise TopologyError(
            f"schema: {file} has no column {', '.join(missing)}; its header is {shown}. Name the columns as the "
            'header does, or read them by place: options={"enforceSchema": True}'
        )
    empty = str(_option(options, "nullValue", ""))  # what Spark finds in a header where there is no name
    names = [empty if name is None else name for name in header]
    return StructType([wanted.get(name.lower(), StructField(name, StringType())) for name in names])


def learned(spark: SparkSession, pattern: str, options: Mapping[str, Any]) -> StructType:
    """Find the columns of the files whose header is that of the newest one, as Spark makes their types out."""
    lines = spark.read.format("text").options(**finding(options)).load(pattern).where("_metadata.file_block_start = 0")
    about = F.max("_metadata.file_modification_time").alias("time"), F.first("value").alias("header")
    files = lines.groupBy(F.col("_metadata.file_path").alias("path")).agg(*about).collect()
    newest = max(files, key=lambda file: (file.time, file.path), default=None)
    same = [_escaped(unquote(file.path)) for file in files if newest is not None and file.header == newest.header]
    places = pattern if len(same) == len(files) or not _has_header(options) else same
    found = spark.read.format("csv").options(**{"inferSchema": True, **reading(options, places)}).load(places).schema
    if newest is None or not _has_header(options):
        return found
    unnamed = [place for place, name in enumerate(_header(spark, unquote(newest.path), options)) if name is None]
    return StructType([field for place, field in enumerate(found) if place not in unnamed])


def _header(spark: SparkSession, file: str, options: Mapping[str, Any]) -> list[str | None]:
    """The names of a file's columns as they stand there; None where there is no name."""
    chosen = {name: value for name, value in reading(options, [file]).items() if name.lower() not in ("header", "inferschema")}
    return list(spark.read.format("csv").options(**chosen).load(_escaped(file)).first() or ())


def _require_once(file: str, header: Sequence[str | None]) -> None:
    """``TopologyError`` if names repeat: Spark tells the columns of a header apart by their names."""
    names = [name if name is None else name.lower() for name in header]
    repeated = [name or "(no name)" for place, name in enumerate(header) if names.index(names[place]) < place]
    if repeated:
        raise TopologyError(
            f"path: {file} has several columns {', '.join(dict.fromkeys(repeated))} in its header. Name them apart, or read "
            'all columns by place: schema= with a name for each, and options={"enforceSchema": True}'
        )


def _has_header(options: Mapping[str, Any]) -> bool:
    return str(_option(options, "header", False)).lower() == "true"


def _option(options: Mapping[str, Any], name: str, default: Any) -> Any:
    return next((value for given, value in options.items() if given.lower() == name.lower()), default)


def _escaped(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "[]{}*?\\" else letter for letter in path)
