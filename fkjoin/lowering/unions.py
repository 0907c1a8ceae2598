"""``merge`` and ``cogroup``: several tables, one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import functions as F

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.unions import CogroupBound, MergeBound
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import counted, made_by_operators, packed, rows_of, state_spec
from fkjoin.lowering.table_plan import Packed, TablePlan, dead_of_all, stages_of
from fkjoin.plan.nodes import Aggregate, Cogroup, Merge, origins, starts_over
from fkjoin.plan.physical import Physical, Union
from fkjoin.spark.frame import ROW
from fkjoin.spark.names import quoted
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import AggregateSpec, MergeSpec
from fkjoin.spark.unpacking import UnpackResults


def plan_merge(planned: Planned, *tables: TablePlan) -> TablePlan:
    """Tables with the same columns, one laid over the other."""
    bound: MergeBound = planned.bound
    settings, label, first = bound.settings, planned.name, tables[0]
    assert isinstance(planned.node, Merge)
    node = replace(planned.node, tables=tuple(table.node for table in tables))
    names = [table.name for table in node.tables]
    key, row = arrow_schema("key", first.key_type), arrow_schema("row", first.row_type)
    facts = {
        "materialized": node.materialized or label,
        "of": names,
        "key": schema_text(key),
        "row": schema_text(row),
    }
    about = {"key": first.key_type, "result": first.row_type, "versions": [["version", 1]]}
    columns = F.struct(*(F.col(quoted(ROW, name)) for name in first.row_type.names))
    rows = F.when(F.col(ROW).isNotNull(), columns)
    sides = []
    for number, table in enumerate(tables):
        pack = PackRows(
            key,
            row,
            settings.buckets,
            validate=settings.validate,
            number=number,
            start_over=starts_over(table.node),
        )
        sides.append(packed(table.rows, pack, row=rows))
    of_tables = dict.fromkeys(("key", "result"), " and ".join(names))
    spec = MergeSpec(
        state_spec(settings, MergeSpec, label, bound_to=facts, about=about, tables=of_tables),
        in_order=made_by_operators(*node.tables),
        every=bound.emission.every,
        origins=origins(node),
    )
    merged = counted(Union(tuple(sides)), spec)
    results = paced(merged, label, bound.emission, about, settings)
    unpack = UnpackResults(key, (row,), node.versions, bool(spec.origins))
    return _together(planned, node, tables, Packed(results, unpack))


def plan_cogroup(planned: Planned, *tables: TablePlan) -> TablePlan:
    """Aggregates by the same key, side by side."""
    bound: CogroupBound = planned.bound
    settings, emission, fold = bound.settings, bound.emission, bound.fold
    label, first = planned.name, tables[0]
    assert isinstance(planned.node, Cogroup)
    nodes = tuple(table.node for table in tables if isinstance(table.node, Aggregate))
    node = replace(planned.node, tables=nodes)
    key = arrow_schema("key", first.key_type)
    facts = {
        "materialized": node.materialized or label,
        "of": [table.name for table in nodes],
        "key": schema_text(key),
        "columns": schema_text(fold.schema),
    }
    about = {
        "key": first.key_type,
        "result": spark_schema(fold.schema),
        "versions": [["version", 1]],
    }
    if fold.collected:
        about["collected"] = fold.collected
    contributed = Union(tuple(_contributions(tables, every=emission.every)))
    spec = AggregateSpec(
        state_spec(settings, AggregateSpec, label, bound_to=facts, about=about, tables={}),
        fold=fold,
        in_order=True,
        every=emission.every,
    )
    results = paced(counted(contributed, spec), label, emission, about, settings)
    unpack = UnpackResults(key, (fold.schema,), node.versions)
    return _together(planned, node, tables, Packed(results, unpack))


def _contributions(tables: Sequence[TablePlan], *, every: bool) -> list[Physical]:
    contributions = []
    for number, table in enumerate(tables):
        assert table.aggregate is not None
        contributions.append(table.aggregate.contributions(number=number, every=every))
    return contributions


def _together(planned: Planned, node: Cogroup | Merge, tables: Sequence[TablePlan], packed: Packed) -> TablePlan:
    """The table of the results of its last stage."""
    rows = rows_of(packed.envelopes, packed.unpack)
    return TablePlan(planned, node, rows, dead_of_all(*tables), stages_of(*tables), packed)
