"""``fk_join``: the foreign-key join of two tables."""

from __future__ import annotations

from fkjoin.analysis.checks import Deployment, Extractor, Joiner
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_join
from fkjoin.lowering.handle import planned_of
from fkjoin.stages import How
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
    validate: bool | None = None,
    spread: int = 1,
) -> Table:
    """Join left rows with the right row that their foreign key names, kept up to date (KIP-213).

    Parameters
    ----------
    left : Table
        The table whose rows have a foreign key.  The result has its key.
    right : Table
        The table whose key the foreign keys name.
    extractor : str, Column, list of them, or callable
        The foreign key of a left row: column name or names, Column, SQL text, or a Python callable
        of (key, row).  The callable returns it, a tuple for several columns.  A row has no foreign
        key if it is null, or null in any column.
    how : {"inner", "left"}, default "inner"
        ``"left"`` keeps left rows without a right row.
    joiner : str, Column, list of them, or callable, optional
        The columns of a joined row.  By default both rows, as structs ``left`` and ``right``.

        - Columns or SQL texts over ``left.…`` and ``right.…``.
        - A Spark UDF of (left row, right row).  Its type gives the columns: the fields of a struct,
          otherwise ``value``.
        - Another callable of (left row, right row).  Its return annotation gives the type of
          ``value``: bool, int, float, str, or one of them or None.  Without an annotation,
          ``value`` is its result as JSON.
        - If a joiner returns null, there is no result.
    name : str, optional
        The name of state and metrics; generated from the rest if left out.
    deployment : {"fused", "staged"}, default "fused"
        ``"fused"``: all stages in one query.  ``"staged"``, for tables read from topics: rekey and
        subscription are queries of their own (``Table.stages``), which a program starts.  The
        topics ``APPLICATION-JOIN-subscription-registration`` and ``…-subscription-response``
        connect them with resolve.
    application : str, optional
        The first part of these topics' names; by default the Spark application's name.
    emit : {"on-change", "on-update", "periodic", "periodic 10 seconds", …}, default "on-change"
        When a joined row is emitted.  ``"on-change"``: if it has changed (KIP-557).
        ``"on-update"``: in every batch with a newer version of either side.  ``"periodic 10
        seconds"`` (``"periodic"``: a minute): at the end of each interval, if it differs from the
        one emitted last.
    validate : bool, optional
        Whether to check the stores' invariants after every batch, and stop with an
        ``InvariantError`` if one does not hold. Every batch then reads all state.  By default the
        setting ``spark.fkjoin.validate``, or False.
    spread : int, default 1
        The number of buckets over which the left rows of one foreign key are spread, for right rows
        with very many of them. Each right row is stored as many times.  It is fixed at the first
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
    >>> joined = fk_join(orders, customers, "customer_id", how="left", joiner=joiner)
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
        validate=validate,
        spread=spread,
    )
