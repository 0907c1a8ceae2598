"""A topic's table whose events may lack values: its rows are kept, and give events the values that they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from fkjoin.lowering.stage import counted, frame_of, stage, state_spec
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.nodes import Derived, Source, starts_over
from fkjoin.sessions.settings import bucket_count, validated
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import ResolveSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.complete import UNAVAILABLE, Complete

if TYPE_CHECKING:
    from fkjoin.table import Table


def completed(table: Table) -> Table:
    """The table with whole rows; itself if none of its rows can lack values."""
    if UNAVAILABLE not in table.row_type.names:
        return table
    assert isinstance(table.node, Source)
    whole = StructType([field for field in table.row_type if field.name != UNAVAILABLE])
    label, spark = f"{table.name}-whole", table.frame.sparkSession
    steps = (("complete", "values that an event lacks are those of the row before"),)
    source = replace(table.node, columns=tuple(name for name in table.node.columns if name != UNAVAILABLE))
    node = Derived(label, source, steps)
    buckets, checked = bucket_count(spark), validated(spark)
    key, came, schema = arrow_schema("key", table.key_type), arrow_schema("row", table.row_type), arrow_schema("row", whole)
    packed = packed_rows(table, PackRows(key, came, buckets, validate=checked, start_over=starts_over(source)))
    unpack = UnpackResults(key, (schema,), node.versions)
    bound_to = {"steps": [list(step) for step in steps], "key": schema_text(key), "row": schema_text(schema)}
    about = {"key": table.key_type, "result": whole, "versions": [list(version) for version in node.versions]}

    def built(materialized: str) -> Table:
        facts = {"materialized": materialized, **bound_to}
        state = state_spec(spark, ResolveSpec, label, facts, about, validate=checked)
        spec = ResolveSpec(state, materialized=True, as_read=True, complete=Complete(came))
        results = counted(stage(packed, spec), label, "resolve")
        named, frame = replace(node, materialized=materialized), frame_of(results, unpack)
        made = replace(table, node=named, frame=frame, packed=(results, unpack), unread=None)
        return replace(made, materialized_as=built)

    return built(label)
