"""``merge`` and ``cogroup``: several tables that fit together, in one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.checks import as_emitted, require_same_timestamps
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.folds.cogrouped import CoFold
from fkjoin.lowering.aggregates import AggregateBound
from fkjoin.lowering.stage import counted, let_through, packed, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, pack_rows, table_of
from fkjoin.plan.base import periodic
from fkjoin.plan.nodes import Aggregate, Cogroup, Merge, generated_name, origins
from fkjoin.plan.physical import Union
from fkjoin.spark.frame import ROW
from fkjoin.spark.names import quoted, twice
from fkjoin.spark.schemas import arrow_schema, column_texts, spark_schema, types_text
from fkjoin.spark.specs import AggregateSpec, MergeSpec
from fkjoin.spark.unpacking import UnpackResults

_MOST_MERGED = 100

_MOST_COGROUPED = 256
"""The number of a table is one byte of each contribution."""


class MergeBound(OperatorBound):
    """Needs of lowering ``merge``, besides its node."""

    operator = "merge"


@dataclass(frozen=True, eq=False)
class CogroupBound(OperatorBound):
    """Needs of lowering a cogroup, besides its node."""

    operator = "cogroup"
    fold: CoFold


def merged(*tables: Planned, name: str | None, emit: Emit, settings: Settings) -> Planned:
    """See ``Table.merge``.  Raises ``TopologyError``."""
    emission = Emission.of(emit)
    _check_merged(tables)
    first = tables[0]
    nodes = tuple(table.node for table in tables)
    label = name or f"{first.name}-merged-{generated_name(*(node.name for node in nodes))}"
    kinds = as_emitted("key", first.key_type), as_emitted("row", first.row_type)
    needs = MergeBound(emission, settings)
    return made_of(tables, Merge(label, nodes, emit), *kinds, needs, kind="merge")


def require_cogroup(tables: Sequence[Planned]) -> None:
    """Raise ``TopologyError`` if these are too few tables for a cogroup, or too many."""
    if not 2 <= len(tables) <= _MOST_COGROUPED:
        raise TopologyError(
            f"cogroup: 2 to {_MOST_COGROUPED} tables are needed, these are {len(tables)}"
        )


def cogrouped(*tables: Planned, name: str | None, emit: Emit, settings: Settings) -> Planned:
    """See ``cogroup``.  Raises ``TopologyError``."""
    emission = Emission.of(emit)
    nodes = _check_cogrouped(tables)
    if emission.every:
        # The cogroup sends what its aggregates alone would leave out, so that they have to get it.
        nodes = tuple(replace(node, emit=emit) for node in nodes)
        both = zip(tables, nodes, strict=True)
        tables = tuple(replace(table, node=node) for table, node in both)
    label = name or f"{nodes[0].name}-and-{generated_name(*(node.name for node in nodes))}"
    fold = CoFold(tuple(table.bound.fold for table in tables))
    kinds = as_emitted("key", tables[0].key_type), spark_schema(fold.schema)
    needs = CogroupBound(emission, settings, fold)
    return made_of(tables, Cogroup(label, nodes, emit), *kinds, needs, kind="cogroup")


def _check_merged(tables: Sequence[Planned]) -> None:
    if not 2 <= len(tables) <= _MOST_MERGED:
        raise TopologyError(
            f"merge: 1 to {_MOST_MERGED - 1} other tables are needed, these are {len(tables) - 1}"
        )
    first = tables[0]
    for index, table in enumerate(tables[1:]):
        argument = f"others[{index}]"
        if table.name in (other.name for other in tables[: index + 1]):
            raise TopologyError(
                f"{argument}: {table.name} is merged with itself, or another table has its name; "
                "give each table once, with a name= of its own"
            )
        for part, wanted, kind in (
            ("key", first.key_type, table.key_type),
            ("row", _by_name(first.row_type), _by_name(table.row_type)),
        ):
            if column_texts(arrow_schema(part, wanted)) != column_texts(arrow_schema(part, kind)):
                raise ColumnTypeError(
                    f"{argument}: the {part} of {table.name} is {types_text(kind)}, "
                    f"and the {part} of {first.name} is {types_text(wanted)}; "
                    "make both the same, for instance with map_values"
                )
        require_same_timestamps(first, table)


def _by_name(kind: StructType) -> StructType:
    return StructType(sorted(kind, key=lambda field: field.name))


def _check_cogrouped(tables: Sequence[Planned]) -> tuple[Aggregate, ...]:
    """The aggregates' nodes."""
    nodes: list[Aggregate] = []
    columns = list(tables[0].key)
    for index, table in enumerate(tables):
        argument, node = f"tables[{index}]", table.node
        if not isinstance(node, Aggregate) or not isinstance(table.bound, AggregateBound):
            raise TopologyError(
                f"{argument}: {table.name} is not an aggregate; give it as table.group_by(…).agg(…)"
            )
        if (obstacle := _obstacle(node)) is not None:
            raise TopologyError(f"{argument}: {table.name} {obstacle}")
        if any(other.name == node.name for other in nodes):
            raise TopologyError(
                f"{argument}: {table.name} is given twice, or another has its name; "
                "give group_by(…, name=…)"
            )
        if column_texts(arrow_schema("key", table.key_type)) != column_texts(
            arrow_schema("key", tables[0].key_type)
        ):
            key, first_key = types_text(table.key_type), types_text(tables[0].key_type)
            raise ColumnTypeError(
                f"{argument}: {table.name} is grouped by {key}, "
                f"and {tables[0].name} by {first_key}; "
                'make both the same, for instance group_by("cast(buyer as bigint) as customer_id")'
            )
        if (pair := twice([*columns, *table.row_type.names])) is not None:
            raise TopologyError(
                f"{argument}: another table has the column {pair[1]!r} too; "
                "give one of them another name"
            )
        require_same_timestamps(tables[0], table)
        columns += table.row_type.names
        nodes.append(node)
    return tuple(nodes)


