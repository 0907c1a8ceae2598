"""``enrich``: events and a table's changes, in one stage by the table's key."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import as_json
from fkjoin.analysis.enrich import EnrichBound
from fkjoin.analysis.planned import Planned
from fkjoin.lowering.pruning import narrow
from fkjoin.lowering.stage import counted, let_through, state_spec
from fkjoin.lowering.table_plan import TablePlan, dead_of_all, stages_of
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.nodes import Enrich, Events, starts_over
from fkjoin.plan.physical import InWorkers, Physical, Union, by_spark
from fkjoin.spark.frame import PROBLEM, RAW
from fkjoin.spark.names import quoted
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackEvents, PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import EnrichSpec
from fkjoin.spark.unpacking import UnpackEvents


def plan_enrich(planned: Planned, table: TablePlan, events: TablePlan) -> TablePlan:
    """The events with the table's columns."""
    bound: EnrichBound = planned.bound
    settings, tried, label = bound.settings, bound.tried, planned.name
    assert isinstance(planned.node, Enrich)
    assert isinstance(events.node, Events | Enrich)
    node = replace(planned.node, table=table.node, events=events.node)
    key, event = arrow_schema("key", table.key_type), arrow_schema("events", events.row_type)
    row = narrow(arrow_schema("row", table.row_type), ((name,) for name in node.added))
    pack = PackRows(
        key,
        row,
        settings.buckets,
        validate=settings.validate,
        start_over=starts_over(table.node),
    )
    on = [column.alias(name) for name, column in zip(key.names, tried.columns, strict=True)]
    problem = F.lit(None).cast("string") if tried.problem is None else tried.problem
    columns = {"on": F.struct(*on), "event": _whole(events), "problem": problem}
    chosen = [column.alias(name) for name, column in columns.items()]
    asked = by_spark(lambda frame: tried.on(frame).select(*chosen), events.rows)
    packed = InWorkers(asked, PackEvents(key, event, settings.buckets), ENVELOPE)
    facts = {"key": schema_text(key), "row": schema_text(row)}
    about = {
        "key": table.key_type,
        "row": spark_schema(row),
        "versions": [list(version) for version in table.node.versions],
    }
    tables = dict.fromkeys(facts, table.name)
    state = state_spec(settings, EnrichSpec, label, bound_to=facts, about=about, tables=tables)
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
