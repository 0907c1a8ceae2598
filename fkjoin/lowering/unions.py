"""``merge`` and ``cogroup`` on streaming DataFrames: several tables, one store."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.unions import CogroupBound, MergeBound
from fkjoin.lowering.lowered import Lowered, dead_of_all, stages_of
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import counted, frame_of, made_by_operators, packing_columns, stage, state_spec
from fkjoin.plan.nodes import Aggregate, Cogroup, Merge, origins, starts_over
from fkjoin.spark.frame import ROW
from fkjoin.spark.names import quoted
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import AggregateSpec, MergeSpec
from fkjoin.spark.unpacking import UnpackResults


def lower_merge(planned: Planned, *tables: Lowered) -> Lowered:
    """Tables with the same columns, one laid over the other."""
    bound: MergeBound = planned.bound
    settings, label, first = bound.settings, planned.name, tables[0]
    assert isinstance(planned.node, Merge)
    node = replace(planned.node, tables=tuple(table.node for table in tables))
    key, row = arrow_schema("key", first.key_type), arrow_schema("row", first.row_type)
    facts = {
        "materialized": node.materialized or label,
        "of": [one.name for one in node.tables],
        "key": schema_text(key),
        "row": schema_text(row),
    }
    about = {"key": first.key_type, "result": first.row_type, "versions": [["version", 1]]}
    columns = F.struct(*(F.col(quoted(ROW, name)) for name in first.row_type.names))
    packed = [
        table.frame.select(*packing_columns(row=F.when(F.col(ROW).isNotNull(), columns))).mapInArrow(
            PackRows(key, row, settings.buckets, validate=settings.validate, number=at, start_over=starts_over(table.node)),
            ENVELOPE,
        )
        for at, table in enumerate(tables)
    ]
    rows = functools.reduce(DataFrame.unionAll, packed)
    names = dict.fromkeys(("key", "result"), " and ".join(one.name for one in node.tables))
    state = state_spec(settings, MergeSpec, label, bound_to=facts, about=about, tables=names)
    roots = origins(node)
    spec = MergeSpec(state, in_order=made_by_operators(*node.tables), every=bound.emission.every, origins=roots)
    results = paced(counted(stage(rows, spec), label, "merge"), label, bound.emission, about, settings)
    return _together(planned, node, tables, results, UnpackResults(key, (row,), node.versions, bool(roots)))


def lower_cogroup(planned: Planned, *tables: Lowered) -> Lowered:
    """Aggregates by the same key, side by side."""
    bound: CogroupBound = planned.bound
    settings, emission, fold, label, first = bound.settings, bound.emission, bound.fold, planned.name, tables[0]
    assert isinstance(planned.node, Cogroup)
    nodes = tuple(table.node for table in tables if isinstance(table.node, Aggregate))
    node = replace(planned.node, tables=nodes)
    key = arrow_schema("key", first.key_type)
    facts = {
        "materialized": node.materialized or label,
        "of": [one.name for one in nodes],
        "key": schema_text(key),
        "columns": schema_text(fold.schema),
    }
    about = {"key": first.key_type, "result": spark_schema(fold.schema), "versions": [["version", 1]]}
    about |= {"collected": fold.collected} if fold.collected else {}
    grouped = functools.reduce(
        DataFrame.unionAll, (_contributions(table, at, emission.every) for at, table in enumerate(tables))
    )
    state = state_spec(settings, AggregateSpec, label, bound_to=facts, about=about, tables={})
    spec = AggregateSpec(state, fold=fold, in_order=True, every=emission.every)
    results = paced(counted(stage(grouped, spec), label, "aggregate"), label, emission, about, settings)
    return _together(planned, node, tables, results, UnpackResults(key, (fold.schema,), node.versions))


def _contributions(table: Lowered, number: int, every: bool) -> DataFrame:
    assert table.contributions is not None
    return table.contributions(number, every)


def _together(
    planned: Planned, node: Cogroup | Merge, tables: Sequence[Lowered], results: DataFrame, unpack: UnpackResults
) -> Lowered:
    """The table of ``results``, the envelopes of its last stage."""
    frame = frame_of(results, unpack)
    return Lowered(planned, node, frame, dead_of_all(*tables), stages_of(*tables), encoded=(results, unpack))
