"""``flat_map`` and ``rekey`` on streaming DataFrames: spread by row, then owners by output key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from fkjoin.analysis.flat_maps import OUTPUT_PLACE, FlatMapBound
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import counted, frame_of, let_through, packing_columns, stage, state_spec
from fkjoin.plan.nodes import FlatMap, read_from, starts_over
from fkjoin.spark.frame import PROBLEM, RAW, ROW
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing_outputs import Gather, OutputLetters, PackOutputs
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import OwnersSpec, SpreadSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults


def lower_flat_map(planned: Planned, table: Lowered) -> Lowered:
    """The table of the rows that the table's rows make."""
    bound: FlatMapBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, planned.name
    assert isinstance(planned.node, FlatMap)
    node = replace(planned.node, table=table.node)
    key, row, row_key = (arrow_schema("key", kind) for kind in (planned.key_type, planned.row_type, table.key_type))
    bound_to = {
        "rows": node.rows,
        "keyed_by": list(node.keyed_by),
        "key": schema_text(key),
        "row": schema_text(row),
        "row_key": schema_text(row_key),
    }
    about = {"key": planned.key_type, "row_key": table.key_type, "result": planned.row_type, "versions": [["version", 1]]}

    tables = {"row_key": table.name}
    if node.rows is None:
        tables["result"] = table.name

    def state(kind: type[StageSpec], **more: Any) -> StateSpec:
        return state_spec(settings, kind, label, bound_to={**bound_to, **more}, about=about, tables=tables)

    gather = Gather(key, row, "rekey" if node.rows is None else "flat_map")
    pack = PackOutputs(
        row_key,
        gather,
        settings.buckets,
        settings.validate,
        starts_over(table.node),
        f"{gather.operator} of {table.name}" if table.on_error == "fail" else None,
    )
    columns = packing_columns(problem=bound.tried.problems, **_output(bound))
    packed = _outputs(table, table.frame, bound).select(*columns).mapInArrow(pack, ENVELOPE)
    spread = SpreadSpec(
        state(SpreadSpec),
        as_read=read_from(table.node) is not None,
        in_order=let_through(table.node),
        every=emission.every,
    )
    spread_out = counted(stage(packed, spread), f"{label}-spread", "spread").where("counter is null")
    owners = OwnersSpec(state(OwnersSpec, materialized=node.materialized or label), every=emission.every)
    results = paced(counted(stage(spread_out, owners), label, "owners"), label, emission, about, settings)
    unpack = UnpackResults(key, (row,), node.versions)
    dead = (*table.dead, *table.dead_of(bound.made, label), *_dead(table, bound, gather, label))
    return Lowered(planned, node, frame_of(results, unpack), dead, table.stages, encoded=(results, unpack))


def _outputs(table: Lowered, frame: DataFrame, bound: FlatMapBound) -> DataFrame:
    """The outputs of the rows of a frame of the table, with the columns that their keys are made of."""
    made = bound.exploded(table.visible_in(frame))
    rest = [name for name in table.key if name.lower() not in (column.lower() for column in bound.row.names)]
    return bound.tried.on(with_visible(made, rest, bound.row))


def _output(bound: FlatMapBound) -> Mapping[str, Any]:
    return {"place": F.col(OUTPUT_PLACE), "output": bound.key.struct_of(bound.tried.columns)}


def _dead(table: Lowered, bound: FlatMapBound, gather: Gather, label: str) -> tuple[DataFrame, ...]:
    """The frame that dead letters come from, of rows of whose outputs a key throws, or two have one key."""
    if table.on_error != "dead-letter" or (gather.operator == "rekey" and bound.tried.reason is None):
        return ()
    reason = F.lit(None).cast("string") if bound.tried.reason is None else bound.tried.reason
    made = _outputs(table, table.every_row(f"{label}-output-letters"), bound)
    kind = StructType().add("raw", made.schema[RAW].dataType).add("problem", StringType())
    columns = {"raw": F.col(RAW), "row": F.col(ROW), "problem": reason, **_output(bound)}
    rows = made.select(*(column.alias(name) for name, column in columns.items()))
    letters = rows.mapInArrow(OutputLetters(arrow_schema("raw", kind), gather), kind)
    return (letters.select(F.col("raw").alias(RAW), F.col("problem").alias(PROBLEM)),)
