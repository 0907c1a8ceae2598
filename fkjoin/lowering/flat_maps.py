"""``flat_map`` and ``rekey``: the rows that a row makes; spread by row, owners by output key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructField, StructType

from fkjoin.analysis.attempt import NOTHING, Attempt, attempt, raw
from fkjoin.analysis.bound import Projection, Scope, bind
from fkjoin.analysis.checks import as_emitted, described, is_function, require_takes
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.joiner import tried_function
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of, with_visible
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.lowering.stage import counted, let_through, packed, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, table_of
from fkjoin.plan.nodes import FlatMap, generated_name, read_from, starts_over
from fkjoin.plan.physical import Counted, InWorkers, MessagesOnly, Physical, Stage, by_spark
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import named, quoted, require_apart, require_beside
from fkjoin.spark.packing_outputs import Gather, OutputLetters, PackOutputs
from fkjoin.spark.schemas import (
    Expression,
    Expressions,
    arrow_schema,
    column_texts,
    require_plain_keys,
    struct_type,
)
from fkjoin.spark.specs import OwnersSpec, SpreadSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults

OUTPUT_PLACE = "__fkjoin_place"
"""A column of outputs: the place of each among its row's outputs; null where a row makes none."""
COL = "col"
"""The column of an output that is not a struct, as ``explode`` of Spark calls it."""

_MADE = "__fkjoin_made"

RowsExpression = Expression | Callable[[Any, Any], Iterable[Any]]


@dataclass(frozen=True, eq=False)
class FlatMapBound(OperatorBound):
    """Needs of lowering ``flat_map`` and ``rekey``, besides the node."""

    operator = "flat_map"
    exploded: Callable[[DataFrame], DataFrame]
    """Function from a table's frame, with visible columns, to a frame of outputs.

    Outputs are one a row, in the order of the rows that make them.  A row that makes none is there
    once.  ``RAW``: the row that makes them, as a dead letter has it."""
    expression: Attempt
    """The expression of the rows."""
    key: Projection
    tried: Attempt
    """The columns of the outputs' keys."""
    row: StructType


def flat_mapped(
    table: Planned,
    *,
    rows: RowsExpression,
    key: Expressions,
    returns: str | StructType | None,
    name: str | None,
    emit: Emit,
    settings: Settings,
) -> Planned:
    """See ``Table.flat_map``.  Raises ``TopologyError``."""
    called = described(rows, "key", "row")
    expression: Attempt
    if is_function(rows):
        element: DataType = _returned(rows, returns)
        collected = StructType().add("rows", ArrayType(element))
        expression = tried_function(
            "flat_map", rows, table, collected, lambda result: (list(result or ()),)
        )
    else:
        if returns is not None:
            raise TopologyError(
                "returns: it is the type of what a function returns, and an expression has one; "
                "leave it out"
            )
        argument: Any = rows
        (bound,) = bind("rows", [argument], table.scope)
        kind = bound.field.dataType
        if not isinstance(kind, ArrayType):
            raise ColumnTypeError(
                f"rows: {called} is {kind.simpleString()}, an array is needed: "
                "write array(…), split(…), or map_entries(…)"
            )
        element = kind.elementType
        expression = attempt("flat_map", table.name, [bound], table.on_error)
    row = element if isinstance(element, StructType) else StructType([StructField(COL, element)])
    require_apart("rows", row.names)
    scope = _scope(table, row)

    def exploded(visible: DataFrame) -> DataFrame:
        frame = expression.on(visible)
        outputs = F.when(~F.col(DELETED), expression.columns[0]).alias(_MADE)
        problem, letter = expression.problems.alias(PROBLEM), raw(frame, table.name).alias(RAW)
        before = frame.select(KEY, DELETED, VERSION, SOURCE, TS, problem, letter, outputs)
        each = before.select(*_ABOUT, F.posexplode_outer(_MADE).alias(OUTPUT_PLACE, _MADE))
        output = F.col(_MADE)
        if not isinstance(element, StructType):
            output = F.when(F.col(OUTPUT_PLACE).isNotNull(), F.struct(output.alias(COL)))
        return each.select(*_ABOUT, OUTPUT_PLACE, output.alias(ROW))

    return _planned(
        table,
        scope,
        key,
        rows=called,
        row=row,
        expression=expression,
        exploded=exploded,
        name=name,
        emit=emit,
        settings=settings,
    )


