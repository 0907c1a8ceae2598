"""Tables whose rows the workers parse: what steps and aggregates make of such rows, without rows in the JVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame

from fkjoin.analysis.projection import Projection
from fkjoin.analysis.vectorize import vectors
from fkjoin.codec.vectors import Columns, Steps
from fkjoin.lowering.stage import packing_columns
from fkjoin.plan.nodes import Aggregate, Derived, Node, fired
from fkjoin.plan.optimizer import Off, workers_evaluate_steps
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import JsonLines
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import Pack, PackRows
from fkjoin.spark.stepped import Stepped
from fkjoin.spark.topic_records import TopicRecords

if TYPE_CHECKING:
    from fkjoin.table import Table

Unread: TypeAlias = tuple[DataFrame, JsonLines | TopicRecords | Stepped]
"""The lines of files, or a topic's records, and what is in them."""


def with_steps(
    view: Derived, off: Off, table: Table, evaluate: Callable[[], Steps | None], what: str
) -> tuple[Derived, Unread | None]:
    """What is made of the table's rows by steps, and the rows after them, if workers evaluate them.

    ``evaluate`` returns None if Spark has to do ``what``.
    """
    if table.unread is None:
        return _as_before(view, off, table.node), None
    steps = evaluate()
    view = workers_evaluate_steps(view, off, None if steps is not None else f"{what} is left to Spark")
    if steps is None or not fired(view, WORKERS_EVALUATE_STEPS):
        return view, None
    return view, (table.unread[0], _stepped(table).then(steps))


def packed_rows(table: Table, pack: PackRows) -> DataFrame:
    """The table's rows, packed."""
    if table.unread is None:
        return table.frame.select(*packing_columns()).mapInArrow(pack, ENVELOPE)
    return packed_by_workers(table, pack)


def packed_by_workers(table: Table, pack: Pack, foreign_key: Columns | None = None) -> DataFrame:
    """The rows of a table that is ``unread``, packed."""
    assert table.unread is not None
    return table.unread[0].mapInArrow(_stepped(table).packing(pack, foreign_key, failing=_failing(table)), ENVELOPE)


def packed_contributions(
    aggregate: Aggregate, off: Off, table: Table, key: Projection, value: Projection, pack: PackRows
) -> tuple[Aggregate, DataFrame | None]:
    """An aggregate, and what the table's rows contribute, packed, if workers evaluate it."""
    if table.unread is None:
        return aggregate, None
    found = contributing(table, key, value)
    aggregate = workers_evaluate_steps(aggregate, off, None if found else "what a row contributes is left to Spark")
    if found is None or not fired(aggregate, WORKERS_EVALUATE_STEPS):
        return aggregate, None
    packing = _stepped(table).packing(pack, contributing=found, failing=_failing(table))
    return aggregate, table.unread[0].mapInArrow(packing, ENVELOPE)


def contributing(table: Table, key: Projection, value: Projection) -> tuple[Columns, Columns] | None:
    """The groups and the values of the table's rows, for workers; None if Spark has to evaluate them."""
    rows, names = table.visible(), [*table.row_type.names, *table.key]
    group, values = (vectors(one.named, rows, names, f"group_by of {table.name}") for one in (key, value))
    return None if group is None or values is None else (group, values)


def _as_before(view: Derived, off: Off, below: Node) -> Derived:
    """What is made of rows that Spark evaluates already, if they could have been the workers'."""
    if isinstance(below, Derived) and below.materialized is None:
        for verdict in below.rules:
            if verdict.rule == WORKERS_EVALUATE_STEPS:
                return workers_evaluate_steps(view, off, verdict.why_not)
    return view


def _failing(table: Table) -> str | None:
    return table.name if table.on_error == "fail" else None


def _stepped(table: Table) -> Stepped:
    assert table.unread is not None
    reading = table.unread[1]
    return reading if isinstance(reading, Stepped) else Stepped(reading)
