"""Change-log files as a streaming DataFrame: columns, and each line's problem and place."""

from __future__ import annotations

import glob
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
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fkjoin.checkpoint.files import IN_GLOBS, escaped, files_at
from fkjoin.codec.json_read import Reading, parsable
from fkjoin.errors import TopologyError
from fkjoin.files import csv_headers as csv_files
from fkjoin.files.folders import MISFIT, Folders, as_glob, lowered
from fkjoin.files.options import OF_ANY_FILE, require_options, spelled
from fkjoin.files.parquet_kinds import require_kinds
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

_FORMATS: dict[str, FileFormat] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
}
_ANY_AGE = "36500d"
"""Spark by itself skips files that are a week older than the newest one, and does not say so."""
_CORRUPT, _FILE, _LINE, _UNNAMED, _MISFIT = (
    f"__fkjoin_{name}" for name in ("corrupt", "file", "line", "unnamed", "type")
)
_CORRUPT_NAME = "columnNameOfCorruptRecord"


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


@dataclass(frozen=True)
class _Location:
    """Place of files, and the options that Spark's file source gets."""

    spark: SparkSession
    pattern: str
    options: dict[str, Any]

    def stream(self, format: str, schema: StructType | None = None, **more: Any) -> Read:
        return Read(format, {**more, **self.options}, self.pattern, schema)

    @property
    def format_options(self) -> set[str]:
        """The names of options that are for one format only."""
        return self.options.keys() - OF_ANY_FILE

    def with_option(self, name: str, value: Any) -> _Location:
        """The location with one more option."""
        return replace(self, options={**self.options, name: value})


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

    ``begun_folders``: columns of the schema that names of folders were when a query began; they are
    null where no folder has them now.
    """
    prepare(spark)
    chosen = format or format_of(pattern)
    if chosen is None:
        absent = "is not there; correct it, or, if files come later"
        if _matches(pattern):
            absent = f"has no {', '.join(_FORMATS)} file"
        raise TopologyError(f'path: {pattern} {absent}: give format="json", "parquet" or "csv"')
    if chosen not in get_args(FileFormat):
        raise TopologyError(f"format: {chosen!r} is not one of {', '.join(get_args(FileFormat))}")
    require_options(options or {})
    all_options = spelled(options or {})
    if chosen == "csv":
        all_options = csv_files.with_defaults(all_options)
    location = _located(spark, pattern, all_options)
    learned = schema is None
    fields = None if schema is None else struct_type(schema, "from_files")
    if fields is None:
        fields = _learned(location, chosen, pattern)
    lines = _lines(location)
    as_stream = on_spark(spark, lines)
    names = access(spark).folders(as_stream, location.pattern, location.options)
    known, begun = lowered(fields.names), lowered(begun_folders)
    later = [name for name in names if name.lower() not in begun]
    if not learned:
        later = [name for name in later if name.lower() in known]
    # In the order of the schema that the query was begun with.
    wanted = [*begun_folders, *later]
    kinds = {name.lower(): as_stream.schema[name] for name in wanted if name.lower() not in known}
    kinds |= {field.name.lower(): field for field in fields}
    columns = StructType([kinds[name.lower()] for name in wanted])
    of_folders = lowered(columns.names)
    texts = set[str]()
    if learned:  # 007 and 7 are two keys
        keys = lowered(name for name in listed(key) if isinstance(name, str))
        texts = keys if chosen == "csv" else keys & of_folders
    are_read = not lowered(names).isdisjoint(lowered(wanted))
    folders = Folders(_as_texts(columns, texts), tuple(names) if are_read else ())
    of_lines = [field for field in fields if field.name.lower() not in of_folders]
    inner = _as_texts(StructType(of_lines), texts)
    if names and not are_read:  # the same files, and no columns of folders
        location = location.with_option("recursiveFileLookup", True)
        lines = _lines(location)
    plain = None
    if (
        chosen == "json"
        and not location.format_options
        and _corrupt_name(location) not in inner.names
    ):
        plain = None if folders.columns else lines
        rows = _json(location, inner, folders)
    else:
        if not names:
            path = location.pattern
            if path != pattern or not IN_GLOBS.search(pattern):
                folders = replace(folders, base=Path(pattern).name)
            alone = path if IN_GLOBS.search(path) else as_glob(path)
            others = {name: value for name, value in location.options.items() if name != "basePath"}
            location = _Location(spark, alone, others)
        if chosen == "parquet":
            rows = _parquet(location, inner, folders)
        elif chosen == "csv":
            rows = _csv(location, inner, folders, learned=learned)
        else:
            rows = _by_reader(location, inner, folders)
    stem = Path(pattern.rstrip("/*")).name or "files"
    schema = StructType([*inner, *folders.columns])
    return FilesRead(rows, plain, schema, learned, stem.split(".")[0], tuple(columns.names))


def _lines(location: _Location) -> Read:
    """The lines, and the columns that names of folders are."""
    lines = location.stream("text")
    try:
        # A client of Spark Connect asks its server now.
        on_spark(location.spark, lines).columns  # noqa: B018
    except Exception as error:
        # It says why, where the session cannot reach it.
        files_at(location.spark, location.pattern)
        if not isinstance(error, AnalysisException) or error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise TopologyError(
            f"path: {location.pattern} does not exist; create the folder first, it may be empty"
        ) from error
    return lines


def _learned(location: _Location, format: str, pattern: str) -> StructType:
    try:
        if format == "csv":
            return csv_files.learned(location.spark, location.pattern, location.options)
        reader = location.spark.read.format(format).options(**location.options)
        fields = reader.load(location.pattern).schema
    except Exception as error:
        raise TopologyError(
            f"path: {pattern} cannot be read to learn its columns; does it exist, and does it "
            "contain files? Otherwise give schema=; if a query has read files there before, "
            f'"fkjoin state columns CHECKPOINT" prints the schema. ({cause_of(error)})'
        ) from error
    corrupt = _corrupt_name(location)
    return StructType([field for field in fields if field.name != corrupt])


def _json(location: _Location, inner: StructType, folders: Folders) -> Physical:
    """The columns of JSON lines."""
    columns = columns_text(inner)
    fields = arrow_schema("schema", inner)
    if not parsable(pa.struct(list(fields))):
        raise TopologyError(
            f"schema: {columns} cannot be read from JSON: "
            "it contains a name twice, or a map whose keys are not texts"
        )
    schema = None
    if folders.names:
        schema = StructType([StructField("value", StringType()), *folders.texts])
    # A node of its own: Spark reads what has the files' paths apart from what workers read without.
    lines = location.stream("text", schema)
    names = [*inner.names, *folders.columns.names]
    _, misfit = folders.placed(on_spark(location.spark, lines))
    beside = [] if misfit is None else [StructField(MISFIT, StringType())]
    texts = [StructField(name, StringType()) for name in (PROBLEM, _FILE)]
    added = [*beside, *texts, StructField(_LINE, BinaryType())]
    kind = nullable(StructType([*inner, *folders.columns, *added]))
    others = (*folders.columns.names, *(field.name for field in beside))
    # By the same code as in the workers: Spark's own reader takes other texts for JSON.
    reading = ReadLines(fields, columns, others, _FILE, PROBLEM, _LINE, as_session(location.spark))
    path = F.col("_metadata.file_path")
    located = by_spark(lambda frame: folders.placed(frame.withColumn(_FILE, path))[0], lines)
    raw = F.struct(F.col(_FILE).alias("file"), F.col(_LINE).alias("value")).alias(RAW)
    if misfit is None:
        chosen = [*_named(names), F.col(PROBLEM), raw]
    else:
        problem = F.coalesce(F.col(PROBLEM), misfit)
        chosen = [*_where(problem.isNull(), names), problem.alias(PROBLEM), raw]
    return by_spark(lambda frame: frame.select(*chosen), InWorkers(located, reading, kind))


def as_session(spark: SparkSession) -> Reading:
    """Return how times are read: clocks without a zone are in the session's."""
    return Reading(zone=time_zone(spark))


