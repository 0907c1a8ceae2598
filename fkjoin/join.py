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
) -> Table:
    """The table of all left rows with the right row that their foreign key names, kept up to date (KIP-213).

    ``extractor``: the foreign key of a left row: column name or names, Column, SQL text, or a Python callable of (key,
    row) that returns it (a tuple for several columns).  Null, or a null in any of its columns: no foreign key.
    ``how``: ``inner``, or ``left`` to keep left rows without a right row.
    ``joiner``: what a joined row is made of.  None: both rows, as structs ``left`` and ``right``.  Columns or SQL texts over
    ``left.…`` and ``right.…``; or a callable of (left row, right row), which returns a Spark UDF's type, or what its return
    annotation (bool, int, float, str, or one of them or None) says, or anything that JSON can write, as one column ``value``.
    A joiner's null is "no result".
    ``name``: names state and metrics; generated from the rest if left out.

    ``deployment``: ``fused``, all stages in one query; or ``staged``, for tables read from topics: rekey and subscription are
    queries of their own (``Table.stages``, each to be started), connected with resolve by the topics
    ``APPLICATION-JOIN-subscription-registration`` and ``…-subscription-response``.  ``application``: by default the Spark
    application's name.  ``wire``: ``headers``, or ``wrapper`` for KIP-213's format without headers.

    ``emit``: ``on-change`` drops what leaves a joined row as it is (KIP-557); with ``on-update`` a row is sent in every batch
    that brought a newer version of either of its sides; ``periodic 10 seconds`` (``periodic``: a minute) sends a row's last
    result when such an interval is over, if it differs from what was sent last.

    ``validate``: check the stores' invariants after every batch, and stop with an ``InvariantError`` when one does not hold;
    every batch then reads all state.  By default what the setting ``spark.fkjoin.validate`` says, else no.

    The result has the left table's key.  Raises ``TopologyError`` that says which argument is wrong, and why.
    """
    made = planned_join(
        planned_of("left", left),
        planned_of("right", right),
        extractor,
        how,
        joiner,
        name,
        deployment=deployment,
        application=application,
        wire=wire,
        emit=emit,
        validate=validate,
    )
    return left._of(made)
