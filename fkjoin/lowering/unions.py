"""``Table.merge``: several tables with the same columns as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.errors import TopologyError
from fkjoin.lowering.emission import Emission, Emit, paced
from fkjoin.lowering.foreign_keys import require_same_timestamps, require_table
from fkjoin.lowering.stage import (
    counted,
    frame_of,
    made_by_operators,
    once,
    packing_columns,
    refuse_same_name,
    stage,
    state_spec,
)
from fkjoin.plan.nodes import Cogroup, Merge, generated_name, starts_over
from fkjoin.sessions.settings import bucket_count, validated
from fkjoin.spark.frame import ROW
from fkjoin.spark.names import quoted
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, types_text
from fkjoin.spark.specs import MergeSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.table import Table

_MOST = 100


def merged(tables: tuple[Table, ...], name: str | None, emit: Emit, validate: bool | None) -> Table:
    """See ``Table.merge``."""
    emission = Emission.of(emit)
    _check(tables)
    first = tables[0]
    nodes = tuple(table.node for table in tables)
    spark = first.frame.sparkSession
    label = name or f"{first.name}-merged-{generated_name(*(node.name for node in nodes))}"
    refuse_same_name(label, nodes, "merge")
    node = Merge(label, nodes, emit)
    buckets, checked = bucket_count(spark), validated(spark) if validate is None else validate
    key, row = arrow_schema("key", first.key_type), arrow_schema("row", first.row_type)
    bound_to = {"of": [one.name for one in nodes], "key": schema_text(key), "row": schema_text(row)}
    about = {"key": first.key_type, "result": first.row_type, "versions": [["version", 1]]}
    columns = F.struct(*(F.col(quoted(ROW, name)) for name in first.row_type.names))
    packed = [
        table.frame.select(*packing_columns(row=F.when(F.col(ROW).isNotNull(), columns))).mapInArrow(
            PackRows(key, row, buckets, validate=checked, number=at, start_over=starts_over(table.node)), ENVELOPE
        )
        for at, table in enumerate(tables)
    ]
    rows = functools.reduce(DataFrame.unionAll, packed)
    unpack = UnpackResults(key, (row,), node.versions)

    def built(materialized: str | None) -> Table:
        facts = {"materialized": materialized or label, **bound_to}
        state = state_spec(spark, MergeSpec, label, facts, about, validate=checked)
        spec = MergeSpec(state, in_order=made_by_operators(*nodes), every=emission.every)
        results = paced(counted(stage(rows, spec), label, "merge"), label, emission, about, checked)
        return put_together(tables, replace(node, materialized=materialized), results, unpack, built)

    return built(None)


def _check(tables: tuple[Table, ...]) -> None:
    if not 2 <= len(tables) <= _MOST:
        raise TopologyError(f"merge: 1 to {_MOST - 1} other tables are needed, these are {len(tables) - 1}")
    first = tables[0]
    for at, table in enumerate(tables[1:]):
        argument = f"others[{at}]"
        require_table(argument, table)
        if table.name in (other.name for other in tables[: at + 1]):
            raise TopologyError(f"{argument}: {table.name} is merged with itself, or another table has its name")
        for what, wanted, kind in (
            ("key", first.key_type, table.key_type),
            ("row", _by_name(first.row_type), _by_name(table.row_type)),
        ):
            if schema_text(arrow_schema(what, wanted)) != schema_text(arrow_schema(what, kind)):
                raise TopologyError(
                    f"{argument}: the {what} of {table.name} is {types_text(kind)}, and that of {first.name} is "
                    f"{types_text(wanted)}; make both the same, for instance with map_values"
                )
        require_same_timestamps(first, table)


def _by_name(kind: StructType) -> StructType:
    return StructType(sorted(kind, key=lambda field: field.name))


def put_together(
    tables: Sequence[Table], node: Cogroup | Merge, results: DataFrame, unpack: UnpackResults, built: Callable[[str], Table]
) -> Table:
    """The table of ``results``, the envelopes of its last stage; ``built`` makes it with its rows kept under a name."""
    return Table(
        node,
        frame_of(results, unpack),
        tables[0].key,
        next((table.timestamps for table in tables if table.timestamps), None),
        tables[0].on_error,
        once(frame for table in tables for frame in table.dead),
        connection=next((table.connection for table in tables if table.connection), None),
        packed=(results, unpack),
        stages=tuple(query for table in tables for query in table.stages),
        materialized_as=built,
    )
