"""Tables made row by row: ``filter``, ``map_values``, and tables whose rows are kept.

Joins and aggregates read such a table as it comes: a row that is left out is a tombstone to them.
Sinks, and all readers if its rows are kept, read it through a stage that knows what was sent: a
row's changes that leave it unchanged are dropped (KIP-557), and so are tombstones of rows that were
never there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.views import CompleteBound, ViewBound, ViewStep
from fkjoin.lowering.answers import JoinRows
from fkjoin.lowering.stage import counted, let_through, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, pack_rows, table_of
from fkjoin.lowering.workers import packed_rows, packed_view, with_step
from fkjoin.plan.base import ON_CHANGE, ON_UPDATE
from fkjoin.plan.nodes import Source, View, fired, read_from
from fkjoin.plan.optimizer import (
    Off,
    filter_goes_below_join,
    resolve_makes_rows,
    view_reads_answers,
)
from fkjoin.plan.physical import InWorkers, Physical, by_spark
from fkjoin.plan.rules import FILTER_GOES_BELOW_JOIN, VIEW_READS_ANSWERS
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED, LEFT_GONE, PACKED_KEY, PROBLEM, RAW, ROW, TS, VERSION
from fkjoin.spark.packing import PackJoined
from fkjoin.spark.schemas import arrow_schema, column_texts, struct_column
from fkjoin.spark.specs import ResolveSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined
from fkjoin.stages.complete import UNAVAILABLE, Complete


def plan_view(planned: Planned, table: TablePlan) -> TablePlan:
    """A view of the table, or the table with its rows kept."""
    bound: ViewBound = planned.bound
    step, emission, settings = bound.step, bound.emission, bound.settings
    assert isinstance(planned.node, View)
    label, materialized, off = planned.name, planned.node.materialized, settings.off
    below = table.node
    if isinstance(below, View) and below.materialized is None:
        below = below.table
    node = view_reads_answers(replace(planned.node, table=below, materialized=None), off)
    node, undecoded = with_step(node, off, table, step)

    raw = [name for name in (RAW,) if name in table.columns_of(table.rows).names]
    rows = by_spark(lambda frame: step.taken(frame, *raw), table.visible)
    row_type = struct_column(table.columns_of(rows), ROW)
    key, row = arrow_schema("key", planned.key_type), arrow_schema("row", row_type)
    join = None
    if table.join is not None:
        node, join = _filtered_below(node, off, table, table.join, step)
    if join is not None and fired(node, VIEW_READS_ANSWERS):
        node, resolved = _of_answers(node, planned, join, row)
    else:
        pack = pack_rows(table, row, settings)
        failing = label if table.on_error == "fail" else None
        packed = packed_view(rows, undecoded, pack, failing=failing)
        resolved = _Resolved(packed, as_read=read_from(below) is not None)
    about = {
        "key": planned.key_type,
        "result": row_type,
        "versions": [list(version) for version in node.versions],
    }
    facts = {
        "materialized": materialized,
        **planned.node.facts,
        "emit": ON_UPDATE if emission.every else ON_CHANGE,
        "key": column_texts(key),
        "row": column_texts(row),
    }
    spec = ResolveSpec(
        state_spec(settings, ResolveSpec, planned.node, bound_to=facts, about=about),
        materialized=materialized is not None,
        as_read=resolved.as_read,
        in_order=let_through(below),
        every=emission.every,
        from_answers=resolved.makes,
    )
    results = paced(planned, counted(resolved.envelopes, spec), about)
    unpack = UnpackResults(key, (row,), node.versions)
    view = table_of(
        planned,
        replace(node, materialized=materialized),
        results,
        unpack,
        table,
        dead=(*table.dead, *table.dead_of(step.tried, label)),
        joins=None if table.joins is None else f"{label} stands between the joins",
    )
    if materialized is not None:
        return view
    return replace(view, rows=rows, settled=view.rows, undecoded=undecoded, join=join)


class _Resolved(NamedTuple):
    """Envelopes that come to a view's resolve."""

    envelopes: Physical
    makes: Joined | None = None
    """Function that makes rows of answers, where resolve does so itself."""
    as_read: bool = False


def _filtered_below(
    view: View, off: Off, table: TablePlan, join: JoinRows, step: ViewStep
) -> tuple[View, JoinRows]:
    """A view, and the rows of the join that it is of; the view's filter is below where it may."""
    # Filters in a row are one view; one of them may be below, and another not.
    before = [verdict for verdict in table.node.rules if verdict.rule == FILTER_GOES_BELOW_JOIN]
    if step.condition is None:
        for verdict in before:
            view = filter_goes_below_join(view, off, verdict.why_not)
        return view, join.then(table.planned, step)
    filtered = join.keeping(step.condition)
    obstacle = filtered if isinstance(filtered, str) else None
    if any(verdict.fired for verdict in before):
        obstacle = None
    view = filter_goes_below_join(view, off, obstacle)
    if isinstance(filtered, JoinRows) and fired(view, FILTER_GOES_BELOW_JOIN):
        join = filtered
    return view, join.then(table.planned, step)


def _of_answers(
    view: View, planned: Planned, join: JoinRows, row: pa.Schema
) -> tuple[View, _Resolved]:
    """The rows of a view of a join, made of the join's answers."""
    settings = planned.bound.settings
    off = settings.off
    node, answers = join.plan.narrowed(view, off, join.places(None))
    maker = join.maker
    node = resolve_makes_rows(node, off, maker if isinstance(maker, str) else None)
    if isinstance(maker, str):
        pack = PackJoined(row, settings.buckets)
        return node, _Resolved(_packed(join.rows(answers), pack))
    rows = AnswerRows(answers.fields, maker, planned.on_error == "fail")
    return node, _Resolved(answers.counted, Joined(rows, row))


def plan_complete(planned: Planned, table: TablePlan) -> TablePlan:
    """A topic's table whose events may lack values.

    Its rows are kept, and give events the values that they lack.
    """
    bound: CompleteBound = planned.bound
    settings, node = bound.settings, planned.node
    assert isinstance(node, View)
    assert isinstance(node.table, Source)
    whole = StructType([field for field in table.row_type if field.name != UNAVAILABLE])
    came, key = arrow_schema("row", table.row_type), arrow_schema("key", table.key_type)
    row = arrow_schema("row", whole)
    pack = pack_rows(table, came, settings)
    facts = {
        "materialized": node.materialized,
        **node.facts,
        "key": column_texts(key),
        "row": column_texts(row),
    }
    about = {
        "key": table.key_type,
        "result": whole,
        "versions": [list(version) for version in node.versions],
    }
    state = state_spec(settings, ResolveSpec, planned.node, bound_to=facts, about=about)
    spec = ResolveSpec(state, materialized=True, as_read=True, complete=Complete(came))
    results = counted(packed_rows(table, pack), spec)
    return table_of(planned, node, results, UnpackResults(key, (row,), node.versions), table)


def _packed(rows: Physical, pack: PackJoined) -> Physical:
    """A join's rows before resolve, packed."""
    nothing = F.lit(None)
    columns = {
        "key": F.col(PACKED_KEY),
        "version": F.col(VERSION),
        "ts": F.col(TS),
        "gone": F.col(LEFT_GONE),
        "row": F.when(~F.col(DELETED), F.col(ROW)),
        "problem": F.col(PROBLEM),
        "counter": nothing.cast("string"),
        "count": nothing.cast("bigint"),
    }
    chosen = [column.alias(name) for name, column in columns.items()]
    return InWorkers(by_spark(lambda frame: frame.select(*chosen), rows), pack, ENVELOPE)
