"""An aggregate on streaming DataFrames: regroup by row, then aggregate by group."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.aggregates import AggregateBound
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.projection import Projection
from fkjoin.analysis.windows import sources_of
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.repartition import read_back, to_records
from fkjoin.lowering.closing import closing_of, late_letters, with_time
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import narrowed, narrowed_rows
from fkjoin.lowering.stage import counted, frame_of, let_through, packing_columns, stage, state_spec
from fkjoin.lowering.workers import contributing, packed_contributions
from fkjoin.plan.nodes import Aggregate, fired, read_from, starts_over
from fkjoin.plan.optimizer import aggregate_reads_answers
from fkjoin.plan.rules import AGGREGATE_READS_ANSWERS
from fkjoin.spark.frame import DELETED, LEFT_GONE, RAW
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema, text
from fkjoin.spark.specs import AggregateSpec, CloseSpec, RegroupSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, ContributeRows, RowMaker
from fkjoin.stages.contribute import Contribute


def lower_aggregate(planned: Planned, table: Lowered) -> Lowered:
    """The table of what the rows of each group come to."""
    bound: AggregateBound = planned.bound
    settings, emission, topic, label = bound.settings, bound.emission, bound.topic, planned.name
    assert isinstance(planned.node, Aggregate)
    key, value, fold = bound.key, bound.value, bound.fold
    group, row_key = arrow_schema("key", key.schema), arrow_schema("key", table.key_type)
    bound_to = {
        "deployment": "fused"
        if topic is None
        else "staged",  # the store of a fused one does not know what each row contributed
        "grouped_by": list(key.texts),
        "value": [f"{item}: {field.type}" for item, field in zip(value.texts, fold.value, strict=True)],
        "columns": [f"{title} = {what}: {fold.schema.field(title).type}" for title, what in planned.node.columns],
        "key": schema_text(group),
        "row_key": schema_text(row_key),
    }
    if fold.having is not None:
        bound_to["having"] = fold.having.text
    closing = None if bound.closes is None else closing_of(bound.closes, table.planned, group)
    if closing is not None:
        bound_to |= {"windows": [str(closing.windows.size), str(closing.windows.slide)]}
        bound_to |= {"sources": [one.name for one in sources_of(table.planned)]}
    kinds = {"key": key.schema, "row_key": table.key_type, "value": value.schema, "result": spark_schema(fold.schema)}
    about = {**kinds, "versions": [["version", 1]], **({"collected": fold.collected} if fold.collected else {})}
    start_over = starts_over(table.node)
    pack = PackRows(row_key, fold.value, settings.buckets, group, settings.validate, start_over=start_over)
    contributed = _contributed(replace(planned.node, table=table.node), bound, table, pack)
    node = contributed.node

    def state(kind: type[StageSpec], materialized: str | None) -> StateSpec:
        said = {"key": planned.key_type} if kind is CloseSpec else {}
        facts, tables = {"materialized": materialized, **bound_to}, dict.fromkeys(("key", "row_key", "value"), table.name)
        return state_spec(settings, kind, label, bound_to=facts, about=about | said, tables=tables)

    def regrouped(
        number: int | None = None, every: bool = emission.every, name: str = label, letters: bool = False
    ) -> DataFrame:
        spec = RegroupSpec(
            state(RegroupSpec, None),
            as_read=read_from(table.node) is not None,
            in_order=topic is None and let_through(table.node),
            every=every,
            from_answers=contributed.contribute,
            number=number,
            windows=None if closing is None else closing.windows,
            letters=letters,
        )
        return counted(stage(contributed.envelopes, spec), f"{name}-regroup", "regroup").where("counter is null")

    grouped = regrouped()
    stages, dead = table.stages, (*table.dead, *table.dead_of(bound.tried, label))
    if topic is not None:
        records = to_records(grouped, topic, bound.upgrade_from)
        stages += (StageQuery(f"{label}-regroup", records, topic, (topic.connection,)),)
        grouped, unreadable = read_back(planned.spark, topic, fold.value, settings.buckets)
        dead += (unreadable.withColumn(RAW, F.col(RAW).withField("table", F.lit(label))),)
    unpack = UnpackResults(arrow_schema("key", planned.key_type), (fold.schema,), node.versions)
    if closing is not None:
        closes = CloseSpec(state(CloseSpec, None), fold=fold, closing=closing)
        results = counted(stage(with_time(grouped, table.planned, closes), closes), label, "close")
        if table.on_error == "dead-letter":
            again = with_time(regrouped(name=f"{label}-late", letters=True), table.planned, closes)
            dead += (late_letters(again, closes, label, row_key),)
    else:
        kept = state(AggregateSpec, node.materialized or label)
        spec = AggregateSpec(kept, fold=fold, in_order=topic is None, every=emission.every)
        results = paced(counted(stage(grouped, spec), label, "aggregate"), label, emission, about, settings)
    return Lowered(planned, node, frame_of(results, unpack), dead, stages, encoded=(results, unpack), contributions=regrouped)


class _Contributed(NamedTuple):
    """Contributions that come to regroup."""

    node: Aggregate
    """After all rules."""
    envelopes: DataFrame
    contribute: Contribute | ContributeRows | None = None
    """Function that makes contributions of a join's answers, where those come."""


