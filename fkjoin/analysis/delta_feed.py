"""A Delta table as a planned table: its rows as they are, then the changes that its commits record.

Delta's connector for Spark reads both as one stream, the change data feed.  An update is two rows,
the row before and the row after.  The row before counts as a delete, since the key may be another
one in the row after.  In a commit a delete is older than a row that is put, so the order in which
Spark reads them does not matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned, SourceBound
from fkjoin.analysis.sources import read_stream
from fkjoin.errors import SessionError, TopologyError, first_line
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import Physical, Read, by_spark
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.names import named, quoted
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.schemas import Expression, Expressions, nullable, struct_type
from fkjoin.spark.spark_api import is_connect, java_session, jvm

FEED = "_change_type", "_commit_version", "_commit_timestamp"
"""Columns of the feed beside the table's own."""

DELETES = "delete", "update_preimage"
"""Types of changes that delete; the others, ``insert`` and ``update_postimage``, put a row."""

PROPERTY = "delta.enableChangeDataFeed"

_EXTENSIONS, _CATALOG = "spark.sql.extensions", "spark.sql.catalog.spark_catalog"
SETTINGS = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    _CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings that Delta's connector asks for."""

_LACKING = {
    "DATA_SOURCE_NOT_FOUND": "is not on the class path",
    "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG": "is not set up",
}
"""Conditions of Spark's errors, and what the session lacks."""

_IS_DELETE = f"_change_type in ('{DELETES[0]}', '{DELETES[1]}')"
_ORDER = "_commit_version", f"cast(not {_IS_DELETE} as int)"
_OWN = {"readchangefeed", "readchangedata", "startingversion", "startingtimestamp"}
"""Options, in lower case, by which a stream is another one than the rows and then their changes."""


def read_delta(
    *,
    spark: SparkSession,
    path: str,
    key: Expressions,
    timestamp: Expression | None,
    name: str | None,
    on_error: OnError,
    schema: StructType | str | None,
    options: Mapping[str, Any] | None,
) -> Planned:
    """Make the table of a Delta table, see ``Table.from_delta``."""
    prepare(spark)
    for option in options or {}:
        if option.lower() in _OWN:
            raise TopologyError(
                f"options: {option} is from_delta's own, which reads all rows and then their "
                "changes: leave it out; or read the stream yourself, and give it to "
                "Table.from_stream"
            )
    location = path.rstrip("/")
    feed = _feed(spark, location, options or {})
    _require_changes(spark, location)
    own = _own_columns(spark, feed)
    columns = own if schema is None else _chosen(location, own, struct_type(schema, "from_delta"))
    chosen = [quoted(name) for name in (*columns.names, *FEED)]
    rows = by_spark(lambda frame: frame.select(*chosen), feed)
    about: Any = {"name": name or location.rpartition("/")[2], "on_error": on_error}
    table = of_feed(spark, rows, location, key, timestamp=timestamp, **about)
    learned = columns if schema is None else None
    return replace(table, bound=replace(table.bound, learned=learned))


def of_feed(
    spark: SparkSession,
    feed: Physical,
    location: str,
    key: Expressions,
    *,
    timestamp: Expression | None,
    **about: Any,
) -> Planned:
    """Make the table of a change data feed, which is a stream of rows with ``FEED``.

    ``location``: the path of the Delta table.
    """
    about |= {"deleted": _IS_DELETE, "timestamp": FEED[2] if timestamp is None else timestamp}
    table = read_stream(spark, feed, key, _ORDER, **about, beside=FEED)
    node, bound = table.node, table.bound
    assert isinstance(node, Source)
    shown = replace(node, version=(FEED[1], FEED[0]), origin=f"Delta table {location}")
    return replace(table, node=shown, bound=replace(bound, files=(location,), delta=True))


