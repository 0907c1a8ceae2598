"""The operators of an aggregate on a streaming DataFrame: regroup by row, then aggregate by group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import Attempt, attempt, dead_of
from fkjoin.analysis.projection import Projection
from fkjoin.errors import TopologyError
from fkjoin.folds.fold import Fold
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.repartition import RepartitionTopic, read_back, to_records
from fkjoin.lowering.emission import Emission, Emit, paced
from fkjoin.lowering.pruning import narrowed, narrowed_rows
from fkjoin.lowering.recipes import refuse_to_start_over
from fkjoin.lowering.stage import (
    Contributions,
    Deployment,
    counted,
    frame_of,
    let_through,
    packing_columns,
    pickled,
    refuse_same_name,
    stage,
    stage_spec,
)
from fkjoin.lowering.workers import contributing, packed_contributions
from fkjoin.plan.nodes import Aggregate, fired, generated_name, read_from, starts_over
from fkjoin.plan.optimizer import Off, aggregate_reads_answers
from fkjoin.plan.rules import AGGREGATE_READS_ANSWERS
from fkjoin.sessions.settings import bucket_count, switched_off, validated
from fkjoin.spark.frame import DELETED, LEFT_GONE, RAW
from fkjoin.spark.names import require_beside
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, require_plain_keys, schema_text, spark_schema, text
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, ContributeRows, RowMaker
from fkjoin.stages.contribute import Contribute

if TYPE_CHECKING:
    from fkjoin.table import Table


@dataclass(frozen=True)
class Options:
    """What ``Table.group_by`` is told besides key and value."""

    name: str | None = None
    emit: Emit = "on-change"
    deployment: Deployment = "fused"
    application: str | None = None
    upgrade_from: str | None = None
    validate: bool | None = None


def aggregated(
    table: Table, key: Projection, value: Projection, fold: Fold, columns: tuple[tuple[str, str], ...], options: Options
) -> Table:
    """The table of ``fold`` over what the rows contribute, by ``key``; ``columns``: names and descriptions of its columns."""
    emission = Emission.of(options.emit)
    if options.deployment not in get_args(Deployment):
        raise TopologyError(f'deployment: {options.deployment!r} is not one of "fused", "staged"')
    if options.upgrade_from is not None and options.deployment == "fused":
        raise TopologyError('upgrade_from: it is for deployment="staged"; a fused aggregate has no topic to write to')
    spark = table.frame.sparkSession
    described = table.name, key.texts, value.texts, columns
    label = options.name or f"{table.name}-by-{generated_name(*described)}"
    refuse_same_name(label, (table.node,), "aggregate")
    keys = tuple(key.schema.names)
    require_plain_keys("key", key.schema)
    require_beside(keys, "agg", fold.schema.names, "give it another name")
    topic = None
    if options.deployment == "staged":
        application = options.application or str(spark.sparkContext.appName)
        topic = RepartitionTopic.of(application, label, table.connection, table.name)
        refuse_to_start_over("deployment", table)
    through = None if topic is None else topic.name
    node = Aggregate(label, table.node, keys, key.texts, value.texts, columns, options.emit, through)
    buckets, checked = bucket_count(spark), validated(spark) if options.validate is None else options.validate
    group, row_key = arrow_schema("key", key.schema), arrow_schema("key", table.key_type)
    bound_to = {
        "deployment": options.deployment,  # the store of a fused aggregate does not know what each row has contributed
        "grouped_by": list(key.texts),
        "value": [f"{item}: {field.type}" for item, field in zip(value.texts, fold.value, strict=True)],
        "columns": [f"{title} = {what}: {fold.schema.field(title).type}" for title, what in columns],
        "key": schema_text(group),
        "row_key": schema_text(row_key),
    }
    kinds = {"key": key.schema, "row_key": table.key_type, "value": value.schema, "result": spark_schema(fold.schema)}
    about = {**kinds, "versions": [["version", 1]]}
    pack = PackRows(row_key, fold.value, buckets, group, checked, start_over=starts_over(table.node))
    tried = _tried(table, key, value)
    node, rows, contribute = _contributed(node, switched_off(spark), table, key, value, tried, pack)

    def through_stage(
        rows: DataFrame, kind: StageName, materialized: str | None, number: int | None = None, every: bool = emission.every
    ) -> DataFrame:
        spec = stage_spec(
            spark,
            kind,
            label,
            {"materialized": materialized, **bound_to},
            about,
            validate=checked,
            every=every,
            fold=pickled(fold) if kind == "aggregate" else b"",
            from_answers=contribute if kind == "regroup" else b"",
            as_read=kind == "regroup" and read_from(table.node) is not None,
            in_order=topic is None and (kind == "aggregate" or let_through(table.node)),
            number=number,
        )
        return counted(stage(rows, spec), label if kind == "aggregate" else f"{label}-{kind}", kind)

    def regrouped(number: int | None = None, every: bool = emission.every) -> DataFrame:
        return through_stage(rows, "regroup", None, number, every).where("counter is null")

    grouped = regrouped()
    stages, dead = table.stages, (*table.dead, *dead_of(tried, table))
    if topic is not None:
        records = to_records(grouped, topic, options.upgrade_from)
        stages += (StageQuery(f"{label}-regroup", records, topic, (topic.connection,)),)
        grouped, unreadable = read_back(spark, topic, fold.value, buckets)
        dead += (unreadable.withColumn(RAW, F.col(RAW).withField("table", F.lit(label))),)
    unpack = UnpackResults(group, (fold.schema,), node.versions)

    def built(materialized: str | None) -> Table:
        results = paced(through_stage(grouped, "aggregate", materialized or label), label, emission, about, checked)
        made = replace(node, materialized=materialized)
        return type(table)(
            made,
            frame_of(results, unpack),
            keys,
            table.timestamps,
            table.on_error,
            dead,
            connection=table.connection,
            packed=(results, unpack),
            stages=stages,
            materialized_as=built,
            contributions=Contributions(regrouped, fold),
        )

    return built(None)


class _Contributed(NamedTuple):
    """What comes to regroup."""

    node: Aggregate
    """After all rules."""
    envelopes: DataFrame
    contribute: bytes
    """A ``Contribute`` or ``ContributeRows``, pickled, where a join's answers come; else empty."""


