"""``table.enrich``: events, each joined once with a table's row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, as_json, attempt
from fkjoin.analysis.bound import Scope, bind
from fkjoin.analysis.checks import as_emitted
from fkjoin.analysis.joiner import require_key
from fkjoin.analysis.planned import Planned, Settings, refuse_same_name
from fkjoin.errors import TopologyError
from fkjoin.kafka.connection import Connection
from fkjoin.lowering.answers import narrow
from fkjoin.lowering.stage import counted, let_through, state_spec
from fkjoin.lowering.table_plan import TablePlan, dead_of_all, pack_rows, stages_of
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.base import Node, in_order
from fkjoin.plan.nodes import Enrich, Events, generated_name
from fkjoin.plan.physical import Given, InWorkers, Physical, Union, by_spark
from fkjoin.sessions.access import access
from fkjoin.sessions.plan_sources import sources_of
from fkjoin.sessions.settings import prepare
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.frame import PROBLEM, RAW
from fkjoin.spark.names import quoted, require_apart, twice
from fkjoin.spark.packing import PackEvents
from fkjoin.spark.schemas import Expressions, arrow_schema, column_texts, listed, spark_schema
from fkjoin.spark.specs import EnrichSpec
from fkjoin.spark.unpacking import UnpackEvents
from fkjoin.stages.join_rows import How, require_how_of_events


@dataclass(frozen=True, eq=False)
class EventsBound:
    """A stream of events."""

    operator: ClassVar[str] = "events"
    rows: Given
    topics: tuple[Connection, ...] = ()
    """The topics that it reads, which must not be created again."""


@dataclass(frozen=True, eq=False)
class EnrichBound:
    """Needs of lowering ``enrich``, besides its node."""

    operator: ClassVar[str] = "enrich"
    tried: Attempt
    """The columns of the key over a frame of events."""
    settings: Settings


def planned_events(events: Any, name: str | None) -> Planned:
    """The stream of events that a user gives.  Raises ``TopologyError``."""
    if not isinstance(events, DataFrame):
        raise TopologyError(
            f"events: a streaming DataFrame is needed, this is a {type(events).__name__}"
        )
    if not events.isStreaming:
        raise TopologyError(
            "events: a batch DataFrame is not a stream; read it as one (spark.readStream…)"
        )
    require_apart("events", events.columns, "rename one of them: df.withColumnRenamed(…)")
    spark = events.sparkSession
    prepare(spark)
    if (why := access(spark).not_appended(events)) is not None:
        raise TopologyError(
            "events: this stream may still change its rows, and an event is sent only once; Spark "
            f"says: {why}. Make a table of the stream before that, with Table.from_stream, and "
            "compute its sums with group_by"
        )
    label = name or f"events-{generated_name(events.schema.json())}"
    node = Events(label, tuple(events.columns), f"stream of {', '.join(events.columns)}")
    row = as_emitted("events", events.schema)
    return Planned(node, StructType(), row, spark, EventsBound(Given(events), _topics(events)))


def topics_of_events(table: Planned) -> list[Connection]:
    """The topics of the events that the table's rows enrich."""
    topics = list(table.bound.topics) if isinstance(table.bound, EventsBound) else []
    for below in table.inputs:
        topics += topics_of_events(below)
    return topics


def _topics(events: DataFrame) -> tuple[Connection, ...]:
    """The topics that are read by their names; none of a source that may lose data."""
    topics: list[Connection] = []
    for source, options in sources_of(events):
        if (
            source == "kafka"
            and "subscribe" in options
            and options.get("failondataloss", "true").lower() != "false"
        ):
            client = {name: text for name, text in options.items() if name.startswith("kafka.")}
            servers = client.pop("kafka.bootstrap.servers")
            names = (name.strip() for name in options["subscribe"].split(","))
            topics += (
                Connection(name, servers, client, 0, of_events=True) for name in names if name
            )
    return tuple(topics)


