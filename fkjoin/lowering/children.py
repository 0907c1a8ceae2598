"""``Table.with_children``: rekey and children on a streaming DataFrame."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.types import DataType, MapType, StructType

from fkjoin.errors import TopologyError
from fkjoin.lowering.emission import Emission, Emit, paced
from fkjoin.lowering.foreign_keys import (
    dead_frames,
    described,
    packed_sides,
    require_same_timestamps,
    require_table,
    with_foreign_key,
)
from fkjoin.lowering.stage import counted, frame_of, let_through, refuse_same_name, stage, state_spec
from fkjoin.plan.nodes import Children, generated_name
from fkjoin.sessions.settings import bucket_count, switched_off, validated
from fkjoin.spark.names import require_apart
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import ChildrenSpec, RekeySpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.children import Family
from fkjoin.table import Extractor, Table


def with_children(
    right: Table, left: Table, extractor: Extractor, column: str, name: str | None, emit: Emit, validate: bool | None
) -> Table:
    """See ``Table.with_children``."""
    require_table("left", left)
    emission = Emission.of(emit)
    require_same_timestamps(left, right)
    spark = right.frame.sparkSession
    if column.lower() in (name.lower() for name in (*right.row_type.names, *right.key)):
        raise TopologyError(f"column: {right.name} has a column {column!r} already; choose another")
    require_apart("column", [column], "choose another")
    rows = with_foreign_key(left, right, extractor)
    by = described(extractor, "key", "row")
    label = name or f"{right.name}-with-{left.name}-{generated_name(left.name, right.name, by, column)}"
    refuse_same_name(label, (left.node, right.node), "table")
    node = Children(label, left.node, right.node, by, column, emit)
    buckets, checked = bucket_count(spark), validated(spark) if validate is None else validate
    child: DataType = left.key_type[0].dataType if len(left.key_type) == 1 else left.key_type
    result = StructType([*right.row_type]).add(column, MapType(child, left.row_type))
    left_row, right_row = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    family = Family(key, left_row, right_row, arrow_schema("column", result))
    bound_to = {
        "extractor": by,
        "column": column,
        "key": schema_text(key),
        "foreign_key": schema_text(foreign_key),
        "left": schema_text(left_row),
        "right": schema_text(right_row),
    }
    kinds = {"key": left.key_type, "foreign_key": right.key_type, "left": left.row_type, "right": right.row_type}
    about = {**kinds, "result": result, "versions": [["version", 1]], "fused": True}

    def state(kind: type[StageSpec], materialized: str) -> StateSpec:
        return state_spec(spark, kind, label, {"materialized": materialized, **bound_to}, about, validate=checked)

    schemas = key, foreign_key, left_row, right_row
    off = switched_off(spark)
    sides = packed_sides(node, off, left, right, rows, extractor, schemas, buckets, validate=checked)
    node = sides.node
    unpack = UnpackResults(foreign_key, (family.result,), node.versions)
    dead = dead_frames(left, right, rows, extractor)

    def built(materialized: str | None) -> Table:
        kept_as = materialized or label
        rekeyed = stage(
            sides.left,
            RekeySpec(
                state(RekeySpec, kept_as),
                in_order=let_through(node.left),
                every=emission.every,
                from_answers=sides.from_answers,
            ),
        )
        spec = ChildrenSpec(
            state(ChildrenSpec, kept_as), family=family, rights_in_order=let_through(node.right), every=emission.every
        )
        results = counted(stage(rekeyed.unionAll(sides.right), spec), label, "rekey", "children")
        results = paced(results, label, emission, {**about, "key": right.key_type}, checked)
        return Table(
            replace(node, materialized=materialized),
            frame_of(results, unpack),
            right.key,
            left.timestamps or right.timestamps,
            right.on_error,
            dead,
            connection=right.connection or left.connection,
            packed=(results, unpack),
            stages=(*left.stages, *right.stages),
            materialized_as=built,
        )

    return built(None)
