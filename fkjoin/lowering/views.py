"""Tables made row by row: ``filter``, ``map_values``, and a source whose rows are kept.

Joins and aggregates read such a table as it comes: a row that is left out is a tombstone to them.  Sinks, and everybody if
its rows are kept, read it through a stage that knows what was sent: a row's changes that leave it as it was are dropped
(KIP-557), and so are tombstones of rows that were never there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from fkjoin.analysis.attempt import NOTHING, Attempt, attempt, dead_of
from fkjoin.analysis.columns import resolve_column
from fkjoin.analysis.projection import Projection
from fkjoin.analysis.vectorize import vector, vectors
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Steps, Where
from fkjoin.errors import TopologyError
from fkjoin.lowering.emission import Emission, Emit, paced
from fkjoin.lowering.pruning import narrowed
from fkjoin.lowering.stage import Early, counted, frame_of, let_through, pickled, refuse_same_name, stage, stage_spec
from fkjoin.lowering.workers import packed_rows, with_steps
from fkjoin.plan.nodes import Derived, fired, generated_name, read_from, starts_over
from fkjoin.plan.optimizer import resolve_makes_rows, view_reads_answers
from fkjoin.plan.rules import VIEW_READS_ANSWERS
from fkjoin.sessions.settings import bucket_count, switched_off, validated
from fkjoin.spark.frame import DELETED, KEY, LEFT_GONE, PACKED_KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import named, require_beside
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackJoined, PackRows
from fkjoin.spark.schemas import Expression, Expressions, arrow_schema, schema_text, text, type_of
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker

if TYPE_CHECKING:
    from fkjoin.table import Table


class _Step(NamedTuple):
    """What is made of each row."""

    tried: Attempt
    """The expressions, which row and gone are made of."""
    row: Column
    gone: Column
    """Whether there is none."""
    reads: Callable[[Sequence[Path] | None], list[Path] | None]
    """What must be there of the table's rows for what is at paths of the new ones (None: for all of them)."""
    said: tuple[tuple[str, str], ...]
    """For people."""
    evaluate: Callable[[], Steps | None]
    """The same for workers; None if Spark has to evaluate it."""

    def __str__(self) -> str:
        return " ".join(*self.said) if self.said else "it"

    def taken(self, visible: DataFrame, *more: str) -> DataFrame:
        """A table's frame after the step, with columns more of ``visible``."""
        row, gone, problem = self.row.alias(ROW), self.gone.alias(DELETED), self.tried.problems.alias(PROBLEM)
        return self.tried.on(visible).select(KEY, row, gone, VERSION, SOURCE, TS, problem, *more)


def filtered(table: Table, condition: Expression, name: str | None, emit: Emit) -> Table:
    """See ``Table.filter``."""
    rows = table.visible()
    names = [*table.row_type.names, *table.key]
    holds = resolve_column("condition", condition, rows, names, f"table {table.name}")
    kind = type_of(rows, holds)
    if not isinstance(kind, BooleanType):
        raise TopologyError(f"condition: {text(condition)} is {kind.simpleString()}, a boolean is needed: write a comparison")
    what = f"filter of {table.name}"
    tried = attempt("filter", table.name, [condition], [holds], rows, table.on_error)
    stays = ~F.col(DELETED) & F.coalesce(*tried.columns, F.lit(False))

    def reads(paths: Sequence[Path] | None) -> list[Path] | None:
        return None if paths is None else [*paths, *table.reads([condition])]

    def evaluate() -> Steps | None:
        found = vector(holds, rows, names)
        return None if found is None else (Where(found, what),)

    said = (("filter", text(condition)),)
    step = _Step(tried, F.when(stays, F.col(ROW)), ~stays, reads, said, evaluate)
    return _derived(table, rows, step, name, emit)


def mapped(table: Table, columns: Expressions, name: str | None, emit: Emit) -> Table:
    """See ``Table.map_values``."""
    rows = table.visible()
    names = [*table.row_type.names, *(name for name in table.key if name not in table.row_type.names)]
    made = Projection.of("columns", columns, rows, names, f"table {table.name}")
    as_it_is = {named(item, names) for item in made.texts} & set(table.key)
    require_beside(table.key, "columns", (name for name in made.schema.names if name not in as_it_is))
    said = (("map_values", ", ".join(made.texts)),)
    what = f"map_values of {table.name}"
    tried = attempt("map_values", table.name, made.given, made.columns, rows, table.on_error)
    step = _Step(
        tried,
        F.when(~F.col(DELETED), replace(made, columns=tried.columns).struct),
        F.col(DELETED),
        lambda _: table.reads(made.given),
        said,
        lambda: None if (found := vectors(made.named, rows, names, what)) is None else (found,),
    )
    return _derived(table, rows, step, name, emit)


