"""Tables whose rows the workers parse.

What steps and aggregates make of such rows needs no rows in the JVM.
"""

from __future__ import annotations

from dataclasses import replace

from fkjoin.analysis.bound import Projection
from fkjoin.analysis.planned import Undecoded
from fkjoin.analysis.views import ViewStep
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.stage import packed
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import View, fired
from fkjoin.plan.optimizer import Off, workers_evaluate_steps
from fkjoin.plan.physical import InWorkers, Physical, Union
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.packing import Pack, PackRows
from fkjoin.spark.stepped import RowsAsTheyAre, Stepped


def with_step(
    view: View, off: Off, table: TablePlan, step: ViewStep
) -> tuple[View, Undecoded | None]:
    """Apply the step to the table's rows, and return the rows after it, if workers evaluate it."""
    if table.undecoded is None:
        return _as_below(view, off, table.node), None
    steps = step.evaluate()
    obstacle = f"{step} is left to Spark" if steps is None else None
    view = workers_evaluate_steps(view, off, obstacle)
    if steps is None or not fired(view, WORKERS_EVALUATE_STEPS):
        return view, None
    return view, table.undecoded._replace(reading=stepped(table.undecoded).then(steps))


def packed_rows(table: TablePlan, pack: PackRows) -> Physical:
    """The table's rows, packed."""
    return packed_view(table.rows, table.undecoded, pack, failing=table.failing)


def packed_view(
    rows: Physical, undecoded: Undecoded | None, pack: PackRows, *, failing: str | None
) -> Physical:
    """A table's rows, packed: those that are there, or those that workers decode.

    ``failing``: the table's name if a row that cannot be used stops the query.
    """
    if undecoded is None:
        return packed(rows, pack)
    return read_by_workers(undecoded, pack, failing=failing)


def read_by_workers(
    undecoded: Undecoded,
    pack: Pack,
    *,
    foreign_key: Columns | None = None,
    contributing: tuple[Columns, Columns] | None = None,
    failing: str | None = None,
) -> Physical:
    """Pack the rows that workers read, and the rows of a snapshot; see ``Stepped.packing``."""
    reader = stepped(undecoded)
    function = reader.packing(pack, foreign_key, contributing, failing=failing)
    rows = InWorkers(undecoded.lines, function, ENVELOPE)
    if undecoded.snapshot is None:
        return rows
    as_they_are = replace(reader, reading=RowsAsTheyAre())
    function = as_they_are.packing(pack, foreign_key, contributing, failing=failing)
    return Union((rows, packed(undecoded.snapshot, function)))


def contributing(
    table: TablePlan, key: Projection, value: Projection
) -> tuple[Columns, Columns] | None:
    """The groups and the values of the table's rows, for workers; None if Spark evaluates them."""
    title = f"group_by of {table.name}"
    group, contributed = key.for_workers(title), value.for_workers(title)
    return None if group is None or contributed is None else (group, contributed)


def _as_below(view: View, off: Off, below: Node) -> View:
    """The view of rows that Spark evaluates already, with the reason why workers do not.

    Only rows that could have been the workers' have one.
    """
    if isinstance(below, View) and below.materialized is None:
        for verdict in below.rules:
            if verdict.rule == WORKERS_EVALUATE_STEPS:
                return workers_evaluate_steps(view, off, verdict.why_not)
    return view


def stepped(undecoded: Undecoded) -> Stepped:
    """The way in which workers read rows, with its steps."""
    reading = undecoded.reading
    return reading if isinstance(reading, Stepped) else Stepped(reading)
