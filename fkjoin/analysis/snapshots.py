"""A snapshot of a table in front of its changes.

It is a folder of rows that are older than every change of their keys.

*Law*: the table ends as the last change of each key says, and as the snapshot says where a key has
none.  So it is if the changes begin at the snapshot's moment, or before it, and none of them is
missing.  The order in which rows and changes come does not matter, as long as tombstone markers
last.  Changes from before the snapshot do no harm.  The last one of a key leaves the row that the
snapshot has, or deletes a row that the snapshot does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from fkjoin.analysis.planned import Planned, Settings, SourceBound
from fkjoin.analysis.sources import ChangeColumns, read_stream
from fkjoin.analysis.views import CompleteBound, completed
from fkjoin.analysis.written import ABOUT
from fkjoin.checkpoint.files import files_at
from fkjoin.codec import versions
from fkjoin.errors import ColumnTypeError, TopologyError, first_line
from fkjoin.files.source import open_files
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import Union, by_spark
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, VERSION
from fkjoin.spark.names import POSITION, quoted
from fkjoin.spark.on_spark import columns_of
from fkjoin.spark.schemas import nullable
from fkjoin.stages.complete import UNAVAILABLE

_PARTITION = versions.PLACE[1]
_OF_RECORDS = {
    UNAVAILABLE: None,
    POSITION: None,
    "headers": "array<struct<key:string,value:binary>>",
}
"""Columns of a topic's rows that records have besides their values.

A type stands where values may have such a column: one of another type is theirs.
"""

_NOTHING = {"pathGlobFilter": "_"}
"""Option by which Spark's source finds no file: it passes over names that begin with this."""

_READ_ONCE = (
    "the first batch of a query reads a snapshot as a whole. Start the query again: it leaves the "
    "file out if its first batch is done. To have the file read, begin a new checkpoint"
)

_TABLES = {"_delta_log": "Delta", "metadata": "Iceberg"}
"""Folders by which tables of other formats are known, and the names of these."""


def with_snapshot(
    table: Planned, *, path: Any, settings: Settings, was_read: bool = False
) -> Planned:
    """See ``Table.with_snapshot``.  Raises ``TopologyError``.

    ``was_read``: the query of a checkpoint has read the snapshot, so its source finds nothing.
    Else columns that do not fit are the table's ``misfit``: only the checkpoint tells whether files
    are to be read at all.
    """
    if isinstance(table.bound, CompleteBound):
        return completed(_begun(table.inputs[0], path, was_read=was_read), settings)
    return _begun(table, path, was_read=was_read)


def _begun(source: Planned, path: Any, *, was_read: bool) -> Planned:
    """The source, with the rows of the snapshot."""
    folder = _folder(path)
    bound, node = _source(source)
    columns = _columns(source)
    if node.topic is not None:
        columns = [field for field in columns if not _is_of_records(field)]
    wanted = StructType(columns)
    gone, misfit, first = None, None, None
    if not was_read:
        file_columns = _file_columns(source.spark, folder)
        misfit = _misfit(source, folder, wanted, file_columns)
        if bound.deleted is not None:
            gone, more = _gone(source, bound.deleted, wanted, file_columns)
            wanted = StructType([*wanted, *more])
        first = _files(source.spark, folder)
    chosen = _NOTHING if was_read or misfit is not None else None
    files = open_files(
        source.spark, folder, source.key, schema=wanted, format="parquet", options=chosen
    )
    stream = files.rows
    if first is not None:
        stream = by_spark(partial(_only, first, folder), stream)
    read = read_stream(
        source.spark,
        stream,
        list(source.key),
        F.lit(versions.OLDEST),
        deleted=gone,
        name=source.name,
        on_error=source.on_error,
    )
    kind = columns_of(source.spark, bound.rows)
    as_in = partial(_as_in, kind, _identity(source, node), only_alive=gone is not None)
    rows = by_spark(as_in, read.bound.rows)
    undecoded = bound.undecoded
    both = replace(
        bound,
        rows=Union((bound.rows, rows)),
        dead=(*bound.dead, *read.bound.dead),
        undecoded=None if undecoded is None else undecoded._replace(snapshot=rows),
        files=(*bound.files, folder),
        misfit=misfit,
    )
    return replace(source, node=replace(node, snapshot=folder), bound=both)


