"""``flat_map`` and ``rekey``: spread by row, then owners by output key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from fkjoin.analysis.flat_maps import OUTPUT_PLACE, FlatMapBound
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.lowering.pace import paced
from fkjoin.lowering.stage import counted, let_through, packed, rows_of, state_spec
from fkjoin.lowering.table_plan import Packed, TablePlan
from fkjoin.plan.nodes import FlatMap, read_from, starts_over
from fkjoin.plan.physical import Counted, InWorkers, MessagesOnly, Physical, Stage, by_spark
from fkjoin.spark.frame import PROBLEM, RAW, ROW
from fkjoin.spark.packing_outputs import Gather, OutputLetters, PackOutputs
from fkjoin.spark.schemas import arrow_schema, schema_text
from fkjoin.spark.specs import OwnersSpec, SpreadSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults


def plan_flat_map(planned: Planned, table: TablePlan) -> TablePlan:
    """The table of the rows that the table's rows make."""
    bound: FlatMapBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, planned.name
    assert isinstance(planned.node, FlatMap)
    node = replace(planned.node, table=table.node)
    key, row = arrow_schema("key", planned.key_type), arrow_schema("key", planned.row_type)
    row_key = arrow_schema("key", table.key_type)
    facts = {
        "rows": node.rows,
        "keyed_by": list(node.keyed_by),
        "key": schema_text(key),
        "row": schema_text(row),
        "row_key": schema_text(row_key),
    }
    about = {
        "key": planned.key_type,
        "row_key": table.key_type,
        "result": planned.row_type,
        "versions": [["version", 1]],
    }
    tables = {"row_key": table.name}
    if node.rows is None:
        tables["result"] = table.name

    def state(kind: type[StageSpec], **more: Any) -> StateSpec:
        bound_to = {**facts, **more}
        return state_spec(settings, kind, label, bound_to=bound_to, about=about, tables=tables)

    gather = Gather(key, row, "rekey" if node.rows is None else "flat_map")
    pack = PackOutputs(
        row_key,
        gather,
        settings.buckets,
        settings.validate,
        starts_over(table.node),
        f"{gather.operator} of {table.name}" if table.on_error == "fail" else None,
    )
    outputs = _Outputs(table, bound, gather)
    rows = packed(outputs.of(table.rows), pack, problem=bound.tried.problems, **outputs.columns)
    spread = SpreadSpec(
        state(SpreadSpec),
        as_read=read_from(table.node) is not None,
        in_order=let_through(table.node),
        every=emission.every,
    )
    spread_out = MessagesOnly(Counted(Stage(rows, spread), f"{label}-spread", ("spread",)))
    materialized = node.materialized or label
    owners = OwnersSpec(state(OwnersSpec, materialized=materialized), every=emission.every)
    results = paced(counted(spread_out, owners), label, emission, about, settings)
    unpack = UnpackResults(key, (row,), node.versions)
    return TablePlan(
        planned,
        node,
        rows_of(results, unpack),
        (*table.dead, *table.dead_of(bound.made, label), *outputs.dead(label)),
        table.stages,
        Packed(results, unpack),
    )


@dataclass(frozen=True)
class _Outputs:
    """The outputs of a table's rows."""

    table: TablePlan
    bound: FlatMapBound
    gather: Gather

    @property
    def columns(self) -> dict[str, Column]:
        output = self.bound.key.struct_of(self.bound.tried.columns)
        return {"place": F.col(OUTPUT_PLACE), "output": output}

    def of(self, rows: Physical) -> Physical:
        """The outputs of rows of the table, with the columns that their keys are made of."""
        return by_spark(self._with_keys, self.table.visible_in(rows))

    def _with_keys(self, visible: DataFrame) -> DataFrame:
        row = self.bound.row
        known = {name.lower() for name in row.names}
        rest = [name for name in self.table.key if name.lower() not in known]
        return self.bound.tried.on(with_visible(self.bound.exploded(visible), rest, row))

    def dead(self, label: str) -> tuple[Physical, ...]:
        """The rows that dead letters come from, of whose outputs a key throws, or two have one key."""
        reason = self.bound.tried.reason
        throws = self.gather.operator != "rekey" or reason is not None
        if self.table.on_error != "dead-letter" or not throws:
            return ()
        outputs = self.of(self.table.every_row(f"{label}-output-letters"))
        kind = StructType().add("raw", self.table.columns_of(outputs)[RAW].dataType)
        kind = kind.add("problem", StringType())
        columns = {
            "raw": F.col(RAW),
            "row": F.col(ROW),
            "problem": F.lit(None).cast("string") if reason is None else reason,
            **self.columns,
        }
        chosen = [column.alias(name) for name, column in columns.items()]
        rows = by_spark(lambda frame: frame.select(*chosen), outputs)
        function = OutputLetters(arrow_schema("raw", kind), self.gather)
        return (by_spark(_as_letters, InWorkers(rows, function, kind)),)


def _as_letters(letters: DataFrame) -> DataFrame:
    return letters.select(F.col("raw").alias(RAW), F.col("problem").alias(PROBLEM))