def kept(table: Table, materialized: str) -> Table:
    """A source whose rows are kept; see ``Table.materialize``."""
    step = _Step(NOTHING, F.col(ROW), F.col(DELETED), lambda paths: None, (), lambda: ())
    return _derived(table, table.visible(), step, None, "on-change").materialize(materialized)


def _derived(table: Table, rows: DataFrame, step: _Step, name: str | None, emit: Emit) -> Table:
    """``rows``: the table's, visible."""
    emission = Emission.of(emit)
    below, steps = table.node, step.said
    if isinstance(below, Derived) and below.materialized is None:
        steps = (*below.steps, *steps)
        below = below.table
    label = name or f"{below.name}-{generated_name(below.name, steps) if steps else 'rows'}"
    refuse_same_name(label, (below,), "table")
    spark = rows.sparkSession
    off = switched_off(spark)
    node = view_reads_answers(Derived(label, below, steps, emit), off)
    node, unread = with_steps(node, off, table, step.evaluate, str(step))

    early = None if table.early is None else _early(table, table.early, step)
    frame = step.taken(rows, *([RAW] if RAW in table.frame.columns else []))
    between = None if table.star is None else f"{label} stands between the joins"
    bare = replace(table, unread=unread, packed=None, answers=None, contributions=None, star=between, narrow=None)
    dead = (*table.dead, *dead_of(step.tried, table))
    made = replace(bare, node=node, frame=frame, early=early, dead=dead)
    buckets, checked = bucket_count(spark), validated(spark)
    key, schema = arrow_schema("key", made.key_type), arrow_schema("row", made.row_type)
    bound_to = {
        "steps": [list(item) for item in steps],
        "emit": "on-update" if emission.every else "on-change",
        "key": schema_text(key),
        "row": schema_text(schema),
    }
    about = {"key": made.key_type, "result": made.row_type, "versions": [list(version) for version in node.versions]}
    makes, as_read = b"", False
    if early is not None and fired(node, VIEW_READS_ANSWERS):
        node, answers = narrowed(node, off, early.answers, early.places(None))
        node = resolve_makes_rows(node, off, early.made if isinstance(early.made, str) else None)
        if isinstance(early.made, str):
            packed = _packed(early.frame(answers), PackJoined(schema, buckets))
        else:
            packed = answers.counted
            makes = pickled(Joined(AnswerRows(answers.of, early.made, table.on_error == "fail"), schema))
    else:
        pack = PackRows(key, schema, buckets, validate=checked, start_over=starts_over(below))
        packed, as_read = packed_rows(made, pack), read_from(below) is not None
    unpack = UnpackResults(key, (schema,), node.versions)

    def built(materialized: str | None) -> Table:
        facts = {"materialized": materialized, **bound_to}
        more = {"materialized": materialized is not None, "every": emission.every, "from_answers": makes, "as_read": as_read}
        more["in_order"] = let_through(below)
        spec = stage_spec(spark, "resolve", label, facts, about, validate=checked, **more)
        results = counted(stage(packed, spec), label, "resolve")
        results = paced(results, label, emission, about, checked)
        settled, named = frame_of(results, unpack), replace(node, materialized=materialized)
        common = replace(made, node=named, packed=(results, unpack), materialized_as=built)
        if materialized is None:
            return replace(common, settled=settled)
        kept = replace(common, frame=settled, settled=None)
        return replace(kept, early=None, unread=None)  # whoever reads it reads what is kept

    return built(None)


def _early(table: Table, before: Early, step: _Step) -> Early:
    """The rows after the step, before resolve; ``before``: the table's own."""
    made = before.made
    if isinstance(made, RowMaker):
        found = step.evaluate()
        made = f"{step} is left to Spark" if found is None else RowMaker(made.joiner, (*made.steps, *found))
    return Early(
        before.answers,
        lambda paths: before.places(step.reads(paths)),
        lambda answers: step.taken(table.visible(before.frame(answers)), PACKED_KEY, LEFT_GONE),
        made,
    )


def _packed(frame: DataFrame, pack: PackJoined) -> DataFrame:
    """A join's rows before resolve, packed."""
    columns = {"key": F.col(PACKED_KEY), "version": F.col(VERSION), "ts": F.col(TS), "gone": F.col(LEFT_GONE)}
    columns |= {"row": F.when(~F.col(DELETED), F.col(ROW)), "problem": F.col(PROBLEM)}
    columns |= {"counter": F.lit(None).cast("string"), "count": F.lit(None).cast("bigint")}
    return frame.select(*(column.alias(name) for name, column in columns.items())).mapInArrow(pack, ENVELOPE)