def _by_reader(location: _Location, inner: StructType, folders: Folders) -> Physical:
    """JSON as Spark's reader has it, which knows more options.

    With a column for lines that do not fit, those are rows.
    """
    _require_no_times(inner, location)
    problem, fields = None, [*inner]
    if _corrupt_name(location) not in inner.names:
        location = location.with_option(_CORRUPT_NAME, _CORRUPT)
        fields.append(StructField(_CORRUPT, StringType()))
        problem = F.when(_corrupt(inner).isNotNull(), F.lit(not_an_object(columns_text(inner))))
    read = location.stream("json", StructType([*fields, *folders.texts]))
    return by_spark(partial(_checked, inner, folders, problem), read)


def _require_no_times(fields: StructType, location: _Location) -> None:
    """``TopologyError`` for times: Spark's reader takes any number for one, and counts seconds."""
    corrupt = _corrupt_name(location)
    why = f"column {corrupt}"
    if corrupt not in fields.names:
        why = f"option {sorted(location.format_options)[0]}"
    for name, kind in parts(fields):
        if isinstance(kind, (TimestampType, TimestampNTZType, DateType, *TIMES_OF_DAY)):
            raise TopologyError(
                f"schema: column {name} is {kind.simpleString()}, but with the {why}, Spark's JSON "
                "reader counts a number as seconds: take a bigint column and "
                f"timestamp_millis({name}) in map_values, or a string column and a cast"
            )


