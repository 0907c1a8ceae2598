"""Tables made row by row: ``filter``, ``map_values``, and tables whose rows are kept.

Joins and aggregates read such a table as it comes: a row that is left out is a tombstone to them.  Sinks, and all readers if
its rows are kept, read it through a stage that knows what was sent: a row's changes that leave it unchanged are dropped
(KIP-557), and so are tombstones of rows that were never there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.views import CompleteBound, ViewBound, ViewStep
from fkjoin.lowering.lowered import Lowered, PreResolve
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import narrowed
from fkjoin.lowering.stage import counted, frame_of, let_through, stage, state_spec
from fkjoin.lowering.workers import packed_rows, packed_view, with_step
from fkjoin.plan.nodes import Source, View, fired, read_from, starts_over
from fkjoin.plan.optimizer import resolve_makes_rows, view_reads_answers
from fkjoin.plan.rules import VIEW_READS_ANSWERS
from fkjoin.spark.frame import DELETED, LEFT_GONE, PACKED_KEY, PROBLEM, RAW, ROW, TS, VERSION
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackJoined, PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, struct_column
from fkjoin.spark.specs import ResolveSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.complete import UNAVAILABLE, Complete


def lower_view(planned: Planned, table: Lowered) -> Lowered:
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

    pre_resolve = None if table.pre_resolve is None else _pre_resolve(table, table.pre_resolve, step)
    rows = table.visible
    frame = step.taken(rows, *([RAW] if RAW in table.frame.columns else []))
    dead = (*table.dead, *table.dead_of(step.tried, label))
    row_type = struct_column(frame.schema, ROW)
    key, schema = arrow_schema("key", planned.key_type), arrow_schema("row", row_type)
    bound_to = {
        "steps": [list(item) for item in planned.node.steps],
        "emit": "on-update" if emission.every else "on-change",
        "key": schema_text(key),
        "row": schema_text(schema),
    }
    about = {"key": planned.key_type, "result": row_type, "versions": [list(version) for version in node.versions]}
    makes, as_read = None, False
    if pre_resolve is not None and fired(node, VIEW_READS_ANSWERS):
        node, answers = narrowed(node, off, pre_resolve.answers, pre_resolve.places(None))
        node = resolve_makes_rows(node, off, pre_resolve.made if isinstance(pre_resolve.made, str) else None)
        if isinstance(pre_resolve.made, str):
            packed = _packed(pre_resolve.frame(answers), PackJoined(schema, settings.buckets))
        else:
            packed = answers.counted
            makes = Joined(AnswerRows(answers.of, pre_resolve.made, table.on_error == "fail"), schema)
    else:
        pack = PackRows(key, schema, settings.buckets, validate=settings.validate, start_over=starts_over(below))
        failing = label if table.on_error == "fail" else None
        packed, as_read = packed_view(frame, undecoded, pack, failing=failing), read_from(below) is not None
    unpack = UnpackResults(key, (schema,), node.versions)
    facts = {"materialized": materialized, **bound_to}
    tables = {} if planned.node.steps else dict.fromkeys(("key", "result"), table.name)
    spec = ResolveSpec(
        state_spec(settings, ResolveSpec, label, bound_to=facts, about=about, tables=tables),
        materialized=materialized is not None,
        as_read=as_read,
        in_order=let_through(below),
        every=emission.every,
        from_answers=makes,
    )
    results = paced(counted(stage(packed, spec), label, "resolve"), label, emission, about, settings)
    settled = frame_of(results, unpack)
    joins = None if table.joins is None else f"{label} stands between the joins"
    of_both: Any = {"dead": dead, "stages": table.stages, "encoded": (results, unpack), "joins": joins}
    if materialized is not None:
        return Lowered(planned, replace(node, materialized=materialized), settled, **of_both)
    return Lowered(planned, node, frame, **of_both, settled=settled, undecoded=undecoded, pre_resolve=pre_resolve)


def lower_complete(planned: Planned, table: Lowered) -> Lowered:
    """A topic's table whose events may lack values: its rows are kept, and give events the values that they lack."""
    bound: CompleteBound = planned.bound
    settings, node = bound.settings, planned.node
    assert isinstance(node, View)
    assert isinstance(node.table, Source)
    whole = StructType([field for field in table.row_type if field.name != UNAVAILABLE])
    came, key, schema = arrow_schema("row", table.row_type), arrow_schema("key", table.key_type), arrow_schema("row", whole)
    pack = PackRows(key, came, settings.buckets, validate=settings.validate, start_over=starts_over(node.table))
    unpack = UnpackResults(key, (schema,), node.versions)
    facts = {
        "materialized": node.materialized,
        "steps": [list(step) for step in node.steps],
        "key": schema_text(key),
        "row": schema_text(schema),
    }
    about = {"key": table.key_type, "result": whole, "versions": [list(version) for version in node.versions]}
    tables = dict.fromkeys(("key", "result"), node.table.name)
    state = state_spec(settings, ResolveSpec, planned.name, bound_to=facts, about=about, tables=tables)
    spec = ResolveSpec(state, materialized=True, as_read=True, complete=Complete(came))
    results = counted(stage(packed_rows(table, pack), spec), planned.name, "resolve")
    return Lowered(planned, node, frame_of(results, unpack), table.dead, table.stages, encoded=(results, unpack))


def _pre_resolve(table: Lowered, before: PreResolve, step: ViewStep) -> PreResolve:
    """The rows after the step, before resolve; ``before``: the table's own."""
    row_maker = before.made
    if isinstance(row_maker, RowMaker):
        steps = step.evaluate()
        row_maker = f"{step} is left to Spark" if steps is None else RowMaker(row_maker.joiner, (*row_maker.steps, *steps))
    return PreResolve(
        before.answers,
        lambda paths: before.places(step.reads(paths)),
        lambda answers: step.taken(table.visible_in(before.frame(answers)), PACKED_KEY, LEFT_GONE),
        row_maker,
    )


def _packed(frame: DataFrame, pack: PackJoined) -> DataFrame:
    """A join's rows before resolve, packed."""
    columns = {"key": F.col(PACKED_KEY), "version": F.col(VERSION), "ts": F.col(TS), "gone": F.col(LEFT_GONE)}
    columns |= {"row": F.when(~F.col(DELETED), F.col(ROW)), "problem": F.col(PROBLEM)}
    columns |= {"counter": F.lit(None).cast("string"), "count": F.lit(None).cast("bigint")}
    return frame.select(*(column.alias(name) for name, column in columns.items())).mapInArrow(pack, ENVELOPE)
