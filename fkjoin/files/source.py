"""Change-log files as a streaming DataFrame of their columns, with what is wrong with a line, and where it is."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.checkpoint.files import hadoop
from fkjoin.codec.json_read import Reading, parsable
from fkjoin.errors import TopologyError
from fkjoin.files import csv_headers as csv_files
from fkjoin.files.folders import MISFIT, Folders, as_glob, lowered, without_base
from fkjoin.files.options import OF_ANY_FILE, require_options
from fkjoin.files.parquet_kinds import require_kinds
from fkjoin.files.wider_types import narrowed, wider_fields
from fkjoin.plan.physical import InWorkers, Physical, Read, by_spark
from fkjoin.sessions.access import access
from fkjoin.sessions.settings import prepare, time_zone
from fkjoin.spark.cause import cause_of
from fkjoin.spark.frame import PROBLEM, RAW
from fkjoin.spark.json_lines import ReadLines, not_an_object
from fkjoin.spark.kinds import TIMES_OF_DAY, parts
from fkjoin.spark.names import quoted
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.schemas import arrow_schema, listed, nullable, struct_type

FileFormat = Literal["json", "parquet", "csv"]

_FORMATS: dict[str, FileFormat] = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".csv": "csv"}
_ANY_AGE = "36500d"
"""Spark by itself skips files that are a week older than the newest one, and does not say so."""
_CORRUPT, _FILE, _LINE, _UNNAMED, _MISFIT = (f"__fkjoin_{name}" for name in ("corrupt", "file", "line", "unnamed", "type"))
_CORRUPT_NAME = "columnNameOfCorruptRecord"
_GLOB = re.compile(r"([\[\]{}*?\\])")


class FilesRead(NamedTuple):
    """Files that were read, before they are a table."""

    rows: Physical
    """Their columns, ``RAW`` and ``PROBLEM``; where there is a problem, columns are null."""
    lines: Read | None
    """Their lines, where workers can read them."""
    schema: StructType
    """Types of the columns."""
    learned: bool
    """The schema is what the files had when they were opened."""
    name: str
    """Arguments for a table of them."""
    folders: tuple[str, ...]
    """The columns that names of folders are."""

    @property
    def what(self) -> str:
        """The columns, for people."""
        return _what(self.schema)


@dataclass(frozen=True)
class _Place:
    """Place of files, and the options that Spark's file source gets."""

    spark: SparkSession
    pattern: str
    options: dict[str, Any]

    def stream(self, format: str, schema: StructType | None = None, **more: Any) -> Read:
        return Read(format, {**more, **self.options}, self.pattern, schema)

    @property
    def given(self) -> set[str]:
        """The names of options that are for one format only, in lower case."""
        return {name.lower() for name in self.options} - OF_ANY_FILE