def _parquet(location: _Location, inner: StructType, folders: Folders) -> Physical:
    require_kinds(location.spark, location.pattern, location.options, inner)
    wide = _wider_fields(inner)
    read = location.stream("parquet", StructType([*wide, *folders.texts]))
    if wide == StructType([StructField(field.name, field.dataType) for field in inner]):
        return by_spark(partial(_checked, inner, folders, None), read)
    fitting = by_spark(partial(_narrowed, inner), read)
    return by_spark(partial(_checked, inner, folders, F.col(_MISFIT)), fitting)


def _wider(kind: DataType) -> DataType:
    """The type, with whole numbers as bigint and fractions as double.

    Spark's reader stops at a wider whole number than it is told to read, and cuts bits off where a
    table has bytes or shorts.  Maps cannot be compared, and stay.
    """
    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, FloatType):
        return DoubleType()
    if isinstance(kind, StructType):
        return _wider_fields(kind)
    return ArrayType(_wider(kind.elementType)) if isinstance(kind, ArrayType) else kind


def _wider_fields(fields: StructType) -> StructType:
    """The fields, each in its wider type."""
    return StructType([StructField(field.name, _wider(field.dataType)) for field in fields])


def _narrowed(fields: StructType, read: DataFrame) -> DataFrame:
    """The columns in the types of ``fields``, null where a value is of none.

    The column ``_MISFIT`` says which value; ``_CORRUPT`` has all of such a row, as JSON.
    """
    kinds = {field.name: field.dataType for field in fields}
    own = {name: kind for name, kind in kinds.items() if _wider(kind) != kind}
    problem = F.coalesce(*(_misfit_of(name, kind) for name, kind in own.items()))
    values = {name: F.col(quoted(name)) for name in read.columns}
    narrow = {name: values[name].try_cast(kind).alias(name) for name, kind in own.items()}
    row = F.to_json(F.struct(*(F.col(quoted(name)) for name in fields.names)))
    raw = F.when(problem.isNotNull(), row).alias(_CORRUPT)
    return read.select(*(values | narrow).values(), problem.alias(_MISFIT), raw)


def _misfit_of(name: str, kind: DataType) -> Column:
    value = F.col(quoted(name))
    words = f"column {name}: ", f" is not of type {kind.simpleString()}"
    problem = F.concat(F.lit(words[0]), value.cast("string"), F.lit(words[1]))
    return F.when(~value.eqNullSafe(value.try_cast(kind).cast(_wider(kind))), problem)


def _csv(location: _Location, inner: StructType, folders: Folders, *, learned: bool) -> Physical:
    corrupt = _corrupt_name(location)
    own = corrupt in inner.names and not learned
    fields = StructType([field for field in inner if not own or field.name != corrupt])
    read = csv_files.by_name(location.spark, location.pattern, location.options, fields)
    hidden = inner[corrupt] if own else StructField(_CORRUPT, StringType())
    source = location if own else location.with_option(_CORRUPT_NAME, _CORRUPT)
    schema = StructType([*read, hidden, *folders.texts])
    lines = source.stream("csv", schema, enforceSchema="false")
    # A column without a name must be read, too, and no expression can do so.
    named = StructType([StructField(field.name or _UNNAMED, field.dataType) for field in read])
    titles = (*named.names, hidden.name, *folders.names)
    titled = by_spark(lambda frame: frame.toDF(*titles), lines)
    problem = None
    if not own:
        words = F.lit(f"not a CSV line of {columns_text(inner)}")
        unfit = F.when(_corrupt(named).isNotNull(), words)
        wrong = *_far_years(named), *csv_files.unclosed(named, location.options)
        problem = F.coalesce(unfit, *wrong)
    return by_spark(partial(_checked, inner, folders, problem), titled)


