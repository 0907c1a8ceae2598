"""``cogroup``: several aggregates by the same key as one table, with one store (KIP-150)."""

from __future__ import annotations

import functools
from dataclasses import replace

from pyspark.sql import DataFrame

from fkjoin.errors import TopologyError
from fkjoin.folds.cogrouped import CoFold
from fkjoin.lowering.emission import Emission, Emit, paced
from fkjoin.lowering.foreign_keys import require_same_timestamps, require_table
from fkjoin.lowering.recipes import remembered
from fkjoin.lowering.stage import Contributions, counted, refuse_same_name, stage, state_spec
from fkjoin.lowering.unions import put_together
from fkjoin.plan.nodes import Aggregate, Cogroup, generated_name, periodic
from fkjoin.sessions.settings import validated
from fkjoin.spark.names import twice
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema, types_text
from fkjoin.spark.specs import AggregateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.table import Table

_MOST = 256
"""The number of a table is one byte of each contribution."""


@remembered
def cogroup(*tables: Table, name: str | None = None, emit: Emit = "on-change", validate: bool | None = None) -> Table:
    """The table of several aggregates by the same key, side by side: the columns of one after those of the other.

    ``tables``: aggregates, as ``group_by`` makes them, with the same columns as keys; their rows are summed up in one store,
    and a batch's changes of a group are one change.  A group is there as long as one of the tables has rows in it; columns of
    those that have none are null, counts too.

    ``name``, ``emit``, ``validate``: as for ``Table.group_by``.  Raises ``TopologyError`` that says which table is wrong.
    """
    emission = Emission.of(emit)
    nodes, found = _checked(tables)
    first = tables[0]
    spark = first.frame.sparkSession
    label = name or f"{nodes[0].name}-and-{generated_name(*(node.name for node in nodes))}"
    refuse_same_name(label, nodes, "cogroup")
    node = Cogroup(label, nodes, emit)
    fold = CoFold(tuple(one.fold for one in found))
    key, result = arrow_schema("key", first.key_type), spark_schema(fold.schema)
    bound_to = {"of": [one.name for one in nodes], "key": schema_text(key), "columns": schema_text(fold.schema)}
    about = {"key": first.key_type, "result": result, "versions": [["version", 1]]}
    checked = validated(spark) if validate is None else validate
    grouped = functools.reduce(DataFrame.unionAll, (one.regrouped(at, emission.every) for at, one in enumerate(found)))
    unpack = UnpackResults(key, (fold.schema,), node.versions)

    def built(materialized: str | None) -> Table:
        facts = {"materialized": materialized or label, **bound_to}
        state = state_spec(spark, AggregateSpec, label, facts, about, validate=checked)
        spec = AggregateSpec(state, fold=fold, in_order=True, every=emission.every)
        results = paced(counted(stage(grouped, spec), label, "aggregate"), label, emission, about, checked)
        return put_together(tables, replace(node, materialized=materialized), results, unpack, built)

    return built(None)


def _checked(tables: tuple[Table, ...]) -> tuple[tuple[Aggregate, ...], list[Contributions]]:
    """The aggregates' nodes and contributions."""
    if not 2 <= len(tables) <= _MOST:
        raise TopologyError(f"cogroup: 2 to {_MOST} tables are needed, these are {len(tables)}")
    nodes: list[Aggregate] = []
    found: list[Contributions] = []
    columns = list(tables[0].key) if isinstance(tables[0], Table) else []
    for at, table in enumerate(tables):
        argument = f"tables[{at}]"
        require_table(argument, table)
        node = table.node
        if not isinstance(node, Aggregate) or table.contributions is None:
            raise TopologyError(f"{argument}: {table.name} is no aggregate; give it as table.group_by(…).agg(…)")
        if (obstacle := _obstacle(node)) is not None:
            raise TopologyError(f"{argument}: {table.name} {obstacle}")
        if any(other.name == node.name for other in nodes):
            raise TopologyError(f"{argument}: {table.name} is there twice, or another has its name; give group_by(…, name=…)")
        if schema_text(arrow_schema("key", table.key_type)) != schema_text(arrow_schema("key", tables[0].key_type)):
            keys = [types_text(one.key_type) for one in tables]
            raise TopologyError(
                f"{argument}: {table.name} is grouped by {keys[at]}, and {tables[0].name} by {keys[0]}; make both the same, "
                'for instance group_by("cast(buyer as bigint) as customer_id")'
            )
        if (pair := twice([*columns, *table.row_type.names])) is not None:
            raise TopologyError(f"{argument}: another table has the column {pair[1]!r} too; give one of them another name")
        require_same_timestamps(tables[0], table)
        columns += table.row_type.names
        nodes.append(node)
        found.append(table.contributions)
    return tuple(nodes), found


def _obstacle(node: Aggregate) -> str | None:
    """Why a cogroup cannot sum up in the aggregate's place."""
    if node.topic is not None:
        return "is staged, and a cogroup is one query; leave its deployment fused"
    if node.materialized is not None:
        return "is materialized, and has no store of its own in a cogroup; materialize the cogroup"
    if periodic(node):
        return "is held back, and a cogroup sends for it; give the cogroup that emit"
    return None
