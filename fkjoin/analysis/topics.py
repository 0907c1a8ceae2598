"""Topics as tables: each record is an upsert or a tombstone of its key.

Records of a key are ordered by their offsets in their partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from fkjoin.analysis.attempt import attempt
from fkjoin.analysis.planned import Planned, Settings, Undecoded
from fkjoin.analysis.sources import ChangeColumns, planned_source
from fkjoin.analysis.views import completed
from fkjoin.codec import versions
from fkjoin.errors import TopologyError, set_aside
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.connection import RAW_COLUMNS, Connection, OnNewTopic
from fkjoin.kafka.formats import Format, as_format, decode_key, key_reader, reader
from fkjoin.kafka.options import masked, source_options
from fkjoin.kafka.positions import column_of, given_chains
from fkjoin.kafka.positions import version as version_of
from fkjoin.kafka.reading import records_of
from fkjoin.plan.nodes import ROOT, Source
from fkjoin.plan.physical import InWorkers, by_spark
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.frame import CHAINS, DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.json_lines import no_version
from fkjoin.spark.names import POSITION, quoted, require_apart
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.schemas import fields_of, require_plain_keys, struct_type_of, text
from fkjoin.spark.spark_api import require_classic
from fkjoin.spark.topic_records import TAKEN, DeadRecords, TopicRecords
from fkjoin.stages.start_over import StartOver

_MOST_ROOTS = 16


def from_topic(*, settings: Settings, **arguments: Any) -> Planned:
    """See ``Table.from_kafka``."""
    return completed(read_topic(**arguments), settings)


def read_topic(
    *,
    spark: SparkSession,
    topic: str,
    bootstrap_servers: str,
    key: Format | str,
    value: Format | str,
    columns: ChangeColumns,
    name: str | None,
    on_error: OnError,
    on_new_topic: OnNewTopic | None,
    headers: bool,
    roots: int | None,
    positions: bool = False,
    options: Mapping[str, Any] | None,
    again: StartOver | None = None,
) -> Planned:
    """See ``Table.from_kafka``.

    ``again``: the query's checkpoint has started over with the topic.
    """
    require_on_error(on_error)
    if on_new_topic is not None and on_new_topic not in get_args(OnNewTopic):
        raise TopologyError(
            f"on_new_topic: {on_new_topic!r} is not one of {', '.join(get_args(OnNewTopic))}"
        )
    if roots is not None and on_new_topic == "start-over":
        raise TopologyError(
            "on_new_topic: a table with roots= cannot start over: its versions are positions in "
            "earlier topics, which are not created again; leave on_new_topic out"
        )
    if roots is not None and not 1 <= roots <= _MOST_ROOTS:
        raise TopologyError(
            f"roots: {roots!r} is not a number from 1 to {_MOST_ROOTS}, the number of topics that "
            "the records were made from"
        )
    if roots is not None and columns.version is not None:
        raise TopologyError(
            "version: with roots=, the positions in the records' headers are the versions; leave "
            "one of them out"
        )
    if on_new_topic == "start-over":
        require_classic(
            spark,
            'on_new_topic="start-over"',
            "leave it out, and give a topic that is created again a new checkpoint",
        )
    chosen = source_options(options)
    partitions, topic_id = require_topic(topic, bootstrap_servers, chosen)
    read = records_of(spark, topic, bootstrap_servers, chosen)
    records = on_spark(spark, read)
    key_format, value_format = as_format("key", key, "key"), as_format("value", value, "value")
    decoded_key, decoded = decode_key(key_format, F.col("key")), value_format.decode(F.col("value"))
    key_names = fields_of(records, decoded_key.row)
    require_plain_keys("key", struct_type_of(records, decoded_key.row))
    row = decoded.row
    names = fields_of(records, row)
    _require_names(key_names, names)
    carried = None if roots is None else given_chains(roots)
    more: list[Column] = []
    if headers:
        if "headers" in map(str.lower, names):
            raise TopologyError(
                "headers: the value has a column 'headers' already; leave headers=False"
            )
        more.append(F.col("headers"))
    if positions:
        if POSITION in map(str.lower, (*key_names, *names)):
            raise TopologyError(
                f"positions: the key or the value has a column {POSITION!r} already; leave "
                "positions=False"
            )
        more.append(column_of(None if carried is None else carried[0]).alias(POSITION))
    if more:
        row = F.when(row.isNotNull(), F.struct(*[row.getField(n).alias(n) for n in names], *more))
    problem = F.coalesce(
        F.when(F.col("key").isNull(), F.lit("null key")),
        F.concat(F.lit("key: "), decoded_key.problem),
        *[F.when(decoded_key.row.getField(n).isNull(), F.lit(f"key: no {n}")) for n in key_names],
        F.concat(F.lit("value: "), decoded.problem),
    )
    gone, time, kind_of_time = decoded.deleted, F.unix_micros("timestamp"), "timestamp"
    position = F.unix_millis("timestamp"), F.col("partition").cast("bigint"), F.col("offset")
    numbers: list[Column] = []
    with_columns: Callable[[DataFrame], DataFrame] = _as_it_is
    if columns.given:
        with_columns, change = with_change_columns(
            records,
            columns,
            decoded_key.row,
            row=row,
            value_format=value_format,
            label=name or topic,
        )
        gone = gone | change.gone
        if change.kind_of_time is not None:
            kind_of_time = change.kind_of_time
            time = change.time if change.kind_of_time == "bigint" else F.coalesce(change.time, time)
        numbers = change.numbers
        problem = F.coalesce(problem, change.problem)
    version = F.struct(
        *[number.alias(f"v{index}") for index, number in enumerate(numbers)],
        *[part.alias(title) for title, part in zip(versions.PLACE, position, strict=True)],
    )
    identity = versions.topic_identity(topic, topic_id) if again is None else again.identity
    source, order = F.lit(bytearray(identity)), []
    if carried is not None:
        chains, unusable = carried
        problem = F.coalesce(problem, unusable)
        order.append(F.when(problem.isNull(), chains).alias(CHAINS))
        version, source = version_of(chains, roots or 1), F.lit(None).cast("binary")
    usable = problem.isNull()  # what is not must not reach Python: it may not even be UTF-8
    if on_error == "fail":
        problem = failing(problem)
    selected = (
        F.when(usable, decoded_key.row).alias(KEY),
        F.when(usable & ~gone, row).alias(ROW),
        gone.alias(DELETED),
        version.alias(VERSION),
        source.alias(SOURCE),
        time.alias(TS),
        problem.alias(PROBLEM),
        _raw(name or topic).alias(RAW),
        *order,
    )
    rows = by_spark(lambda frame: with_columns(frame).select(*selected), read)
    shown = {"bootstrap.servers": bootstrap_servers, **masked(chosen), "on_error": on_error}
    ordering: tuple[str, ...] = ("topic", "partition", "offset")
    if roots is not None:
        ordering = tuple(f"{ROOT}{number}" for number in range(1, roots + 1))
    deletes = ["null value", *([] if columns.deleted is None else [text(columns.deleted)])]
    node = Source(
        name or topic,
        key_names,
        (*(text(item) for item in columns.ordering), *ordering),
        " or ".join(deletes),
        "timestamp" if columns.timestamp is None else text(columns.timestamp),
        fields_of(records, row),
        f"kafka topic {topic} ({', '.join(f'{item}={text}' for item, text in shown.items())})",
        topic=topic,
        parts=roots or 1,
        start_over=again,
    )
    dead, unread = rows, None
    read_key, read_value = key_reader(key_format), reader(value_format)
    plain = not headers and roots is None and not columns.given
    if plain and read_key is not None and read_value is not None:
        reading = TopicRecords(topic, read_key, read_value, identity, on_error == "fail", positions)
        unread = Undecoded(by_spark(lambda frame: frame.select(*TAKEN), read), reading)
        whole = [_raw(name or topic).alias(RAW), F.col("problem").alias(PROBLEM)]
        kind = StructType(list(records.select(*RAW_COLUMNS).schema)).add("problem", StringType())
        raw = by_spark(lambda frame: frame.select(*RAW_COLUMNS), read)
        letters = InWorkers(raw, DeadRecords(reading), kind)
        dead = by_spark(lambda frame: frame.select(*whole), letters)
    by_name = {name.lower(): text.lower() for name, text in chosen.items()}
    lossy = by_name.get("failondataloss") == "false" and roots is None
    new_topic = on_new_topic or ("start-over" if lossy else "fail")
    tombstones = columns.version is None or not hasattr(value_format, "about")
    connection = Connection(
        topic, bootstrap_servers, chosen, partitions, topic_id, new_topic, tombstones
    )
    return planned_source(
        spark,
        node,
        rows,
        kind_of_time,
        on_error=on_error,
        letters=dead,
        undecoded=unread,
        connection=connection,
        starts_over=on_new_topic == "start-over",
        deleted=columns.deleted,
    )


def _as_it_is(records: DataFrame) -> DataFrame:
    return records


def _raw(table: str) -> Column:
    """Make the content of a dead letter of the table about its record."""
    return F.struct(F.lit(table).alias("table"), *RAW_COLUMNS)


def _require_names(key: Iterable[str], row: Iterable[str]) -> None:
    """``TopologyError`` if columns of key and value cannot be told apart.

    Both may have one of the same name.
    """
    hint = "name it otherwise, or leave it out and read it from Json(…, text=…) with map_values"
    require_apart("key", key, hint)
    require_apart("value", row, hint)
    require_apart("key and value", dict.fromkeys([*key, *row]), hint)


def failing(problem: Column) -> Column:
    """A problem that stops the query and says where the record is.

    The frame must have ``RAW_COLUMNS``.
    """
    partition, offset = F.col("partition").cast("string"), F.col("offset").cast("string")
    where = [F.lit("record "), F.col("topic"), F.lit("-"), partition, F.lit(" offset "), offset]
    text = F.concat(*where, F.lit(": "), problem)
    hint = F.lit(set_aside("records"))
    return F.when(problem.isNotNull(), F.raise_error(F.concat(text, hint)).cast("string"))


_NAMES = ("key", "row", "about", "numbers", "gone", "time", "threw")
_KEY, _ROW, _ABOUT, _NUMBERS, _GONE, _TIME, _THREW = (
    f"__fkjoin_of_record_{name}" for name in _NAMES
)


@dataclass(frozen=True)
class RecordChange:
    """The change that a record is: columns over the frame of records with them."""

    numbers: list[Column]
    gone: Column
    time: Column
    kind_of_time: str | None
    problem: Column
    """The reason why the record cannot be used: an expression throws, or its version is null."""


def with_change_columns(
    records: DataFrame,
    columns: ChangeColumns,
    key: Column,
    *,
    row: Column,
    value_format: Format,
    label: str,
) -> tuple[Callable[[DataFrame], DataFrame], RecordChange]:
    """Find what the expressions say of records.

    Return a function that adds it to a frame of records, and the columns to read it by.

    The expressions see the value's columns, and the key's columns that the value lacks.  They also
    see what the format knows of an event besides its row (``Debezium.about``).  A record whose
    version is null cannot be ordered: that is a problem.  Of Debezium's records with a version,
    null values are left out: the delete event before each has said it.
    """
    of_record = [F.col(quoted(name)).alias(f"__record_{name}") for name in records.columns]
    restored = [F.col(f"__record_{name}").alias(name) for name in records.columns]
    about = getattr(value_format, "about", None)
    parts = {_ROW: row, _KEY: key}
    if about is not None:
        parts[_ABOUT] = about(F.col("value"))
    titled = [part.alias(name) for name, part in parts.items()]
    # A tombstone follows a delete event, which has a version.
    only_values = about is not None and columns.version is not None

    def opened(frame: DataFrame) -> DataFrame:
        usable = frame.where(F.col("value").isNotNull()) if only_values else frame
        return usable.select(*of_record, *titled)

    names: dict[str, Column] = {}
    of_records = opened(records)
    for part in parts:
        for name in fields_of(of_records, F.col(part)):
            names.setdefault(name, F.col(part).getField(name).alias(name))
    visible = of_records.select("*", *names.values())
    bound, kind_of_time = columns.bound(visible, list(names), label)
    tried = attempt("source", label, bound, "skip", usable=F.lit(True), key=F.col(_KEY))
    *numbers, gone, time = tried.columns
    numbered = [number.alias(f"v{index}") for index, number in enumerate(numbers)]
    threw = F.lit(None).cast("string") if tried.reason is None else tried.reason

    def added(frame: DataFrame) -> DataFrame:
        return tried.on(opened(frame).select("*", *names.values())).select(
            *restored,
            F.struct(F.lit(0).alias("none"), *numbered).alias(_NUMBERS),
            F.coalesce(gone, F.lit(False)).alias(_GONE),
            time.alias(_TIME),
            threw.alias(_THREW),
        )

    read = [F.col(_NUMBERS).getField(f"v{index}") for index in range(len(numbers))]
    missing = [
        F.when(number.isNull(), F.lit(no_version(text(item))))
        for item, number in zip(columns.ordering, read, strict=True)
    ]
    problem = F.coalesce(F.col(_THREW), *missing)
    return added, RecordChange(read, F.col(_GONE), F.col(_TIME), kind_of_time, problem)
