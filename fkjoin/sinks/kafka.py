"""A table's changes as records of a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from fkjoin.analysis.bound import texts_of
from fkjoin.analysis.columns import resolve_column
from fkjoin.errors import TopologyError
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.formats import Bytes, Format, Json, String, as_format, writer
from fkjoin.kafka.options import sink_options
from fkjoin.kafka.positions import HEADER, OriginsOf, RootsOf, relayed
from fkjoin.lowering.table_plan import Results, TablePlan, rows_of
from fkjoin.plan.base import periodic
from fkjoin.plan.nodes import Merge, Source, origins, sources, summed_up
from fkjoin.plan.physical import Physical, by_spark
from fkjoin.sinks.batches import Batch, Write
from fkjoin.spark.frame import CHAINS, RAW, VERSION
from fkjoin.spark.names import quoted
from fkjoin.spark.on_arrow import on_arrow
from fkjoin.spark.schemas import Expression, arrow_schema, spark_schema
from fkjoin.spark.topic_values import POSITIONS, MakeRecords, Writer, WriteTexts

_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class Kafka:
    """Sink into a topic, for ``Table.to``.

    Parameters
    ----------
    topic : str
        The name of the topic.
    bootstrap_servers : str
        Brokers as ``HOST:PORT``, separated by commas.
    key : fkjoin.kafka.Format or str, optional
        The format of the records' keys; ``"string"`` and ``"bytes"`` are formats of one column. By
        default one column of text or bytes is written unchanged, and other keys as a JSON object.
    value : fkjoin.kafka.Format, str, or Column, optional
        The format of the records' values, or an expression over ``changes``. By default the row's
        columns as a JSON object, including nulls.
    headers : str or Column, optional
        An expression for the records' headers, of type
        ``array<struct<key: string, value: binary>>``.
    positions : bool, default False
        Whether to add the header ``fkjoin-positions`` with the source positions of the row, which
        ``from_kafka(…, roots=…)`` reads. Sources, joins and merges of topics have positions, and so
        have views of sources and joins.
    options : mapping of str to value, optional
        Settings of the producer, ``kafka.…``.

    Examples
    --------
    >>> options = {"kafka.compression.type": "zstd"}
    >>> sink = Kafka("joined", "localhost:9092", options=options)
    """

    topic: str
    bootstrap_servers: str
    key: Format | str | None = None
    value: Format | str | Column | None = None
    headers: Expression | None = None
    positions: bool = False
    options: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        return f"topic {self.topic}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``Table.to_kafka``, by name.

        Returns
        -------
        dict of str to value
        """
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def records(self, table: TablePlan) -> Physical:
        """Make the plan of the records of the table's changes.

        Parameters
        ----------
        table : TablePlan
            The plan of the table.

        Returns
        -------
        Physical
            Of rows with ``key``, ``value`` and perhaps ``headers``.
        """
        rows, packed = self._by_spark(table), self._packed(table)
        table.on_spark(rows)  # what is wrong with the expressions is said now
        return rows if packed is None else by_spark(packed, table.top)

    def begin(self, table: TablePlan) -> Write:
        chosen = sink_options(self.options)
        require_topic(self.topic, self.bootstrap_servers, chosen)
        table.on_spark(self._by_spark(table))  # what is wrong with the expressions is said now
        packed, placed, results = self._packed(table), self._placed(table), self._results(table)
        options = {**chosen, "topic": self.topic, "kafka.bootstrap.servers": self.bootstrap_servers}

        def write(batch: Batch, query: str, number: int) -> None:
            if packed is None:
                changes = results.changes(results.frame(batch.packed), *placed)
                frame = self._records(results, changes)
            else:
                frame = packed(batch.packed)
            frame.write.format("kafka").options(**options).save()

        return write

    def check(self, table: TablePlan) -> None:
        self.begin(table)  # which makes nothing

    def _by_spark(self, table: TablePlan) -> Physical:
        if isinstance(table.node, Source) and table.node.snapshot is not None:
            raise TopologyError(
                f"{table.name}: its snapshot is read beside newer changes, and a reader of the "
                f'topic would take the last record of a key; write .materialize("{table.name}") '
                "first (in a job file, materialize = true)"
            )
        results, placed = self._results(table), self._placed(table)
        if results == table.results or table.packed is None:
            changes = table.changes_with(*placed)
        else:
            assert results.unpack is not None
            rows = rows_of(table.packed.envelopes, results.unpack)
            changes = by_spark(lambda frame: results.changes(frame, *placed), rows)
        return by_spark(partial(self._records, results), changes)

    def _results(self, table: TablePlan) -> Results:
        """Results, whose versions have the origins of rows if positions are wanted."""
        results = table.results
        if not self.positions or results.unpack is None or not results.unpack.without_origins:
            return results
        return replace(results, unpack=replace(results.unpack, without_origins=False))

    def _records(self, results: Results, changes: DataFrame) -> DataFrame:
        """``key``, ``value`` (null in a delete) and perhaps ``headers`` of the changes' records.

        The key of events is an expression over their columns, or null.  A column ``POSITIONS`` of
        ``changes`` becomes a header.
        """
        if results.appends:
            gone, record_key = F.lit(False), self._key_of_events(changes)
        else:
            whole_key, key_type = _struct(changes, results.key)
            record_key = _encode("key", self._key_format(key_type), whole_key, key_type)
            gone = F.col("_operation") == "delete"
        form = self._value_format()
        if form is not None:
            whole_row, row_type = _struct(changes, results.rest)
            value = _encode("value", form, whole_row, row_type)
        else:
            assert isinstance(self.value, str | Column)
            value = resolve_column("value", self.value, changes, [], "the table").cast("binary")
        columns, both = [record_key.alias("key"), F.when(~gone, value).alias("value")], None
        if self.headers is not None:
            both = resolve_column("headers", self.headers, changes, changes.columns, "the table")
        if POSITIONS in changes.columns:
            own, none = _of_positions(), F.array().cast(_HEADERS)
            both = own if both is None else F.concat(F.coalesce(both, none), own)
        if both is not None:
            columns.append(both.alias("headers"))
        return changes.select(*columns)

    def _placed(self, table: TablePlan) -> list[Column]:
        """Find what says where the rows came from, if it is wanted."""
        return [_positions(table).alias(POSITIONS)] if self.positions else []

    def _packed(self, table: TablePlan) -> Callable[[DataFrame], DataFrame] | None:
        """Find the function that makes them of encoded results; None if only Spark can."""
        if table.packed is None or self.headers is not None:
            return None
        row_type = StructType([table.row_type[name] for name in table.rest])
        positions = _roots(table) if self.positions else None
        key = writer(self._key_format(table.key_type), table.key_type, exact=True)
        form = self._value_format()
        if form is None:
            columns = arrow_schema("value", StructType([*table.key_type, *row_type]))
            texts = texts_of(self.value, columns, table.spark)
            value: Writer | None = None if texts is None else WriteTexts(texts)
        else:
            value = writer(form, row_type)
        if key is None or value is None:
            return None
        make = MakeRecords(table.packed.unpack, key, value, positions)
        schema = spark_schema(make.schema)

        def records_of(results: DataFrame) -> DataFrame:
            frame = results.mapInArrow(make, schema)
            if positions is None:
                return frame
            return frame.select("key", "value", _of_positions().alias("headers"))

        return records_of

    def _key_format(self, schema: StructType) -> Format:
        """Choose the format of keys: by default text as text, bytes as bytes, else JSON."""
        if self.key is not None:
            return as_format("key", self.key, "key")
        kind = schema[0].dataType if len(schema) == 1 else None
        if isinstance(kind, StringType):
            return String()
        return Bytes() if isinstance(kind, BinaryType) else Json("")

    def _value_format(self) -> Format | None:
        """None: it is an expression."""
        if self.value is None:
            return Json("")
        if isinstance(self.value, str) and self.value not in ("string", "bytes"):
            return None
        return None if isinstance(self.value, Column) else as_format("value", self.value, "value")

    def _key_of_events(self, events: DataFrame) -> Column:
        """The key of events' records."""
        if self.key is None:
            return F.lit(None).cast("binary")
        if not isinstance(self.key, str):
            raise TopologyError(
                f"key: events have no key that a {type(self.key).__name__} could write; "
                "give an SQL text over their columns"
            )
        return resolve_column("key", self.key, events, events.columns, "the events").cast("binary")


