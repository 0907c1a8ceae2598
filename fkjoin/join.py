"""``fk_join`` and ``cogroup``: tables that are made of several."""

from __future__ import annotations

from fkjoin.analysis.checks import Deployment, Extractor, Joiner
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_join
from fkjoin.analysis.planned import Settings, called
from fkjoin.lowering.handle import planned_of
from fkjoin.lowering.unions import cogrouped, require_cogroup
from fkjoin.stages.join_rows import How
from fkjoin.table import Table


def fk_join(
    left: Table,
    right: Table,
    extractor: Extractor,
    how: How = "inner",
    joiner: Joiner | None = None,
    name: str | None = None,
    *,
    deployment: Deployment = "fused",
    application: str | None = None,
    emit: Emit = "on-change",
    spread: int = 1,
) -> Table:
    """Join each left row with the right row that its foreign key names, kept up to date (KIP-213).

    ``left.join(right, on=extractor)`` is the same call.

    Parameters
    ----------
    left : Table
        The table whose rows contain a foreign key. The result has its key.
    right : Table
        The table whose primary key the foreign keys name.
    extractor : str, Column, list of them, or callable
        The foreign key of a left row: a column name or names, a Column, SQL text, or a Python
        callable of (key, row). The callable returns the foreign key, as a tuple for several
        columns. A row has no foreign key if it is null, or null in one of its columns.
    how : {"inner", "left"}, default "inner"
        ``"inner"`` drops left rows without a right row, ``"left"`` keeps them.
    joiner : str, Column, list of them, or callable, optional
        The columns of a joined row. By default both rows, as structs ``left`` and ``right``.

        - Columns or SQL texts over ``left.…`` and ``right.…``.
        - A Spark UDF of (left row, right row). Its type gives the columns: the fields of a struct,
          otherwise ``value``.
        - Another callable of (left row, right row). Its return annotation gives the type of
          ``value``: bool, int, float or str, or one of them or None. Without an annotation,
          ``value`` is the result as JSON.
        - If the joiner returns null, the result has no row.
    name : str, optional
        The name of the result in state and metrics. By default fkjoin generates one.
    deployment : {"fused", "staged"}, default "fused"
        ``"fused"`` runs all stages in one query. ``"staged"``, for tables read from topics, runs
        rekey and subscription as queries of their own, which your program starts
        (``Table.stages``). The topics ``APPLICATION-NAME-subscription-registration`` and
        ``APPLICATION-NAME-subscription-response`` connect them with resolve.
    application : str, optional
        The first part of the names of internal topics. By default the name of the Spark
        application.
    emit : str, default "on-change"
        When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
        last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
        ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row emitted
        last; ``"periodic"`` is one minute.
    spread : int, default 1
        The number of buckets that share the left rows of one foreign key, for right rows with very
        many left rows. Each right row is stored that many times. The number is fixed at the first
        start.

    Returns
    -------
    Table

    Raises
    ------
    TopologyError
        If an argument is wrong; the message says which, and why.

    Examples
    --------
    >>> joiner = ["left.amount", "right.name"]
    >>> joined = fk_join(orders, customers, "customer_id", joiner=joiner)
    >>> joined.preview().orderBy("order_id").show()
    +--------+------+-----+
    |order_id|amount| name|
    +--------+------+-----+
    |      o1|  10.0|  Ada|
    |      o2|  25.0|Grace|
    |      o3|   5.0|  Ada|
    +--------+------+-----+
    <BLANKLINE>
    """
    planned_of("left", left)
    return left._called(
        planned_join,
        planned_of("right", right),
        extractor=extractor,
        how=how,
        joiner=joiner,
        name=name,
        deployment=deployment,
        application=application,
        emit=emit,
        spread=spread,
    )


def cogroup(*tables: Table, name: str | None = None, emit: Emit = "on-change") -> Table:
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
    settings = Settings.of(planned[0].spark)
    return Table._of(called(cogrouped, *planned, name=name, emit=emit, settings=settings))
