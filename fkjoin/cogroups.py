"""``cogroup``: several aggregates by the same key as one table, with one store (KIP-150)."""

from __future__ import annotations

from fkjoin.analysis.emission import Emit
from fkjoin.analysis.unions import cogrouped
from fkjoin.lowering.handle import planned_of
from fkjoin.lowering.recipes import remembered
from fkjoin.table import Table


@remembered
def cogroup(*tables: Table, name: str | None = None, emit: Emit = "on-change", validate: bool | None = None) -> Table:
    """The table of several aggregates by the same key, side by side: the columns of one after those of the other.

    ``tables``: aggregates, as ``group_by`` makes them, with the same columns as keys; their rows are summed up in one store,
    and a batch's changes of a group are one change.  A group is there as long as one of the tables has rows in it; columns of
    those that have none are null, counts too.

    ``name``, ``emit``, ``validate``: as for ``Table.group_by``.  Raises ``TopologyError`` that says which table is wrong.
    """
    planned = [planned_of(f"tables[{at}]", table) for at, table in enumerate(tables)]
    return Table._of(cogrouped(planned, name, emit, validate))
