"""``cogroup``: several aggregates by the same key as one table, with one store (KIP-150)."""

from __future__ import annotations

from fkjoin.analysis.emission import Emit
from fkjoin.analysis.planned import Settings, called
from fkjoin.lowering.handle import planned_of
from fkjoin.lowering.unions import cogrouped, require_cogroup
from fkjoin.table import Table


def cogroup(
    *tables: Table, name: str | None = None, emit: Emit = "on-change", validate: bool | None = None
) -> Table:
    """Put several aggregates by the same key side by side: the columns of one after the other's.

    Their rows are summed up in one store, and a batch's changes of a group are one change.  A group
    is there as long as one of the tables has rows in it.  Columns of tables that have none are
    null, counts too.

    Parameters
    ----------
    *tables : Table
        Aggregates, as ``Table.group_by`` makes them, with the same columns as keys.
    name, emit, validate
        See ``Table.group_by``.

    Returns
    -------
    Table

    Raises
    ------
    TopologyError
        If a table or an argument is wrong; the message says which, and why.

    Examples
    --------
    >>> sales = orders.group_by("customer_id").agg(sales=agg.sum("amount"))
    >>> returned = returns.group_by("customer_id").agg(returned=agg.sum("amount"))
    >>> both = cogroup(sales, returned, name="balance")
    """
    planned = [planned_of(f"tables[{index}]", table) for index, table in enumerate(tables)]
    require_cogroup(planned)
    settings = Settings.of(planned[0].spark, validate)
    return Table._of(called(cogrouped, *planned, name=name, emit=emit, settings=settings))