def reads_commit_time(source: Planned) -> bool:
    """Tell whether the source is a Delta table whose timestamps are made of commits' times."""
    node, bound = source.node, source.bound
    if not isinstance(node, Source) or not isinstance(bound, SourceBound) or not bound.delta:
        return False
    return node.timestamp is not None and FEED[2] in node.timestamp.lower()


def columns_of(spark: SparkSession, path: str) -> StructType:
    """The columns that the Delta table has."""
    return _own_columns(spark, _feed(spark, path.rstrip("/"), {}))


def _own_columns(spark: SparkSession, feed: Read) -> StructType:
    """The columns of a feed that are the Delta table's."""
    fields = on_spark(spark, feed).schema
    return StructType([field for field in fields if field.name not in FEED])


def _feed(spark: SparkSession, location: str, options: Mapping[str, Any]) -> Read:
    """The table's rows and then its changes.

    ``SessionError`` where the session cannot read them.
    """
    feed = Read("delta", {**options, "readChangeFeed": "true"}, location)
    with _with_connector(spark, location):
        on_spark(spark, feed).schema  # noqa: B018  (a client of Spark Connect asks its server now)
    return feed


@contextlib.contextmanager
def _with_connector(spark: SparkSession, location: str) -> Iterator[None]:
    """Raise ``SessionError`` for what a session without a connector says.

    A connector for another Spark counts as none.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        cause = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
        message = str(cause)
        why = next((why for condition, why in _LACKING.items() if condition in message), None)
        if "DELTA_SCHEMA_NOT_SET" in message:
            raise TopologyError(
                f"path: there is no Delta table at {location}; the JVM takes a relative path from "
                "the folder where it began"
            ) from error
        if why is None and isinstance(error, AnalysisException):
            raise TopologyError(
                f"path: {location} cannot be read as a Delta table: {first_line(error)}"
            ) from error
        problem = why or f"does not work ({message.strip().splitlines()[0]})"
        line = ".".join(spark.version.split(".")[:2])
        kind = "server" if is_connect(spark) else "session"
        raise SessionError(
            f"from_delta: Delta's connector for Spark {line} {problem}; start the {kind} with the "
            f"settings spark.jars.packages = io.delta:delta-spark_{line}_2.13:RELEASE, "
            f"{_EXTENSIONS} = {SETTINGS[_EXTENSIONS]} and {_CATALOG} = {SETTINGS[_CATALOG]}. Delta "
            f"publishes releases for Spark 4.0, 4.1 and 4.2; if there is none for Spark {line}, "
            "install pyspark==4.2.*"
        ) from error


def _require_changes(spark: SparkSession, location: str) -> None:
    """``TopologyError`` if the table does not record its changes.

    A client of Spark Connect cannot ask.
    """
    if is_connect(spark):
        return
    with _with_connector(spark, location):
        table = jvm().io.delta.tables.DeltaTable.forPath(java_session(spark), location)
        (properties,) = DataFrame(table.detail(), spark).select("properties").collect()[0]
    if properties.get(PROPERTY, "").lower() != "true":
        raise TopologyError(
            f"path: Delta table {location} does not record its changes: set its property "
            f"{PROPERTY} to true, as in ALTER TABLE delta.`{location}` SET TBLPROPERTIES "
            f"({PROPERTY} = true)"
        )


def _chosen(location: str, own: StructType, wanted: StructType) -> StructType:
    """Choose the wanted columns of those that the table has.

    ``TopologyError`` for a column of another type, and for one that the table lacks.
    """
    kinds = {field.name: field.dataType for field in own}
    for field in wanted:
        if named(field.name, own.names) is None:
            raise TopologyError(
                f"schema: Delta table {location} has no column {field.name!r}; name some of "
                f"{', '.join(own.names)}"
            )
        if nullable(kinds[field.name]) != nullable(field.dataType):
            raise TopologyError(
                f"schema: column {field.name} is {field.dataType.simpleString()}, and "
                f"{kinds[field.name].simpleString()} in Delta table {location}; give it that type"
            )
    return wanted