def _contributed(node: Aggregate, bound: AggregateBound, table: Lowered, pack: PackRows) -> _Contributed:
    """The contributions of the table's rows, packed."""
    assert pack.group is not None
    key, value, tried, off = bound.key, bound.value, bound.tried, bound.settings.off
    before = table.pre_resolve
    paths = [path for one in (*key.bound, *value.bound) for path in one.paths]
    taken = _contribute(table, key, value, pack.group, pack.row)
    node = aggregate_reads_answers(node, off, taken if isinstance(taken, str) else None)
    groups, values = tried.columns[: len(key.bound)], tried.columns[len(key.bound) :]
    row, group = value.struct_of(values), key.struct_of(groups)
    columns, frame = {"row": F.when(~F.col(DELETED), row), "group": group}, table.frame
    if fired(node, AGGREGATE_READS_ANSWERS) and table.answers is not None and not isinstance(taken, str):
        node, answers = narrowed(node, off, table.answers, taken.places)
        return _Contributed(node, answers.counted, replace(taken, fields=answers.of))
    if fired(node, AGGREGATE_READS_ANSWERS):
        assert before is not None
        node, answers = narrowed(node, off, before.answers, before.places(paths))
        if isinstance(before.made, RowMaker) and (found := contributing(table, key, value)) is not None:
            made = ContributeRows(AnswerRows(answers.of, before.made, table.on_error == "fail"), *found)
            return _Contributed(node, answers.counted, made)
        frame, columns["gone"] = before.frame(answers), F.col(LEFT_GONE)
    elif table.narrow is not None:
        node, fewer = narrowed_rows(node, off, table.narrow, paths)
        frame = frame if fewer is None else fewer
    else:
        node, by_workers = packed_contributions(node, off, table, key=key, value=value, pack=pack)
        if by_workers is not None:
            return _Contributed(node, by_workers)
    rows = tried.on(table.visible_in(frame)).select(*packing_columns(problem=tried.problems, **columns))
    return _Contributed(node, rows.mapInArrow(pack, ENVELOPE))


def _contribute(table: Lowered, key: Projection, value: Projection, group: pa.Schema, values: pa.Schema) -> Contribute | str:
    """The way to take contributions from a join's answers; or why they cannot be taken from there."""
    answers = table.answers
    if answers is None:
        return "its rows are more than fields of both rows"
    expressions = (*key.given, *value.given)
    places = answers.places(expressions, table.planned.scope.schema)
    if None in places:
        return f"{text(expressions[places.index(None)])} is more than a field"
    fields = tuple(place for place in places if place is not None)
    parts = fields[: len(key.given)], fields[len(key.given) :]
    return Contribute(answers.of, *parts, group, values)
