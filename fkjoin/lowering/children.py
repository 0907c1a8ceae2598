"""``Table.with_children``: rekey and children on a streaming DataFrame."""

from __future__ import annotations

from dataclasses import replace

from fkjoin.analysis.joins import ChildrenBound
from fkjoin.analysis.planned import Planned
from fkjoin.lowering.foreign_keys import dead_frames, packed_sides
from fkjoin.lowering.lowered import Lowered, stages_of
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import counted, frame_of, let_through, stage, state_spec
from fkjoin.plan.nodes import Children
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import ChildrenSpec, RekeySpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.children import Family


def lower_children(planned: Planned, right: Lowered, left: Lowered) -> Lowered:
    """The right table with the map of its left rows."""
    bound: ChildrenBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, planned.name
    assert isinstance(planned.node, Children)
    node = replace(planned.node, left=left.node, right=right.node)
    left_row, right_row = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    family = Family(key, left_row, right_row, arrow_schema("column", bound.result))
    facts = {
        "materialized": node.materialized or label,
        "extractor": node.extractor,
        "column": node.column,
        "key": schema_text(key),
        "foreign_key": schema_text(foreign_key),
        "left": schema_text(left_row),
        "right": schema_text(right_row),
    }
    kinds = {"key": left.key_type, "foreign_key": right.key_type, "left": left.row_type, "right": right.row_type}
    about = {**kinds, "result": bound.result, "versions": [["version", 1]], "fused": True}
    tables = {"key": left.name, "left": left.name, "foreign_key": right.name, "right": right.name}
    sides = packed_sides(
        node, settings, left, right=right, foreign_key=bound.foreign_key, schemas=(key, foreign_key, left_row, right_row)
    )

    rekey = RekeySpec(
        state_spec(settings, RekeySpec, label, bound_to=facts, about=about, tables=tables),
        in_order=let_through(node.left),
        every=emission.every,
        from_answers=sides.from_answers,
    )
    children = ChildrenSpec(
        state_spec(settings, ChildrenSpec, label, bound_to=facts, about=about, tables=tables),
        family=family,
        rights_in_order=let_through(node.right),
        every=emission.every,
    )
    rekeyed = stage(sides.left, rekey)
    results = counted(stage(rekeyed.unionAll(sides.right), children), label, "rekey", "children")
    results = paced(results, label, emission, {**about, "key": right.key_type}, settings)
    unpack = UnpackResults(foreign_key, (family.result,), sides.node.versions)
    dead = dead_frames(left, right, bound.foreign_key, label)
    return Lowered(planned, sides.node, frame_of(results, unpack), dead, stages_of(left, right), encoded=(results, unpack))