def planned_enrich(
    table: Planned,
    events: Planned,
    *,
    on: Expressions,
    how: How,
    name: str | None,
    on_error: OnError,
    settings: Settings,
) -> Planned:
    """See ``Table.enrich``.  Raises ``TopologyError``."""
    require_how_of_events(how)
    require_on_error(on_error)
    require_fused(table.node)
    assert isinstance(events.node, Events | Enrich)
    bound = bind("on", listed(on), _scope(events))
    require_key("on", bound, f"events {events.name}", table, f"table {table.name}")
    added = table.rest
    if (pair := twice([*events.row_type.names, *added])) is not None:
        raise TopologyError(
            f"events: {pair[0]!r} is a column of the events and of table {table.name}; "
            f"rename it in one of them: df.withColumnRenamed(…), or select of the table"
        )
    texts = tuple(expression.text for expression in bound)
    label = name or f"{table.name}-enrich-{generated_name(table.name, events.name, texts, how)}"
    refuse_same_name(label, (table.node, events.node), "enrich")
    columns = [F.col(quoted(column)) for column in events.row_type.names]
    usable = {"usable": F.lit(True), "key": F.struct(*columns)}
    tried = attempt("enrich", events.name, bound, on_error, **usable)
    return Planned(
        Enrich(label, table.node, events.node, how, texts, added),
        StructType(),
        StructType(
            [*events.row_type, *(as_emitted("table", table.row_type)[column] for column in added)]
        ),
        table.spark,
        EnrichBound(tried, settings),
        (table, events),
        on_error=on_error,
    )


def _scope(events: Planned) -> Scope:
    """The columns of events.

    Columns of a stream that is read may be given as its own, such as ``df["id"]``.
    """
    bound = events.bound
    frame = (
        bound.rows.frame
        if isinstance(bound, EventsBound)
        else events.spark.createDataFrame([], events.row_type)
    )
    return Scope(
        frame,
        tuple(events.row_type.names),
        f"events {events.name}",
        arrow_schema("events", events.row_type),
    )


def require_fused(node: Node) -> None:
    """Raise ``TopologyError`` if queries with topics between them make the table.

    A batch would have a part of a change.
    """
    for step in in_order(node):
        if step.staged:
            raise TopologyError(
                f"table: {step.name} is deployed in stages, so a part of its change may arrive in "
                'an earlier batch than the rest; leave deployment="staged" out'
            )


def plan_enrich(planned: Planned, table: TablePlan, events: TablePlan) -> TablePlan:
    """The events with the table's columns."""
    bound: EnrichBound = planned.bound
    settings, tried = bound.settings, bound.tried
    assert isinstance(planned.node, Enrich)
    assert isinstance(events.node, Events | Enrich)
    node = replace(planned.node, table=table.node, events=events.node)
    key, event = arrow_schema("key", table.key_type), arrow_schema("events", events.row_type)
    row = narrow(arrow_schema("row", table.row_type), ((name,) for name in node.added))
    pack = pack_rows(table, row, settings)
    on = [column.alias(name) for name, column in zip(key.names, tried.columns, strict=True)]
    problem = F.lit(None).cast("string") if tried.problem is None else tried.problem
    columns = {"on": F.struct(*on), "event": _whole(events), "problem": problem}
    chosen = [column.alias(name) for name, column in columns.items()]
    asked = by_spark(lambda frame: tried.on(frame).select(*chosen), events.rows)
    packed = InWorkers(asked, PackEvents(key, event, settings.buckets), ENVELOPE)
    facts = {"key": column_texts(key), "row": column_texts(row)}
    about = {
        "key": table.key_type,
        "row": spark_schema(row),
        "versions": [list(version) for version in table.node.versions],
    }
    reads = [table.planned.node]
    state = state_spec(settings, EnrichSpec, planned.node, bound_to=facts, about=about, reads=reads)
    spec = EnrichSpec(state, how=node.how, in_order=let_through(table.node))
    results = counted(Union((packed_rows(table, pack), packed)), spec)
    unpack = UnpackEvents(event, row, node.added)
    return TablePlan(
        planned,
        node,
        InWorkers(results, unpack, spark_schema(unpack.schema)),
        (*dead_of_all(table, events), *_dead(planned, events)),
        stages_of(table, events),
    )


def _whole(events: TablePlan) -> Column:
    """The event as a struct."""
    return F.struct(*(F.col(quoted(name)) for name in events.row_type.names))


def _dead(planned: Planned, events: TablePlan) -> tuple[Physical, ...]:
    """The rows that dead letters come from, of events on which an expression throws."""
    tried = planned.bound.tried
    if planned.on_error != "dead-letter" or tried.reason is None:
        return ()
    value = as_json(_whole(events)).alias("value")
    raw = F.struct(F.lit(events.name).alias("table"), value)

    def letters(frame: DataFrame) -> DataFrame:
        return tried.on(frame).select(raw.alias(RAW), tried.reason.alias(PROBLEM))

    return (by_spark(letters, events.rows),)
