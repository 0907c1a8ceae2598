"""``table.enrich``, analyzed: a stream of events, and the expressions that name a table's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.bound import Scope, bind
from fkjoin.analysis.checks import as_emitted, refuse_same_name
from fkjoin.analysis.extractor import require_key
from fkjoin.analysis.planned import Planned, Settings
from fkjoin.errors import TopologyError
from fkjoin.kafka.connection import Connection
from fkjoin.plan.base import Node, in_order
from fkjoin.plan.nodes import Aggregate, Enrich, Events, Join, generated_name
from fkjoin.plan.physical import Given
from fkjoin.sessions.access import access
from fkjoin.sessions.plan_sources import sources_of
from fkjoin.sessions.settings import prepare
from fkjoin.spark.dead_letters import OnError, require_on_error
from fkjoin.spark.names import quoted, require_apart, twice
from fkjoin.spark.schemas import Expressions, arrow_schema, listed
from fkjoin.stages import How
from fkjoin.stages.join_rows import require_how_of_events


@dataclass(frozen=True, eq=False)
class EventsBound:
    """A stream of events."""

    operator: ClassVar[str] = "events"
    rows: Given
    topics: tuple[Connection, ...] = ()
    """The topics that it reads, which must not be made anew."""


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
        raise TopologyError(f"events: a streaming DataFrame is needed, this is a {type(events).__name__}")
    if not events.isStreaming:
        raise TopologyError("events: a batch DataFrame is no stream; read it as one (spark.readStream…)")
    require_apart("events", events.columns, "rename one of them: df.withColumnRenamed(…)")
    spark = events.sparkSession
    prepare(spark)
    if (why := access(spark).not_appended(events)) is not None:
        raise TopologyError(
            f"events: rows of this stream are not final when they come, and an event is sent once; Spark says: {why}. "
            "Make a table of the stream before that, with Table.from_stream, and its sums with group_by"
        )
    label = name or f"events-{generated_name(events.schema.json())}"
    node = Events(label, tuple(events.columns), f"stream of {', '.join(events.columns)}")
    row = as_emitted("events", events.schema)
    return Planned(node, StructType(), row, spark, EventsBound(Given(events), _topics(events)))


def topics_of_events(table: Planned) -> list[Connection]:
    """The topics of the events that the table's rows enrich."""
    own = table.bound.topics if isinstance(table.bound, EventsBound) else ()
    return [*own, *(topic for below in table.inputs for topic in topics_of_events(below))]


def _topics(events: DataFrame) -> tuple[Connection, ...]:
    """The topics that are read by their names; none of a source that may lose data."""
    found: list[Connection] = []
    for source, options in sources_of(events):
        if source == "kafka" and "subscribe" in options and options.get("failondataloss", "true").lower() != "false":
            client = {name: text for name, text in options.items() if name.startswith("kafka.")}
            servers = client.pop("kafka.bootstrap.servers")
            names = (name.strip() for name in options["subscribe"].split(","))
            found += (Connection(name, servers, client, 0, of_events=True) for name in names if name)
    return tuple(found)


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
            f"events: {pair[0]!r} is a column of the events and of table {table.name}; rename it in one of them: "
            f"df.withColumnRenamed(…), or select of the table"
        )
    texts = tuple(one.text for one in bound)
    label = name or f"{table.name}-enrich-{generated_name(table.name, events.name, texts, how)}"
    refuse_same_name(label, (table.node, events.node), "enrich")
    columns = [F.col(quoted(column)) for column in events.row_type.names]
    usable = {"usable": F.lit(True), "key": F.struct(*columns)}
    tried = attempt("enrich", events.name, bound, on_error, **usable)
    return Planned(
        Enrich(label, table.node, events.node, how, texts, added),
        StructType(),
        StructType([*events.row_type, *(as_emitted("table", table.row_type)[column] for column in added)]),
        table.spark,
        EnrichBound(tried, settings),
        (table, events),
        on_error=on_error,
    )


def _scope(events: Planned) -> Scope:
    """The columns of events.  Those of a stream that is read may be given as its own, such as ``df["id"]``."""
    bound = events.bound
    frame = bound.rows.frame if isinstance(bound, EventsBound) else events.spark.createDataFrame([], events.row_type)
    return Scope(frame, tuple(events.row_type.names), f"events {events.name}", arrow_schema("events", events.row_type))


def require_fused(node: Node) -> None:
    """``TopologyError`` if queries with topics between them make the table: a batch would have a part of a change."""
    for step in in_order(node):
        joined = isinstance(step, Join) and step.topics is not None
        if joined or (isinstance(step, Aggregate) and step.topic is not None):
            raise TopologyError(
                f"table: {step.name} is deployed in stages, so that a part of its change may come in a batch before the rest; "
                'leave deployment="staged" out'
            )
