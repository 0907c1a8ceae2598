"""Tables made row by row: ``filter``, ``map_values``, and a source whose rows are kept.

Joins and aggregates read such a table as it comes: a row that is left out is a tombstone to them.  Sinks, and everybody if
its rows are kept, read it through a stage that knows what was sent: a row's changes that leave it as it was are dropped
(KIP-557), and so are tombstones of rows that were never there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from fkjoin.columns import Expression, Expressions, arrow_schema, resolve_column, schema_text, text
from fkjoin.emission import Emission, Emit, paced
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, LEFT_GONE, PACKED_KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.optimizer import allowed, decide, no_answers
from fkjoin.projection import Projection
from fkjoin.rows import Path
from fkjoin.rules import RESOLVE_PICKS_FIELDS, VIEW_READS_ANSWERS
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackJoined, PackRows
from fkjoin.spark.settings import bucket_count, validated
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.contribute import Joined, Place
from fkjoin.stateful import counted, frame_of, packing_columns, pickled, refuse_same_name, stage, stage_spec
from fkjoin.topology import Derived, Join, Verdict, generated_name, verdicts

if TYPE_CHECKING:
    from fkjoin.table import Table


_MORE = "a column is more than a field of both rows"


class _Step(NamedTuple):
    """What is made of each row."""

    row: Column
    gone: Column
    """Whether there is none."""
    reads: Callable[[Sequence[Path] | None], list[Path] | None]
    """What must be there of the table's rows for what is at paths of the new ones (None: for all of them)."""
    fields: Mapping[str, Place] | str
    """Where the columns of the new rows are among a join's answers; or why they are not there."""
    said: tuple[tuple[str, str], ...]
    """For people."""


def filtered(table: Table, condition: Expression, name: str | None, emit: Emit) -> Table:
    """See ``Table.filter``."""
    rows = table.visible()
    names = [*table.row_type.names, *table.key]
    holds = resolve_column("condition", condition, rows, names, f"table {table.name}")
    kind = rows.select(holds.alias("it")).schema["it"].dataType
    if not isinstance(kind, BooleanType):
        raise TopologyError(f"condition: {text(condition)} is {kind.simpleString()}, a boolean is needed: write a comparison")
    stays = ~F.col(DELETED) & F.coalesce(holds, F.lit(False))

    def reads(paths: Sequence[Path] | None) -> list[Path] | None:
        return None if paths is None else [*paths, *table.reads([condition])]

    said = (("filter", text(condition)),)
    step = _Step(F.when(stays, F.col(ROW)), ~stays, reads, "a filter leaves rows out", said)
    return _derived(table, rows, step, name, emit)


def mapped(table: Table, columns: Expressions, name: str | None, emit: Emit) -> Table:
    """See ``Table.map_values``."""
    rows = table.visible()
    made = Projection.of("columns", columns, rows, [*table.row_type.names, *table.key], f"table {table.name}")
    fields = None
    if table.answers is not None:
        named = dict(zip(made.schema.names, made.given, strict=True))
        fields = table.answers.fields_of(named, arrow_schema("row", table.row_type), rows.sparkSession)
    said = (("map_values", ", ".join(made.texts)),)
    step = _Step(F.when(~F.col(DELETED), made.struct), F.col(DELETED), lambda _: table.reads(made.given), fields or _MORE, said)
    return _derived(table, rows, step, name, emit)


def kept(table: Table, materialized: str) -> Table:
    """A source whose rows are kept; see ``Table.materialize``."""
    step = _Step(F.col(ROW), F.col(DELETED), lambda paths: None, "it is no join", ())
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
    why_not = step.fields if isinstance(step.fields, str) else allowed(spark, RESOLVE_PICKS_FIELDS)
    rule = decide(spark, VIEW_READS_ANSWERS, below, None if table.early is not None else no_answers(table.node))
    node = Derived(label, below, steps, emit, verdicts(rule))

    def stepped(visible: DataFrame, *more: str) -> DataFrame:
        return visible.select(KEY, step.row.alias(ROW), step.gone.alias(DELETED), VERSION, SOURCE, TS, PROBLEM, *more)

    def early(paths: Sequence[Path] | None, reader: str) -> tuple[DataFrame, tuple[Verdict, ...]]:
        assert table.early is not None
        found, rules = table.early(step.reads(paths), reader)
        return stepped(table.visible(found), PACKED_KEY, LEFT_GONE), rules

    fires = rule is not None and rule.fired
    frame = stepped(rows, *([RAW] if RAW in table.frame.columns else []))
    between = None if table.star is None else f"{label} stands between the joins"
    bare = replace(table, unread=None, packed=None, answers=None, contributions=None, star=between, narrow=None)
    made = replace(bare, node=node, frame=frame, early=None if table.early is None else early)
    buckets, checked = bucket_count(spark), validated(spark)
    key, schema = arrow_schema("key", made.key_type), arrow_schema("row", made.row_type)
    bound_to = {
        "steps": [list(item) for item in steps],
        "emit": "on-update" if emission.every else "on-change",
        "key": schema_text(key),
        "row": schema_text(schema),
    }
    about = {"key": made.key_type, "result": made.row_type, "versions": [list(version) for version in node.versions]}
    picked = b""
    if fires and table.answers is not None and not isinstance(step.fields, str) and why_not is None:
        places, fewer, verdict = tuple(step.fields.values()), table.answers, None
        if isinstance(below, Join) and below.joiner is None:  # else the joiner says what is kept
            fewer, verdict = fewer.narrowed(places, label)
        packed, picked, less = fewer.counted, pickled(Joined(fewer.of, places, schema)), verdicts(verdict)
    elif fires:
        answered, less = early(None, label)
        packed = _packed(answered, PackJoined(schema, buckets))
    else:
        packed = frame.select(*packing_columns()).mapInArrow(PackRows(key, schema, buckets, validate=checked), ENVELOPE)
    if fires:
        node = replace(node, rules=(*node.rules, Verdict(RESOLVE_PICKS_FIELDS, why_not), *less))
    unpack = UnpackResults(key, (schema,), node.versions)

    def built(materialized: str | None) -> Table:
        facts = {"materialized": materialized, **bound_to}
        more = {"materialized": materialized is not None, "every": emission.every, "from_answers": picked}
        spec = stage_spec(spark, "resolve", label, facts, about, validate=checked, **more)
        results = counted(stage(packed, spec), label, "resolve")
        results = paced(results, label, emission, about, checked)
        settled, named = frame_of(results, unpack), replace(node, materialized=materialized)
        common = replace(made, node=named, packed=(results, unpack), materialized_as=built)
        if materialized is None:
            return replace(common, settled=settled)
        return replace(common, frame=settled, settled=None, early=None, on_error="fail")  # whoever reads it reads what is kept

    return built(None)


def _packed(frame: DataFrame, pack: PackJoined) -> DataFrame:
    """A join's rows before resolve, packed."""
    columns = {"key": F.col(PACKED_KEY), "version": F.col(VERSION), "ts": F.col(TS), "gone": F.col(LEFT_GONE)}
    columns |= {"row": F.when(~F.col(DELETED), F.col(ROW))}
    columns |= {"counter": F.lit(None).cast("string"), "count": F.lit(None).cast("bigint")}
    return frame.select(*(column.alias(name) for name, column in columns.items())).mapInArrow(pack, ENVELOPE)