def _obstacle(node: Aggregate) -> str | None:
    """The reason why a cogroup cannot sum up in the aggregate's place."""
    if node.topic is not None:
        return "is staged, and a cogroup is one query; leave its deployment fused"
    if node.materialized is not None:
        return "is materialized, and has no store of its own in a cogroup; materialize the cogroup"
    if node.closes is not None:
        return (
            "aggregates by windows that close, which a cogroup cannot contain; "
            "leave it out of the cogroup, and use join for its results"
        )
    if periodic(node):
        return "has an emit of its own, and the cogroup sends its rows; give emit to the cogroup"
    return None


def plan_merge(planned: Planned, *tables: TablePlan) -> TablePlan:
    """Tables with the same columns, one laid over the other."""
    bound: MergeBound = planned.bound
    settings, first = bound.settings, tables[0]
    assert isinstance(planned.node, Merge)
    node = replace(planned.node, tables=tuple(table.node for table in tables))
    key, row = arrow_schema("key", first.key_type), arrow_schema("row", first.row_type)
    facts = {
        "materialized": node.kept_as,
        "key": column_texts(key),
        "row": column_texts(row),
    }
    about = {"key": first.key_type, "result": first.row_type, "versions": [["version", 1]]}
    columns = F.struct(*(F.col(quoted(ROW, name)) for name in first.row_type.names))
    rows = F.when(F.col(ROW).isNotNull(), columns)
    sides = []
    for number, table in enumerate(tables):
        pack = pack_rows(table, row, settings, number=number)
        sides.append(packed(table.rows, pack, row=rows))
    spec = MergeSpec(
        state_spec(settings, MergeSpec, planned.node, bound_to=facts, about=about),
        in_order=tuple(map(let_through, node.tables)),
        every=bound.emission.every,
        origins=origins(node),
    )
    results = paced(planned, counted(Union(tuple(sides)), spec), about)
    unpack = UnpackResults(key, (row,), node.versions, bool(spec.origins))
    return table_of(planned, node, results, unpack, *tables)


def plan_cogroup(planned: Planned, *tables: TablePlan) -> TablePlan:
    """Aggregates by the same key, side by side."""
    bound: CogroupBound = planned.bound
    settings, emission, fold = bound.settings, bound.emission, bound.fold
    label, first = planned.name, tables[0]
    assert isinstance(planned.node, Cogroup)
    nodes: list[Aggregate] = []
    for table in tables:
        assert isinstance(table.node, Aggregate)
        nodes.append(table.node)
    node = replace(planned.node, tables=tuple(nodes))
    key = arrow_schema("key", first.key_type)
    facts = {
        "materialized": node.kept_as,
        "key": column_texts(key),
        "columns": column_texts(fold.schema),
    }
    about = {
        "key": first.key_type,
        "result": spark_schema(fold.schema),
        "versions": [["version", 1]],
    }
    if fold.collected:
        about["collected"] = fold.collected
    contributed = []
    for number, table in enumerate(tables):
        assert table.contributions is not None
        contributed.append(table.contributions(number=number, every=emission.every, reader=label))
    spec = AggregateSpec(
        state_spec(settings, AggregateSpec, planned.node, bound_to=facts, about=about),
        fold=fold,
        in_order=True,
        every=emission.every,
    )
    results = paced(planned, counted(Union(tuple(contributed)), spec), about)
    unpack = UnpackResults(key, (fold.schema,), node.versions)
    return table_of(planned, node, results, unpack, *tables)