def _folder(path: Any) -> str:
    if isinstance(path, DataFrame):
        raise TopologyError(
            "path: with_snapshot reads files, and this is a DataFrame; write it with "
            'df.write.parquet("…"), and give the path of that folder'
        )
    if not isinstance(path, str | Path):
        raise TopologyError(
            "path: the folder of the snapshot's Parquet files is needed, this is a "
            f"{type(path).__name__}"
        )
    return str(path).rstrip("/")


def _source(table: Planned) -> tuple[SourceBound, Source]:
    """The source of the table, and its node.

    ``TopologyError`` if it is none that can have a snapshot.
    """
    bound, node = table.bound, table.node
    if not isinstance(bound, SourceBound) or not isinstance(node, Source):
        raise TopologyError(
            f"with_snapshot: {table.name} is the result of an operator; call with_snapshot on its "
            "source, such as Table.from_kafka makes, and apply operators after that"
        )
    if bound.delta:
        raise TopologyError(
            f"with_snapshot: {table.name} already starts with the rows of its Delta table: leave "
            "with_snapshot out"
        )
    if node.snapshot is not None:
        raise TopologyError(
            f"with_snapshot: {table.name} already has the snapshot {node.snapshot}; put all files "
            "of the snapshot into one folder"
        )
    if not isinstance(columns_of(table.spark, bound.rows)[VERSION].dataType, StructType):
        raise TopologyError(
            f"with_snapshot: {table.name} has roots=, so the order of its rows comes from another "
            "job; give the snapshot to the source tables of that job"
        )
    return bound, node


def _columns(table: Planned) -> list[StructField]:
    """The columns of rows, and the key's columns that rows lack."""
    row = table.row_type
    of_key = [field for field in _nullable(table.key_type) if field.name not in row.names]
    return [*_nullable(row), *of_key]


def _nullable(kind: StructType) -> list[StructField]:
    return [StructField(field.name, nullable(field.dataType)) for field in kind]


def _is_of_records(field: StructField) -> bool:
    kinds = None, field.dataType.simpleString()
    return field.name in _OF_RECORDS and _OF_RECORDS[field.name] in kinds


def _misfit(
    table: Planned, folder: str, wanted: StructType, file_columns: StructType
) -> TopologyError | None:
    """Say which column of the table the files lack or have in another type; None if they fit."""
    kinds = {field.name.lower(): nullable(field.dataType) for field in file_columns}
    for field in wanted:
        kind = field.dataType.simpleString()
        known = f"snapshot {folder}: {table.name} has the column {field.name} {kind}"
        file_kind = kinds.get(field.name.lower())
        if file_kind is None:
            return TopologyError(
                f"{known}, and the files have none of that name; write them with all columns of "
                f"the table, if need be with cast(null as {kind}) as {field.name}"
            )
        if file_kind != field.dataType and field.name.lower() in _in_files(table.spark, folder):
            return ColumnTypeError(
                f"{known}, and it is {file_kind.simpleString()} in the files; write them with "
                f"cast({field.name} as {kind})"
            )
    return None


def _in_files(spark: SparkSession, folder: str) -> set[str]:
    """The columns of the files, in lower case, without those that names of folders are.

    Columns of folders are read as texts, and cast.
    """
    rows = spark.read.option("recursiveFileLookup", True).parquet(folder)
    return {name.lower() for name in rows.columns}


def _gone(
    table: Planned, deleted: Any, wanted: StructType, file_columns: StructType
) -> tuple[Column | None, list[StructField]]:
    """The condition by which the table deletes, and the columns besides that it reads.

    None where the files lack one of them.  ``ColumnTypeError`` if it is not a condition over the
    columns of the files.
    """
    known = {name.lower() for name in wanted.names}
    others = [field for field in _nullable(file_columns) if field.name.lower() not in known]

    def over(more: list[StructField]) -> Column | None:
        rows = table.spark.createDataFrame([], StructType([*wanted, *more]))
        try:
            return ChangeColumns(deleted=deleted).gone(
                rows, rows.columns, f"the snapshot of {table.name}"
            )
        except ColumnTypeError:
            raise
        except TopologyError:  # it reads another column
            return None

    if (condition := over([])) is not None:
        return condition, []
    if (condition := over(others)) is None:
        return None, []
    needed: list[StructField] = []
    for field in others:
        if over([other for other in others if other != field]) is None:
            needed.append(field)
    return condition, needed


