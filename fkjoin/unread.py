"""Tables whose rows the workers parse: what steps and aggregates make of such rows, without rows in the JVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame

from fkjoin.optimizer import allowed
from fkjoin.projection import Projection
from fkjoin.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import JsonLines
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import Pack, PackRows
from fkjoin.spark.stepped import Stepped
from fkjoin.spark.topic_records import TopicRecords
from fkjoin.spark.vectorized import vectors
from fkjoin.stateful import packing_columns
from fkjoin.topology import Verdict
from fkjoin.vectors import Columns, Steps

if TYPE_CHECKING:
    from fkjoin.table import Table

Unread: TypeAlias = tuple[DataFrame, JsonLines | TopicRecords | Stepped]
"""The lines of files, or a topic's records, and what is in them."""


def with_steps(table: Table, evaluate: Callable[[], Steps | None], what: str) -> tuple[Unread | None, Verdict | None]:
    """The rows after steps, and what became of the rule; None where the table's own rows are not read like this.

    ``evaluate`` returns None if Spark has to do ``what``.
    """
    if table.unread is None:
        return None, None
    why, steps = allowed(table.frame.sparkSession, WORKERS_EVALUATE_STEPS), None
    if why is None and (steps := evaluate()) is None:
        why = f"{what} is left to Spark"
    verdict = Verdict(WORKERS_EVALUATE_STEPS, why)
    return None if steps is None else (table.unread[0], _stepped(table).then(steps)), verdict


def packed_rows(table: Table, pack: PackRows) -> DataFrame:
    """The table's rows, packed."""
    if table.unread is None:
        return table.frame.select(*packing_columns()).mapInArrow(pack, ENVELOPE)
    return packed_by_workers(table, pack)


def packed_by_workers(table: Table, pack: Pack, foreign_key: Columns | None = None) -> DataFrame:
    """The rows of a table that is ``unread``, packed."""
    assert table.unread is not None
    return table.unread[0].mapInArrow(_stepped(table).packing(pack, foreign_key), ENVELOPE)


def packed_contributions(
    table: Table, key: Projection, value: Projection, pack: PackRows
) -> tuple[DataFrame | None, Verdict | None]:
    """What rows contribute to groups, packed, and what became of the rule; None as for ``with_steps``."""
    if table.unread is None:
        return None, None
    why, found = allowed(table.frame.sparkSession, WORKERS_EVALUATE_STEPS), None
    if why is None and (found := contributing(table, key, value)) is None:
        why = "what a row contributes is left to Spark"
    verdict = Verdict(WORKERS_EVALUATE_STEPS, why)
    if found is None:
        return None, verdict
    return table.unread[0].mapInArrow(_stepped(table).packing(pack, contributing=found), ENVELOPE), verdict


def contributing(table: Table, key: Projection, value: Projection) -> tuple[Columns, Columns] | None:
    """The groups and the values of the table's rows, for workers; None if Spark has to evaluate them."""
    rows, names = table.visible(), [*table.row_type.names, *table.key]
    group, values = vectors(key.named, rows, names), vectors(value.named, rows, names)
    return None if group is None or values is None else (group, values)


def _stepped(table: Table) -> Stepped:
    assert table.unread is not None
    reading = table.unread[1]
    return reading if isinstance(reading, Stepped) else Stepped(reading)