def _contributed(
    node: Aggregate, off: Off, table: Table, key: Projection, value: Projection, tried: Attempt, pack: PackRows
) -> _Contributed:
    """The contributions of the table's rows, packed; ``tried``: the columns of key and value."""
    assert pack.group is not None
    early, given = table.early, (*key.given, *value.given)
    taken = _contribute(table, key, value, pack.group, pack.row)
    node = aggregate_reads_answers(node, off, taken if isinstance(taken, str) else None)
    groups, values = tried.columns[: len(key.given)], tried.columns[len(key.given) :]
    row, group = replace(value, columns=values).struct, replace(key, columns=groups).struct
    columns, frame = {"row": F.when(~F.col(DELETED), row), "group": group}, None
    if fired(node, AGGREGATE_READS_ANSWERS) and table.answers is not None and not isinstance(taken, str):
        node, answers = narrowed(node, off, table.answers, taken.places)
        return _Contributed(node, answers.counted, pickled(replace(taken, fields=answers.of)))
    if fired(node, AGGREGATE_READS_ANSWERS):
        assert early is not None
        node, answers = narrowed(node, off, early.answers, early.places(table.reads(given)))
        if isinstance(early.made, RowMaker) and (found := contributing(table, key, value)) is not None:
            made = ContributeRows(AnswerRows(answers.of, early.made, table.on_error == "fail"), *found)
            return _Contributed(node, answers.counted, pickled(made))
        frame, columns["gone"] = early.frame(answers), F.col(LEFT_GONE)
    elif table.narrow is not None:
        node, frame = narrowed_rows(node, off, table.narrow, table.reads(given))
    else:
        node, by_workers = packed_contributions(node, off, table, key, value, pack)
        if by_workers is not None:
            return _Contributed(node, by_workers, b"")
    rows = tried.on(table.visible(frame)).select(*packing_columns(problem=tried.problems, **columns))
    return _Contributed(node, rows.mapInArrow(pack, ENVELOPE), b"")


def _tried(table: Table, key: Projection, value: Projection) -> Attempt:
    """The columns of groups' keys, and those of values."""
    given, columns = (*key.given, *value.given), (*key.columns, *value.columns)
    return attempt("group_by", table.name, given, columns, table.visible(), table.on_error)


def _contribute(table: Table, key: Projection, value: Projection, group: pa.Schema, values: pa.Schema) -> Contribute | str:
    """How to take contributions from a join's answers; or why they cannot be taken from there."""
    answers = table.answers
    if answers is None:
        return "its rows are more than fields of both rows"
    given = (*key.given, *value.given)
    places = answers.places(given, arrow_schema("row", table.row_type))
    if None in places:
        return f"{text(given[places.index(None)])} is more than a field"
    found = tuple(place for place in places if place is not None)
    parts = found[: len(key.given)], found[len(key.given) :]
    return Contribute(answers.of, *parts, group, values)
