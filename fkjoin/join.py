"""``fk_join``: the foreign-key join of two tables."""

from __future__ import annotations

from fkjoin.analysis.checks import Deployment, Extractor, Joiner
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_join
from fkjoin.kafka.wire import Wire
from fkjoin.lowering.handle import planned_of
from fkjoin.lowering.recipes import remembered
from fkjoin.stages import How
from fkjoin.table import Table


@remembered
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
    wire: Wire = "headers",
    emit: Emit = "on-change",
    validate: bool | None = None,
    spread: int = 1,
) -> Table:
    """Join all left rows with the right row that their foreign key names, kept up to date (KIP-213).

    Parameters
    ----------
    left : Table
        The table whose rows have a foreign key.  The result has its key.
    right : Table
        The table whose key the foreign keys name.
    extractor : str, Column, list of them, or callable
        The foreign key of a left row: column name or names, Column, SQL text, or a Python callable of (key, row).  The
        callable returns it, a tuple for several columns.  Null, or a null in any of its columns: no foreign key.
    how : {"inner", "left"}, default "inner"
        ``"left"`` keeps left rows without a right row.
    joiner : str, Column, list of them, or callable, optional
        The columns of a joined row.  If left out: both rows, as structs ``left`` and ``right``.

        - Columns or SQL texts are over ``left.…`` and ``right.…``.
        - Or a callable of (left row, right row).  A Spark UDF's type says the columns: the fields of a struct, else ``value``.
          Of others the return annotation says the type of ``value``: bool, int, float, str, or one of them or None.  Without
          one, ``value`` is the JSON of what it returns, which may be anything that JSON can write.
        - A joiner's null is "no result".
    name : str, optional
        The name of state and metrics; generated from the rest if left out.
    deployment : {"fused", "staged"}, default "fused"
        ``"fused"``: all stages in one query.  ``"staged"``, for tables read from topics: rekey and subscription are queries of
        their own (``Table.stages``, each to be started).  They and resolve are connected by the topics
        ``APPLICATION-JOIN-subscription-registration`` and ``…-subscription-response``.
    application : str, optional
        The beginning of the names of such topics; by default the Spark application's name.
    wire : {"headers", "wrapper"}, default "headers"
        The format of records between stages; ``"wrapper"`` is KIP-213's format without headers.
    emit : {"on-change", "on-update", "periodic", "periodic 10 seconds", …}, default "on-change"
        When a joined row is sent.  ``"on-change"`` drops what leaves it unchanged (KIP-557).  With ``"on-update"`` it is sent
        in every batch that brought a newer version of either of its sides.  ``"periodic 10 seconds"`` (``"periodic"``: a
        minute) sends its last result when such an interval is over, if it differs from what was sent last.
    validate : bool, optional
        Whether to check the stores' invariants after every batch, and stop with an ``InvariantError`` when one does not hold.
        Every batch then reads all state.  By default what the setting ``spark.fkjoin.validate`` says, else no.
    spread : int, default 1
        The number of buckets over which the left rows of one foreign key are spread, for right rows with very many of them.
        Each right row is kept so many times.  Like the number of buckets, it is decided at the first start.

    Returns
    -------
    Table

    Raises
    ------
    TopologyError
        If an argument is wrong; the message says which, and why.

    Examples
    --------
    >>> joined = fk_join(orders, customers, "customer_id", how="left", joiner=["left.amount", "right.name"])
    """
    made = planned_join(
        planned_of("left", left),
        planned_of("right", right),
        extractor,
        how=how,
        joiner=joiner,
        name=name,
        deployment=deployment,
        application=application,
        wire=wire,
        emit=emit,
        validate=validate,
        spread=spread,
    )
    return left._of(made)