def _far_years(fields: StructType) -> Iterator[Column]:
    """Yield the problems of times that Spark's CSV reader has made of five or six digits.

    It takes them for a year.
    """
    for field in fields:
        if isinstance(field.dataType, (TimestampType, TimestampNTZType, DateType)):
            problem = F.lit(f"column {field.name}: a year beyond 9999, or a number without a unit")
            yield F.when(F.abs(F.year(F.col(quoted(field.name)))) > 9999, problem)


def _corrupt(fields: StructType) -> Column:
    """The text of a line that does not fit.

    It reads all columns: Spark parses only those that are read, and overlooks what is wrong with
    others.
    """
    text, nothing = F.col(_CORRUPT), F.lit(True)
    for name in fields.names:
        nothing = nothing & F.col(quoted(name)).isNull()
    return F.when(nothing, F.concat(text, F.lit(""))).otherwise(text)


def _checked(
    inner: StructType, folders: Folders, problem: Column | None, frame: DataFrame
) -> DataFrame:
    """Add ``PROBLEM`` and ``RAW`` to what Spark's reader has read; ``problem``: of the line."""
    path = F.input_file_name() if "_metadata" in frame.columns else F.col("_metadata.file_path")
    misplaced = folders.misplaced(path, inner.names)
    frame, misfit = folders.placed(frame)
    names = [*inner.names, *folders.columns.names]
    own = F.struct(*_named(names))
    value = F.to_json(own) if problem is None else F.coalesce(F.col(_CORRUPT), F.to_json(own))
    problems = [column for column in (misplaced, problem, misfit) if column is not None]
    first = F.coalesce(*problems) if problems else F.lit(None).cast("string")
    rows = _where(first.isNull(), names) if problems else _named(names)
    raw = F.struct(path.alias("file"), value.cast("binary").alias("value")).alias(RAW)
    return frame.select(*rows, first.alias(PROBLEM), raw)


def columns_text(columns: StructType) -> str:
    """The columns, for people."""
    return columns.simpleString()[:200]


def _named(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def _where(condition: Column, names: Sequence[str]) -> list[Column]:
    return [F.when(condition, F.col(quoted(name))).alias(name) for name in names]


def _as_texts(fields: StructType, names: set[str]) -> StructType:
    """Make texts of the columns with these names, which are in lower case."""
    columns = StructType()
    for field in fields:
        is_text = field.name.lower() in names
        columns.add(StructField(field.name, StringType()) if is_text else field)
    return columns


def _corrupt_name(location: _Location) -> str:
    """Return the name of the column with lines that do not fit, where a schema has it."""
    setting = location.spark.conf.get("spark.sql.columnNameOfCorruptRecord")
    return str(location.options.get(_CORRUPT_NAME) or setting)


def _located(spark: SparkSession, pattern: str, chosen: Mapping[str, Any]) -> _Location:
    """Return the path that Spark takes for the files: one that is there is no glob."""
    options = {"maxFileAge": _ANY_AGE, **chosen}
    status = files_at(spark, pattern).status() if IN_GLOBS.search(pattern) else None
    if status is None:
        return _Location(spark, pattern, options)
    if status.is_folder and "basePath" not in chosen:
        options["basePath"] = pattern  # without it, Spark looks for no columns in folders of a glob
    return _Location(spark, escaped(pattern), options)


def format_of(pattern: str) -> FileFormat | None:
    """Choose a format from the endings of the files that ``pattern`` means; None for no format."""
    names = [pattern]
    for path in _matches(pattern):
        names += [path] if Path(path).is_file() else _files_in(path)
    suffixes = {Path(name).suffix for name in names}
    formats = {_FORMATS[suffix] for suffix in suffixes if suffix in _FORMATS}
    if len(formats) > 1:
        raise TopologyError(
            f'path: {pattern} has files of several kinds: give format="json", "parquet" or "csv"'
        )
    return formats.pop() if formats else None


def _matches(pattern: str) -> list[str]:
    return [pattern] if Path(pattern).exists() else glob.glob(pattern)


def _files_in(folder: str) -> list[str]:
    """The names in a folder, and in folders of it that are named as columns are: ``region=eu``."""
    names = glob.glob(f"{glob.escape(folder)}/*")
    for path in [path for path in names if "=" in Path(path).name]:
        names += _files_in(path)
    return names