def _files(spark: SparkSession, folder: str) -> dict[str, int]:
    """The files, and their times in microseconds."""
    files = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(folder)
    times = files.select("_metadata.file_path", F.unix_micros("modificationTime"))
    return {path: time or 0 for path, time in times.collect()}


def _only(first: Mapping[str, int], folder: str, frame: DataFrame) -> DataFrame:
    """The rows of files; a new file stops the query.

    New is a file that is none of the first, however old, and one that is newer.
    """
    if "_metadata" in frame.columns:  # the table's own
        return frame
    path, time = F.col("_metadata.file_path"), F.unix_micros("_metadata.file_modification_time")
    message = F.concat(
        F.lit(f"the snapshot {folder} has a new file, "), path, F.lit(f", and {_READ_ONCE}")
    )
    is_new = ~_is_one_of("_metadata.file_path", first) | (time > max(first.values(), default=0))
    stop = F.when(is_new, F.raise_error(message).cast("string"))
    return frame.withColumn(PROBLEM, F.coalesce(stop, F.col(PROBLEM)))


def _is_one_of(column: str, texts: Iterable[str]) -> Column:
    """The condition that a column is one of many texts, none of them empty.

    It is made as SQL, since ``isin`` asks the JVM once for each text; and of bytes, in which SQL
    finds no quotes or escapes.
    """
    octets = ", ".join(f"X'{text.encode().hex()}'" for text in ("", *texts))
    return F.expr(f"cast({column} as binary) in ({octets})")


def _file_columns(spark: SparkSession, folder: str) -> StructType:
    """The columns of the files; ``TopologyError`` if they are not plain Parquet files."""
    files = files_at(spark, folder)
    if files.exists(ABOUT):
        raise TopologyError(
            f"path: {folder} was written by to_parquet and contains changes (deletes and earlier "
            "rows, too), not a snapshot; read it with Table.from_fkjoin, or write the rows of its "
            'state with fkjoin.read_state(…).write.parquet("…"), and give the path of that folder'
        )
    for marker, kind in _TABLES.items():
        if files.exists(marker):
            raise TopologyError(
                f"path: {folder} is a table of {kind}, whose folder also contains files of older "
                'versions; read it with spark.read.format("…"), write its rows with '
                'df.write.parquet("…"), and give the path of that folder'
            )
    try:
        return spark.read.parquet(folder).schema
    except Exception as error:  # Spark raises several kinds
        raise TopologyError(
            f"path: {folder} has no Parquet files that can be read; write the snapshot first, with "
            f"df.write.parquet(…) ({first_line(error)})"
        ) from error


def _identity(table: Planned, node: Source) -> bytes:
    """The identity that the source's versions have."""
    if node.topic is None:
        return versions.identity(node.log or node.name)
    if node.start_over is not None:
        return node.start_over.identity
    return versions.topic_identity(
        node.topic, None if table.connection is None else table.connection.topic_id
    )


def _as_in(columns: StructType, identity: bytes, rows: DataFrame, *, only_alive: bool) -> DataFrame:
    """The rows of the snapshot with the columns of a source's frame.

    Their versions are older than all of the source's.
    """
    own = {
        DELETED: F.lit(False),
        SOURCE: F.lit(bytearray(identity)),
        PROBLEM: F.col(PROBLEM),
    }
    row_type: Any = rows.schema[ROW].dataType
    read = {name: F.col(quoted(ROW, name)) for name in row_type.names}

    def column(name: str, kind: Any) -> Column:
        if name == VERSION:
            return F.struct(*map(_oldest, kind.names))
        if name not in (KEY, ROW):
            return own.get(name, F.lit(None)).cast(kind)
        fields = []
        for field in kind:
            value = read.get(field.name, F.lit(None))
            fields.append(value.cast(nullable(field.dataType)).alias(field.name))
        return F.when(F.col(PROBLEM).isNull(), F.struct(*fields))

    chosen = [column(field.name, field.dataType).alias(field.name) for field in columns]
    usable = rows.where(~F.col(DELETED)) if only_alive else rows
    return usable.select(*chosen)


def _oldest(name: str) -> Column:
    """A number of a version that is older than all changes."""
    return F.lit(0 if name == _PARTITION else versions.OLDEST).cast("bigint").alias(name)
