"""``Table.with_children``: checked, and planned as rekey and children."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.types import DataType, MapType, StructType

from fkjoin.analysis.checks import Extractor, as_emitted, described, require_same_timestamps
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.joiner import ForeignKey, bound_foreign_key
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of
from fkjoin.errors import TopologyError
from fkjoin.lowering.answers import Kept
from fkjoin.lowering.foreign_keys import JoinSides
from fkjoin.lowering.stage import let_through, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, table_of
from fkjoin.plan.nodes import Children, generated_name
from fkjoin.plan.physical import Counted, Stage, union
from fkjoin.spark.names import require_apart
from fkjoin.spark.schemas import arrow_schema, column_texts
from fkjoin.spark.specs import ChildrenSpec, RekeySpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.children import Family


@dataclass(frozen=True, eq=False)
class ChildrenBound(OperatorBound):
    """Needs of lowering ``with_children``, besides its node."""

    operator = "children"
    foreign_key: ForeignKey
    result: StructType


def planned_children(
    right: Planned,
    left: Planned,
    *,
    extractor: Extractor,
    column: str,
    name: str | None,
    emit: Emit,
    settings: Settings,
) -> Planned:
    """See ``Table.with_children``.  Raises ``TopologyError``."""
    emission = Emission.of(emit)
    require_same_timestamps(left, right)
    if column.lower() in (name.lower() for name in (*right.row_type.names, *right.key)):
        raise TopologyError(f"column: {right.name} has a column {column!r} already; choose another")
    require_apart("column", [column], "choose another")
    foreign_key = bound_foreign_key(left, right, extractor)
    by = described(extractor, "key", "row")
    label = (
        name or f"{right.name}-with-{left.name}-{generated_name(left.name, right.name, by, column)}"
    )
    child: DataType = left.key_type[0].dataType if len(left.key_type) == 1 else left.key_type
    result = StructType([*right.row_type]).add(column, MapType(child, left.row_type))
    node = Children(label, left.node, right.node, by, column, emit)
    kinds = as_emitted("right", right.key_type), as_emitted("column", result)
    needs = ChildrenBound(emission, settings, foreign_key, result)
    return made_of((right, left), node, *kinds, needs)


def plan_children(planned: Planned, right: TablePlan, left: TablePlan) -> TablePlan:
    """The right table with the map of its left rows."""
    bound: ChildrenBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, planned.name
    assert isinstance(planned.node, Children)
    node = replace(planned.node, left=left.node, right=right.node)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    columns = Kept(arrow_schema("left", left.row_type), arrow_schema("right", right.row_type))
    result = arrow_schema("column", bound.result)
    family = Family(key, columns.left, columns.right, result)
    facts = {
        "materialized": node.kept_as,
        "extractor": node.extractor,
        "column": node.column,
        "key": column_texts(key),
        "foreign_key": column_texts(foreign_key),
        "left": column_texts(columns.left),
        "right": column_texts(columns.right),
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

    def state(kind: type[StageSpec]) -> StateSpec:
        return state_spec(settings, kind, planned.node, bound_to=facts, about=about)

    both = JoinSides(left, right, bound.foreign_key, settings)
    sides = both.packed(node, columns)
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
    counted = Counted(grown, label, ("rekey", "children"))
    results = paced(planned, counted, {**about, "key": right.key_type})
    unpack = UnpackResults(foreign_key, (family.result,), sides.node.versions)
    return table_of(planned, sides.node, results, unpack, left, right, dead=both.dead(label))