def rekeyed(
    table: Planned, *, key: Expressions, name: str | None, emit: Emit, settings: Settings
) -> Planned:
    """See ``Table.rekey``.  Raises ``TopologyError``."""
    row = StructType([table.visible.schema[column] for column in table.visible_names])

    def exploded(visible: DataFrame) -> DataFrame:
        usable = F.col(PROBLEM).isNull() & ~F.col(DELETED)
        output = F.when(usable, F.struct(*(F.col(quoted(column)) for column in row.names)))
        number = F.when(usable, F.lit(0)).alias(OUTPUT_PLACE)
        letter = raw(visible, table.name).alias(RAW)
        about = [column for column in _ABOUT if column != RAW]
        return visible.select(*about, letter, number, output.alias(ROW))

    return _planned(
        table,
        table.scope,
        key,
        rows=None,
        row=row,
        expression=NOTHING,
        exploded=exploded,
        name=name,
        emit=emit,
        settings=settings,
    )


_ABOUT = (KEY, DELETED, VERSION, SOURCE, TS, PROBLEM, RAW)


def _planned(
    table: Planned,
    scope: Scope,
    keys_wanted: Expressions,
    *,
    rows: str | None,
    row: StructType,
    expression: Attempt,
    exploded: Callable[[DataFrame], DataFrame],
    name: str | None,
    emit: Emit,
    settings: Settings,
) -> Planned:
    """The table of the outputs; ``rows``: their expression as a text, None of ``rekey``."""
    emission = Emission.of(emit)
    key = Projection.of("key", keys_wanted, scope)
    require_plain_keys("key", key.schema)
    keys = tuple(key.schema.names)
    same = {named(item, scope.names) for item in key.texts} & set(keys)
    require_beside(
        keys,
        "key",
        (column for column in row.names if column not in same),
        "give the key's another alias",
    )
    kinds = as_emitted("key", key.schema), as_emitted("rows", row)
    arrow_schema("key", table.key_type)
    made_by = "rekeyed" if rows is None else "rows"
    unnamed = generated_name(table.name, rows, key.texts)
    label = name or f"{table.name}-{made_by}-{unnamed}"
    usable = F.col(PROBLEM).isNull() & F.col(ROW).isNotNull()
    tried = attempt(
        "rekey" if rows is None else "flat_map",
        table.name,
        key.bound,
        table.on_error,
        usable=usable,
    )
    node = FlatMap(label, table.node, rows, keys, key.texts, emit)
    needs = FlatMapBound(emission, settings, exploded, expression, key, tried, kinds[1])
    return made_of((table,), node, *kinds, needs)


def _scope(table: Planned, row: StructType) -> Scope:
    """The columns that keys of outputs may be made of: theirs, and ``_old_key``'s."""
    kind = (
        StructType()
        .add(KEY, table.key_type)
        .add(ROW, row)
        .add(PROBLEM, StringType())
        .add(DELETED, BooleanType())
    )
    rest = _old_key(table.key, row)
    empty = with_visible(table.spark.createDataFrame([], kind), rest, row)
    schema = arrow_schema("rows", StructType([*row, *(table.key_type[name] for name in rest)]))
    return Scope(empty, (*row.names, *rest), f"a row that {table.name} makes", schema)


def _old_key(key: tuple[str, ...], row: StructType) -> list[str]:
    """The columns of the key of the rows that make outputs, but for those that outputs have."""
    known = {name.lower() for name in row.names}
    return [name for name in key if name.lower() not in known]


def _returned(function: Callable[..., Any], returns: str | StructType | None) -> DataType:
    """The type of the rows that a function makes."""
    require_takes("rows", function, "key", "row")
    if returns is None:
        raise TopologyError(
            "returns: a function needs the columns of the rows that it returns, "
            'such as "sku string, n bigint"'
        )
    return struct_type(returns, "returns")


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
        "key": column_texts(key),
        "row": column_texts(row),
        "row_key": column_texts(row_key),
    }
    about = {
        "key": planned.key_type,
        "row_key": table.key_type,
        "result": planned.row_type,
        "versions": [["version", 1]],
    }

    def state(kind: type[StageSpec], **more: Any) -> StateSpec:
        bound_to = {**facts, **more}
        return state_spec(settings, kind, planned.node, bound_to=bound_to, about=about)

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
    owners = OwnersSpec(state(OwnersSpec, materialized=node.kept_as), every=emission.every)
    results = paced(planned, counted(spread_out, owners), about)
    unpack = UnpackResults(key, (row,), node.versions)
    dead = (*table.dead, *table.dead_of(bound.expression, label), *outputs.dead(label))
    return table_of(planned, node, results, unpack, table, dead=dead)


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
        rest = _old_key(self.table.key, row)
        return self.bound.tried.on(with_visible(self.bound.exploded(visible), rest, row))

    def dead(self, label: str) -> tuple[Physical, ...]:
        """The rows that dead letters come from: an output's key throws, or two have one key."""
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