def open_files(
    spark: SparkSession,
    pattern: str,
    key: Any,
    *,
    schema: StructType | str | None,
    format: str | None,
    options: Mapping[str, Any] | None,
    begun_folders: Sequence[str] = (),
) -> FilesRead:
    """Open files, see ``Table.from_files``.

    ``begun_folders``: columns of the schema that names of folders were when a query began; they are null
    where no folder has them now.
    """
    prepare(spark)
    chosen = format or format_of(pattern)
    if chosen is None:
        absent = (
            f"has no {', '.join(_FORMATS)} file" if _matches(pattern) else "is not there; correct it, or, if files come later"
        )
        raise TopologyError(f'path: {pattern} {absent}: give format="json", "parquet" or "csv"')
    if chosen not in get_args(FileFormat):
        raise TopologyError(f"format: {chosen!r} is not one of {', '.join(get_args(FileFormat))}")
    require_options(options or {})
    place = _place(spark, pattern, csv_files.with_defaults(options or {}) if chosen == "csv" else options or {})
    learned = schema is None
    found = _learned(place, chosen, pattern) if schema is None else struct_type(schema, "from_files")
    lines = _lines(place)
    as_stream = on_spark(spark, lines)
    names = access(spark).folders(as_stream, place.pattern, place.options)
    said = {one.name.lower(): one for one in found}
    begun = lowered(begun_folders)
    later = [name for name in names if name.lower() not in begun and (learned or name.lower() in said)]
    # In the order of the schema that the query was begun with.
    wanted = [*begun_folders, *later]
    kinds = [said[name.lower()] if name.lower() in said else as_stream.schema[name] for name in wanted]
    columns = StructType(kinds)
    texts = set[str]()
    if learned:  # 007 and 7 are two keys
        keys = lowered(name for name in listed(key) if isinstance(name, str))
        texts = keys if chosen == "csv" else keys & lowered(columns.names)
    are_read = not lowered(names).isdisjoint(lowered(wanted))
    folders = Folders(_as_texts(columns, texts), tuple(names) if are_read else ())
    inner = _as_texts(StructType([one for one in found if one.name.lower() not in lowered(columns.names)]), texts)
    if names and not are_read:  # the same files, and no columns of folders
        place = _with_option(place, "recursiveFileLookup", True)
        lines = _lines(place)
    plain = None
    if chosen == "json" and not place.given and _corrupt_name(place) not in inner.names:
        plain = None if folders.columns else lines
        rows = _json(place, inner, folders)
    else:
        if not names:
            base = None if place.pattern == pattern and _GLOB.search(pattern) else Path(pattern).name
            alone = place.pattern if _GLOB.search(place.pattern) else as_glob(place.pattern)
            place, folders = _Place(spark, alone, without_base(place.options)), replace(folders, base=base)
        if chosen == "parquet":
            rows = _parquet(place, inner, folders)
        elif chosen == "csv":
            rows = _csv(place, inner, folders, learned=learned)
        else:
            rows = _by_reader(place, inner, folders)
    stem = Path(pattern.rstrip("/*")).name or "files"
    schema = StructType([*inner, *folders.columns])
    return FilesRead(rows, plain, schema, learned, stem.split(".")[0], tuple(columns.names))


def _lines(place: _Place) -> Read:
    """The lines, and the columns that names of folders are."""
    lines = place.stream("text")
    try:
        on_spark(place.spark, lines).columns  # noqa: B018  (a client of Spark Connect asks its server now)
    except Exception as error:
        hadoop(place.spark, place.pattern)  # which says why where the session cannot reach it
        if not isinstance(error, AnalysisException) or error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise TopologyError(f"path: {place.pattern} does not exist; create the folder first, it may be empty") from error
    return lines


def _learned(place: _Place, format: str, pattern: str) -> StructType:
    try:
        if format == "csv":
            return csv_files.learned(place.spark, place.pattern, place.options)
        found = place.spark.read.format(format).options(**place.options).load(place.pattern).schema
    except Exception as error:
        raise TopologyError(
            f"path: {pattern} cannot be read to learn its columns; is it there, and not empty? Else give schema=, as "
            f'"fkjoin state columns CHECKPOINT" prints it if a query has read files there before. ({cause_of(error)})'
        ) from error
    corrupt = _corrupt_name(place)
    return StructType([field for field in found if field.name != corrupt])


def _json(place: _Place, inner: StructType, folders: Folders) -> Physical:
    """The columns of JSON lines."""
    columns = _what(inner)
    fields = arrow_schema("schema", inner)
    if not parsable(pa.struct(list(fields))):
        raise TopologyError(
            f"schema: {columns} cannot be read from JSON: a name is in it twice, or a map whose keys are no text"
        )
    schema = None
    if folders.there:
        schema = StructType([StructField("value", StringType()), *folders.texts])
    # A node of its own: Spark reads what has the files' paths apart from what workers read without.
    lines = place.stream("text", schema)
    whole = StructType([StructField(field.name, nullable(field.dataType)) for field in [*inner, *folders.columns]])
    _, misfit = folders.placed(on_spark(place.spark, lines))
    beside = [] if misfit is None else [StructField(MISFIT, StringType())]
    texts = [StructField(name, StringType()) for name in (PROBLEM, _FILE)]
    kind = StructType([*whole, *beside, *texts]).add(_LINE, BinaryType())
    others = (*folders.columns.names, *(field.name for field in beside))
    # By the same code as in the workers: Spark's own reader takes other texts for JSON.
    reading = ReadLines(fields, columns, others, _FILE, PROBLEM, _LINE, as_session(place.spark))
    located = by_spark(lambda frame: folders.placed(_with_file(frame))[0], lines)
    raw = F.struct(F.col(_FILE).alias("file"), F.col(_LINE).alias("value")).alias(RAW)
    if misfit is None:
        chosen = [*_named(whole.names), F.col(PROBLEM), raw]
    else:
        problem = F.coalesce(F.col(PROBLEM), misfit)
        chosen = [*_where(problem.isNull(), whole.names), problem.alias(PROBLEM), raw]
    return by_spark(lambda frame: frame.select(*chosen), InWorkers(located, reading, kind))


