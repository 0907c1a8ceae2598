"""``filter`` and ``map_values``, analyzed: what a view makes of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from fkjoin.analysis.attempt import NOTHING, Attempt, attempt
from fkjoin.analysis.bound import Bound, Projection, bound_condition
from fkjoin.analysis.checks import as_emitted
from fkjoin.analysis.columns import require_names
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, refuse_same_name
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Steps, Where
from fkjoin.errors import TopologyError
from fkjoin.plan.base import in_order
from fkjoin.plan.nodes import Aggregate, Source, View, generated_name
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import named, quoted_if_needed, require_beside
from fkjoin.spark.schemas import Expression, Expressions, text
from fkjoin.stages.complete import UNAVAILABLE


@dataclass(frozen=True, eq=False)
class ViewStep:
    """A view of each row, as columns over a table's frame."""

    tried: Attempt
    """The expressions, which row and gone are made of."""
    row: Column
    row_type: StructType
    gone: Column
    """Condition under which there is no row."""
    reads: Callable[[Sequence[Path] | None], list[Path] | None]
    """Function from paths of the new rows to those that the table's rows must have.

    None stands for all of them.
    """
    texts: tuple[tuple[str, str], ...]
    """For people."""
    evaluate: Callable[[], Steps | None]
    """Form for workers; None if Spark has to evaluate it."""
    condition: Bound | None = None
    """The condition of a filter, which leaves rows as they are."""

    def __str__(self) -> str:
        return " ".join(*self.texts) if self.texts else "it"

    def taken(self, visible: DataFrame, *more: str) -> DataFrame:
        """A table's frame after the step, with columns more of ``visible``."""
        row = self.row.alias(ROW)
        gone = self.gone.alias(DELETED)
        problem = self.tried.problems.alias(PROBLEM)
        return self.tried.on(visible).select(KEY, row, gone, VERSION, SOURCE, TS, problem, *more)


@dataclass(frozen=True, eq=False)
class ViewBound(OperatorBound):
    """Needs of lowering a view, besides its node.

    The node's steps are all since the last operator that keeps rows.
    """

    operator = "view"
    step: ViewStep
    """The last of them."""


@dataclass(frozen=True, eq=False)
class CompleteBound:
    """Needs of lowering a topic's table whose events may lack values."""

    operator: ClassVar[str] = "complete"
    settings: Settings


def filtered(
    table: Planned, *, condition: Expression, name: str | None, emit: Emit, settings: Settings
) -> Planned:
    """See ``Table.filter``.  Raises ``TopologyError``."""
    holds = bound_condition("condition", condition, table.scope)
    operator = f"filter of {table.name}"
    tried = attempt("filter", table.name, [holds], table.on_error)
    stays = ~F.col(DELETED) & F.coalesce(*tried.columns, F.lit(False))

    def reads(paths: Sequence[Path] | None) -> list[Path] | None:
        return None if paths is None else [*paths, *holds.paths]

    def evaluate() -> Steps | None:
        return None if holds.vector is None else (Where(holds.vector, operator),)

    row = F.when(stays, F.col(ROW))
    shown = (("filter", text(condition)),)
    step = ViewStep(tried, row, table.row_type, ~stays, reads, shown, evaluate, holds)
    return _view(table, step, name, emit, settings)


def mapped(
    table: Planned,
    *,
    columns: Expressions,
    name: str | None,
    emit: Emit,
    settings: Settings,
    written: tuple[str, str] | None = None,
) -> Planned:
    """See ``Table.map_values``.  Raises ``TopologyError``.

    ``written``: the step as the user wrote it, if not so.
    """
    projection = Projection.of("columns", columns, table.scope)
    unchanged = {named(item, table.visible_names) for item in projection.texts} & set(table.key)
    changed = [name for name in projection.schema.names if name not in unchanged]
    require_beside(table.key, "columns", changed)
    operator = f"map_values of {table.name}"
    tried = attempt("map_values", table.name, projection.bound, table.on_error)

    def reads(_: Sequence[Path] | None) -> list[Path]:
        return list(chain.from_iterable(expression.paths for expression in projection.bound))

    def evaluate() -> Steps | None:
        evaluated = projection.for_workers(operator)
        return None if evaluated is None else (evaluated,)

    gone = F.col(DELETED)
    row = F.when(~gone, projection.struct_of(tried.columns))
    kind = StructType([_tried(expression) for expression in projection.bound])
    shown = (written or ("map_values", ", ".join(projection.texts)),)
    step = ViewStep(tried, row, kind, gone, reads, shown, evaluate)
    return _view(table, step, name, emit, settings)