def _positions(table: TablePlan) -> Column:
    """The text of the header that says where the rows came from."""
    roots = _roots(table)
    if not isinstance(table.node, Source):
        return on_arrow(roots, StringType(), F.col(VERSION))
    chains = F.col(CHAINS) if CHAINS in table.columns_of(table.rows).names else None
    return relayed(chains, F.col(RAW))


def _roots(table: TablePlan) -> RootsOf | OriginsOf:
    """Read where rows came from out of their versions; ``TopologyError`` if they do not say."""
    node, read = table.node, sources(table.node)
    tables = node.tables if isinstance(node, Merge) else (node,)
    if any(map(summed_up, tables)):
        raise TopologyError(
            "positions: they are not available after an aggregate, a flat map, rekey or operators "
            "on a merged table, whose rows do not come from one record; leave positions out"
        )
    if homeless := [source.name for source in read if source.topic is None]:
        raise TopologyError(
            f"positions: {homeless[0]} is not read from a topic, "
            "so its rows have no position in one"
        )
    if begun := [source.name for source in read if source.snapshot is not None]:
        raise TopologyError(
            f"positions: {begun[0]} has a snapshot, whose rows have no position in a topic; leave "
            "positions out"
        )
    if isinstance(node, Merge) and periodic(node):
        raise TopologyError(
            f"positions: {node.name} has emit={node.emit!r}, and rows that wait for the end of an "
            "interval lose their positions; leave emit or positions out"
        )
    known = RootsOf.topics(node.parts, [str(source.topic) for source in read])
    return OriginsOf(origins(node), known.known) if isinstance(node, Merge) else known


def _of_positions() -> Column:
    """The headers that say where a record came from."""
    value = F.col(POSITIONS).cast("binary").alias("value")
    return F.array(F.struct(F.lit(HEADER).alias("key"), value))


def _struct(frame: DataFrame, names: tuple[str, ...]) -> tuple[Column, StructType]:
    columns = [F.col(quoted(name)) for name in names]
    return F.struct(*columns), frame.select(*columns).schema


def _encode(argument: str, form: Format, row: Column, schema: StructType) -> Column:
    if not hasattr(form, "encode"):
        raise TopologyError(
            f"{argument}: {type(form).__name__} is a format to read only; "
            "write String, Bytes, Json or Registry"
        )
    return form.encode(row, schema)
