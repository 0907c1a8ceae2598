"""Filters of a join's rows that leave out rows of one of its tables, before the join.

*Law*: the filtered join is the same.  A row that the condition rules out has no result, so its
table may as well lack it.  The filter stays above the join, too, for rows that came before the rule
was on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bound import Bound
from fkjoin.analysis.vectorize import moved
from fkjoin.codec.vectors import Where
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.lowering.workers import stepped
from fkjoin.plan.optimizer import Off
from fkjoin.plan.physical import by_spark
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.frame import DELETED, KEY, ROW
from fkjoin.stages.contribute import Place


def without(
    table: TablePlan, condition: Bound, places: Mapping[str, Place], off: Off
) -> TablePlan | str:
    """The table without the rows for which the condition does not hold; or why it has them.

    ``places``: fields of the table's rows, by the columns that the condition names.
    """
    if any(join is not None for join in (table.join, table.answers, table.multi)):
        return f"{table.name} is made of a join"
    rows = by_spark(partial(_held, condition, places), table.rows)
    undecoded = None if WORKERS_EVALUATE_STEPS in off else table.undecoded
    if undecoded is not None:
        paths = {name.lower(): path for name, (_, path) in places.items()}
        vector = condition.vector
        if vector is not None:
            vector = moved(vector, paths, table.planned.scope.schema)
        if vector is None:
            return "the condition is left to Spark"
        where = Where(vector, f"filter below a join of {table.name}")
        undecoded = undecoded._replace(reading=stepped(undecoded).then((where,)))
    return replace(table, rows=rows, packed=None, settled=None, undecoded=undecoded)


def _held(condition: Bound, places: Mapping[str, Place], rows: DataFrame) -> DataFrame:
    # Texts of joined rows have no collation, whatever the table's texts have.
    kinds = condition.scope.frame.schema
    named = {}
    for name, (side, path) in places.items():
        named[name] = _field(side, path).cast(kinds[name].dataType)
    stays = ~F.col(DELETED) & F.coalesce(condition.column, F.lit(False))
    held = {ROW: F.when(stays, F.col(ROW)), DELETED: ~stays}
    return rows.withColumns(named).withColumns(held).select(rows.columns)


def _field(side: str, path: tuple[str, ...]) -> Column:
    column = F.col(KEY if side == "key" else ROW)
    for name in path:
        column = column.getField(name)
    return column
