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
    """Put several aggregates by one key side by side, as columns of one table.

    One store keeps the aggregates of all tables, and a batch's changes of a group are one change. A
    group exists as long as one of the tables has rows in it. Columns of tables without rows in the
    group are null, including counts.

    Parameters
    ----------
    *tables : Table
        Aggregates of ``Table.group_by``, with the same columns as keys.
    name : str, optional
        The name of the result in state and metrics. By default fkjoin generates one.
    emit : str, default "on-change"
        When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
        last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
        ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row emitted
        last; ``"periodic"`` is one minute.
    validate : bool, optional
        Whether to check the invariants of the stores after every batch, and to stop with an
        ``InvariantError`` if one does not hold. Every batch then reads all state. By default the
        setting ``spark.fkjoin.validate``, or False.

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