def _with_file(lines: DataFrame) -> DataFrame:
    return lines.withColumn(_FILE, F.col("_metadata.file_path"))


def as_session(spark: SparkSession) -> Reading:
    """Return how times are read: clocks without a zone are in the session's."""
    return Reading(zone=time_zone(spark))


def _by_reader(place: _Place, inner: StructType, folders: Folders) -> Physical:
    """JSON as Spark's reader has it, which knows more options; with a column for lines that do not fit, those are rows."""
    _require_no_times(inner, place)
    if _corrupt_name(place) in inner.names:
        read = place.stream("json", StructType([*inner, *folders.texts]))
        return by_spark(partial(_checked, inner, folders, None), read)
    hidden = StructField(_CORRUPT, StringType())
    hiding = _with_option(place, _CORRUPT_NAME, _CORRUPT)
    read = hiding.stream("json", StructType([*inner, hidden, *folders.texts]))
    problem = F.when(_corrupt(inner).isNotNull(), F.lit(not_an_object(_what(inner))))
    return by_spark(partial(_checked, inner, folders, problem), read)


def _require_no_times(fields: StructType, place: _Place) -> None:
    """``TopologyError`` for times: Spark's reader takes any number for one, and counts seconds."""
    corrupt = _corrupt_name(place)
    why = f"column {corrupt}" if corrupt in fields.names else f"option {sorted(place.given)[0]}"
    for name, kind in parts(fields):
        if isinstance(kind, (TimestampType, TimestampNTZType, DateType, *TIMES_OF_DAY)):
            raise TopologyError(
                f"schema: column {name} is {kind.simpleString()}, and Spark's JSON reader, which the {why} asks for, counts a "
                f"number as seconds: take a bigint column and timestamp_millis({name}) in map_values, or a string column and a "
                "cast"
            )


def _parquet(place: _Place, inner: StructType, folders: Folders) -> Physical:
    require_kinds(place.spark, place.pattern, place.options, inner)
    read = place.stream("parquet", StructType([*wider_fields(inner), *folders.texts]))
    if wider_fields(inner) == StructType([StructField(one.name, one.dataType) for one in inner]):
        return by_spark(partial(_checked, inner, folders, None), read)
    fitting = by_spark(lambda frame: narrowed(frame, inner, _MISFIT, _CORRUPT), read)
    return by_spark(partial(_checked, inner, folders, F.col(_MISFIT)), fitting)


def _csv(place: _Place, inner: StructType, folders: Folders, *, learned: bool) -> Physical:
    corrupt = _corrupt_name(place)
    own = corrupt in inner.names and not learned
    fields = StructType([field for field in inner if not own or field.name != corrupt])
    read = csv_files.by_name(place.spark, place.pattern, place.options, fields)
    hidden = inner[corrupt] if own else StructField(_CORRUPT, StringType())
    source = place if own else _with_option(place, _CORRUPT_NAME, _CORRUPT)
    schema = StructType([*read, hidden, *folders.texts])
    lines = source.stream("csv", schema, enforceSchema="false")
    # A column without a name must be read, too, and no expression can do so.
    named = StructType([StructField(field.name or _UNNAMED, field.dataType) for field in read])
    titles = (*named.names, hidden.name, *folders.there)
    titled = by_spark(lambda frame: frame.toDF(*titles), lines)
    problem = None
    if not own:
        unfit = F.when(_corrupt(named).isNotNull(), F.lit(f"not a CSV line of {_what(inner)}"))
        wrong = *_far_years(named), *csv_files.unclosed(named, place.options)
        problem = F.coalesce(unfit, *wrong)
    return by_spark(partial(_checked, inner, folders, problem), titled)


def _far_years(fields: StructType) -> Iterator[Column]:
    """Yield the problems of times that Spark's CSV reader has made of five or six digits, which it takes for a year."""
    for field in fields:
        if isinstance(field.dataType, (TimestampType, TimestampNTZType, DateType)):
            told = F.lit(f"column {field.name}: a year beyond 9999, or a number without a unit")
            yield F.when(F.abs(F.year(F.col(quoted(field.name)))) > 9999, told)


