"""``Table.with_children``: rekey and children."""

from __future__ import annotations

from dataclasses import replace

from fkjoin.analysis.joins import ChildrenBound
from fkjoin.analysis.planned import Planned
from fkjoin.lowering.foreign_keys import JoinSides, Schemas
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import let_through, rows_of, state_spec
from fkjoin.lowering.table_plan import Packed, TablePlan, stages_of
from fkjoin.plan.nodes import Children
from fkjoin.plan.physical import Counted, Stage, union
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import ChildrenSpec, RekeySpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.children import Family


def plan_children(planned: Planned, right: TablePlan, left: TablePlan) -> TablePlan:
    """The right table with the map of its left rows."""
    bound: ChildrenBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, planned.name
    assert isinstance(planned.node, Children)
    node = replace(planned.node, left=left.node, right=right.node)
    schemas = Schemas(
        arrow_schema("left", left.key_type),
        arrow_schema("right", right.key_type),
        arrow_schema("left", left.row_type),
        arrow_schema("right", right.row_type),
    )
    result = arrow_schema("column", bound.result)
    family = Family(schemas.key, schemas.left, schemas.right, result)
    facts = {
        "materialized": node.materialized or label,
        "extractor": node.extractor,
        "column": node.column,
        "key": schema_text(schemas.key),
        "foreign_key": schema_text(schemas.foreign_key),
        "left": schema_text(schemas.left),
        "right": schema_text(schemas.right),
    }
    about = {
        "key": left.key_type,
        "foreign_key": right.key_type,
        "left": left.row_type,
        "right": right.row_type,
        "result": bound.result,
        "versions": [["version", 1]],
        "fused": True,
    }
    tables = {
        "key": left.name,
        "left": left.name,
        "foreign_key": right.name,
        "right": right.name,
    }

    def state(kind: type[StageSpec]) -> StateSpec:
        return state_spec(settings, kind, label, bound_to=facts, about=about, tables=tables)

    both = JoinSides(left, right, bound.foreign_key, settings)
    sides = both.packed(node, schemas)
    rekey = RekeySpec(
        state(RekeySpec),
        in_order=let_through(node.left),
        every=emission.every,
        from_answers=sides.from_answers,
    )
    children = ChildrenSpec(
        state(ChildrenSpec),
        family=family,
        rights_in_order=let_through(node.right),
        every=emission.every,
    )
    grown = Stage(union(Stage(sides.left, rekey), sides.right), children)
    results = paced(
        Counted(grown, label, ("rekey", "children")),
        label,
        emission,
        {**about, "key": right.key_type},
        settings,
    )
    unpack = UnpackResults(schemas.foreign_key, (family.result,), sides.node.versions)
    return TablePlan(
        planned,
        sides.node,
        rows_of(results, unpack),
        both.dead(label),
        stages_of(left, right),
        Packed(results, unpack),
    )