def _tried(bound: Bound) -> StructField:
    """The column that an ``Attempt`` makes: null where the expression throws."""
    field = bound.field
    return StructField(
        field.name, field.dataType, field.nullable or bound.can_throw, field.metadata
    )


def dropped(table: Planned, *, names: Sequence[str], **options: Any) -> Planned:
    """See ``Table.drop``.  Raises ``TopologyError``."""
    gone = require_names("cols", names, (*table.key, *table.rest), f"table {table.name}")
    if of_key := [name for name in gone if name in table.key]:
        raise TopologyError(
            f"cols: {of_key[0]} belongs to the key of {table.name}, and columns of the key cannot "
            "be dropped; give the table another key with rekey"
        )
    columns = [quoted_if_needed(name) for name in table.rest if name not in gone]
    written = "drop", ", ".join(name for name in table.rest if name in gone)
    return mapped(table, columns=columns, written=written, **options)


def with_columns(table: Planned, *, columns: Mapping[str, Expression], **options: Any) -> Planned:
    """See ``Table.with_columns``.  Raises ``TopologyError``."""
    if not isinstance(columns, Mapping):
        raise TopologyError(
            'columns: names and expressions are needed, such as {"twice": "2 * n"}, '
            f"not {columns!r}"
        )
    titled = {name: _titled(expression, name) for name, expression in columns.items()}
    written = "with_columns", ", ".join(map(text, titled.values()))
    known = {name.lower(): name for name in columns}
    chosen: list[Expression] = []
    for name in table.rest:
        title = known.get(name.lower())
        chosen.append(quoted_if_needed(name) if title is None else titled.pop(title))
    return mapped(table, columns=[*chosen, *titled.values()], written=written, **options)


def _titled(expression: Expression, name: str) -> Expression:
    if isinstance(expression, str):
        return f"{expression} as {quoted_if_needed(name)}"
    return expression.alias(name)


def materialized(table: Planned, *, name: str, settings: Settings) -> Planned:
    """See ``Table.materialize``: the table, its rows kept in state under the name."""
    if isinstance(table.node, Source):
        step = ViewStep(
            NOTHING, F.col(ROW), table.row_type, F.col(DELETED), lambda paths: None, (), lambda: ()
        )
        table = _view(table, step, None, "on-change", settings)
    node: Any = table.node
    if isinstance(node, Aggregate) and node.closes is not None:
        raise TopologyError(
            f"materialize: {table.name} aggregates by windows, and a closed window leaves the "
            f"state; materialize the table below {table.name}, or write the rows of {table.name} "
            "to a sink"
        )
    if any(below.kept_as == name for below in in_order(*node.inputs)):
        raise TopologyError(
            f"materialize: the rows of an input of {table.name} are kept as {name!r}; "
            "choose another name"
        )
    kinds = as_emitted("key", table.key_type), as_emitted("row", table.row_type)
    return replace(
        table, node=replace(node, materialized=name), key_type=kinds[0], row_type=kinds[1]
    )


def completed(table: Planned, settings: Settings) -> Planned:
    """A topic's table with whole rows; itself if none of its rows can lack values."""
    if UNAVAILABLE not in table.row_type.names:
        return table
    assert isinstance(table.node, Source)
    whole = StructType([field for field in table.row_type if field.name != UNAVAILABLE])
    label = f"{table.name}-whole"
    steps = (("complete", "values that an event lacks are those of the row before"),)
    source = replace(
        table.node, columns=tuple(name for name in table.node.columns if name != UNAVAILABLE)
    )
    return replace(
        table,
        node=View(label, source, steps, materialized=label),
        key_type=as_emitted("key", table.key_type),
        row_type=as_emitted("row", whole),
        bound=CompleteBound(settings),
        inputs=(table,),
    )


def _view(
    table: Planned, step: ViewStep, name: str | None, emit: Emit, settings: Settings
) -> Planned:
    emission = Emission.of(emit)
    below, steps = table.node, step.texts
    if isinstance(below, View) and below.materialized is None:
        steps = (*below.steps, *steps)
        below = below.table
    label = name or f"{below.name}-{generated_name(below.name, steps) if steps else 'rows'}"
    refuse_same_name(label, (below,), "table")
    as_emitted("row", step.row_type)  # a type that no store can keep is refused now
    bound = ViewBound(emission, settings, step)
    return replace(
        table,
        node=View(label, below, steps, emit),
        row_type=step.row_type,
        bound=bound,
        inputs=(table,),
    )