def _corrupt(fields: StructType) -> Column:
    """The text of a line that does not fit.

    It reads all columns: Spark parses only those that are read, and overlooks what is wrong with others.
    """
    given, nothing = F.col(_CORRUPT), F.lit(True)
    for name in fields.names:
        nothing = nothing & F.col(quoted(name)).isNull()
    return F.when(nothing, F.concat(given, F.lit(""))).otherwise(given)


def _checked(inner: StructType, folders: Folders, problem: Column | None, frame: DataFrame) -> DataFrame:
    """Add ``PROBLEM`` and ``RAW`` to what a reader of Spark's has read; ``problem``: of the line."""
    path = F.input_file_name() if "_metadata" in frame.columns else F.col("_metadata.file_path")
    misplaced = folders.misplaced(path, inner.names)
    frame, misfit = folders.placed(frame)
    names = [*inner.names, *folders.columns.names]
    own = F.struct(*_named(names))
    value = F.to_json(own) if problem is None else F.coalesce(F.col(_CORRUPT), F.to_json(own))
    found = [one for one in (misplaced, problem, misfit) if one is not None]
    wrong = F.coalesce(*found) if found else F.lit(None).cast("string")
    rows = _where(wrong.isNull(), names) if found else _named(names)
    return frame.select(
        *rows, wrong.alias(PROBLEM), F.struct(path.alias("file"), value.cast("binary").alias("value")).alias(RAW)
    )


def _what(columns: StructType) -> str:
    return columns.simpleString()[:200]


def _named(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def _where(condition: Column, names: Sequence[str]) -> list[Column]:
    return [F.when(condition, F.col(quoted(name))).alias(name) for name in names]


def _as_texts(given: StructType, names: set[str]) -> StructType:
    """Make texts of the columns with these names, which are in lower case."""
    return StructType([StructField(one.name, StringType()) if one.name.lower() in names else one for one in given])


def _corrupt_name(place: _Place) -> str:
    """Return the name of the column with lines that do not fit, where a schema has it."""
    given = {name.lower(): value for name, value in place.options.items()}
    return str(given.get(_CORRUPT_NAME.lower()) or place.spark.conf.get("spark.sql.columnNameOfCorruptRecord"))


def _with_option(place: _Place, name: str, value: Any) -> _Place:
    """The place with an option, in whatever letters it was given."""
    others = {item: one for item, one in place.options.items() if item.lower() != name.lower()}
    return _Place(place.spark, place.pattern, {**others, name: value})


def _place(spark: SparkSession, pattern: str, given: Mapping[str, Any]) -> _Place:
    """Return the path that Spark takes for the files: one that is there is no glob."""
    known = {name.lower() for name in given}
    options = {**({} if "maxfileage" in known else {"maxFileAge": _ANY_AGE}), **given}
    path, files = hadoop(spark, pattern) if _GLOB.search(pattern) else (None, None)
    if files is None or not files.exists(path):
        return _Place(spark, pattern, options)
    if files.getFileStatus(path).isDirectory() and "basepath" not in known:
        options["basePath"] = pattern  # without it, Spark looks for no columns in folders of a glob
    return _Place(spark, _GLOB.sub(r"\\\1", pattern), options)


def format_of(pattern: str) -> FileFormat | None:
    """Choose a format from the endings of the files that ``pattern`` means; None where there are none of any format."""
    below = [Path(name) for place in _matches(pattern) for name in ([place] if Path(place).is_file() else _files_in(place))]
    endings = {_FORMATS[name.suffix] for name in [*below, Path(pattern)] if name.suffix in _FORMATS}
    if len(endings) > 1:
        raise TopologyError(f'path: {pattern} has files of several kinds: give format="json", "parquet" or "csv"')
    return endings.pop() if endings else None


def _matches(pattern: str) -> list[str]:
    return [pattern] if Path(pattern).exists() else glob.glob(pattern)


def _files_in(place: str) -> list[str]:
    """The names in a folder, and in folders of it that are named as columns are: ``region=eu``."""
    found = glob.glob(f"{glob.escape(place)}/*")
    return [*found, *(name for inner in found if "=" in Path(inner).name for name in _files_in(inner))]
