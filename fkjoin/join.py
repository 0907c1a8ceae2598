"""``fk_join``: checks what it is given; ``join_plan`` makes a table of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pyarrow as pa

from fkjoin.analysis.bind import named_fields
from fkjoin.errors import TopologyError
from fkjoin.kafka.staged import InternalTopics, internal_topics
from fkjoin.kafka.wire import WIRES, Wire
from fkjoin.lowering.emission import Emission, Emit
from fkjoin.lowering.foreign_keys import described, require_same_timestamps, require_table, with_foreign_key
from fkjoin.lowering.joiner import is_function, written_out
from fkjoin.lowering.joins import JoinPlan
from fkjoin.lowering.multi_join import share, star_table
from fkjoin.lowering.recipes import refuse_to_start_over, remembered
from fkjoin.lowering.stage import Deployment, refuse_same_name
from fkjoin.plan.nodes import Derived, Join, Node, Source, generated_name
from fkjoin.sessions.settings import prepare, switched_off, validated
from fkjoin.spark.json_lines import kind_at
from fkjoin.spark.names import require_beside
from fkjoin.spark.schemas import arrow_schema, listed
from fkjoin.stages import How
from fkjoin.stages.contribute import Place
from fkjoin.table import Extractor, Joiner, Table


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
    require_table("left", left)
    require_table("right", right)
    if how not in get_args(How):
        raise TopologyError(f'how: {how!r} is not one of "inner", "left"')
    emission = Emission.of(emit)
    require_same_timestamps(left, right)
    spark = left.frame.sparkSession
    prepare(spark)
    joiner = written_out(joiner, left, right)
    rows = with_foreign_key(left, right, extractor)
    by = described(extractor, "key", "row")
    joining = None if joiner is None else described(joiner, "left", "right")
    label = name or f"{left.name}-{right.name}-{generated_name(left.name, right.name, by, how, joining)}"
    refuse_same_name(label, (left.node, right.node), "join")
    topics = _internal_topics(deployment, application, wire, label, left, right)
    through = None if topics is None else (topics.registration, topics.response)
    node = Join(label, left.node, right.node, how, by, joining, through, emit)

    plan = JoinPlan(
        *(left, right, extractor, joiner, node, switched_off(spark), emission, topics, rows),
        fields=_fields(joiner, left, arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)),
        validate=validated(spark) if validate is None else validate,
    )
    node, joins = share(node, plan.off, left, right, extractor, plan.fields, plan.alone)
    if joins is not None:
        require_beside(left.key, "joiner", (name for name in plan.fields or () if name not in left.key))
        return star_table(node, plan.off, joins, left, emission, plan.dead, validate=plan.validate)
    return replace(plan, node=node).table()


def _internal_topics(
    deployment: Deployment, application: str | None, wire: Wire, join: str, left: Table, right: Table
) -> InternalTopics | None:
    """The topics of a staged join; None for a fused one."""
    if deployment not in get_args(Deployment):
        raise TopologyError(f'deployment: {deployment!r} is not one of "fused", "staged"')
    if wire not in WIRES:
        raise TopologyError(f'wire: {wire!r} is not one of "headers", "wrapper"')
    if deployment == "fused":
        return None
    for argument, table in (("left", left), ("right", right)):
        if table.connection is None or not _of_source(table.node):
            raise TopologyError(
                f"{argument}: the staged deployment joins tables read from topics (Table.from_kafka), {table.name} is none; "
                "write it to a topic first, or leave the deployment fused"
            )
        refuse_to_start_over(argument, table)
    assert left.connection is not None
    assert right.connection is not None
    name = application or str(left.frame.sparkSession.sparkContext.appName)
    return internal_topics(name, join, left.connection, right.connection, wire)


def _of_source(node: Node) -> bool:
    """Tell whether the node's rows, and so their versions, are a source's."""
    while isinstance(node, Derived):
        node = node.table
    return isinstance(node, Source)


def _fields(joiner: Joiner | None, left: Table, left_row: pa.Schema, right_row: pa.Schema) -> dict[str, Place] | None:
    """Where the columns of a joined row are to be had; None if they are more than fields of the inputs' rows."""
    found: dict[str, Place] = {name: ("key", (name,)) for name in left.key}
    if joiner is None:
        return found | {"left": ("left", ()), "right": ("right", ())}
    rows = pa.schema([("left", pa.struct(list(left_row))), ("right", pa.struct(list(right_row)))])
    if is_function(joiner):
        return None
    named = named_fields(listed(joiner), rows, left.frame.sparkSession)
    for name, path in named or ():
        alone = len(named or ()) == 1 and pa.types.is_struct(kind_at(rows, path))  # it becomes the row itself
        if len(path) < 2 or alone or name in found:
            return None
        found[name] = ("left" if path[0] == "left" else "right", path[1:])
    return None if named is None else found
