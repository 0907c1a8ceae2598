"""Parts of plans that operators have in common.

They are stages and what these say of their state, packing, and the rows of results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from fkjoin.analysis.planned import Settings
from fkjoin.plan.base import Node, unkept
from fkjoin.plan.nodes import join_below, read_from
from fkjoin.plan.physical import Counted, InWorkers, Physical, Picked, Stage, by_spark
from fkjoin.plan.rules import STAGES_SHARE_AN_OPERATOR
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.identity import identity_text
from fkjoin.spark.packing import Pack
from fkjoin.spark.specs import StageSpec, StateSpec


def state_spec(
    settings: Settings,
    kind: type[StageSpec],
    node: Node,
    *,
    bound_to: Mapping[str, Any],
    about: Mapping[str, Any],
    reads: Iterable[Node] | None = None,
    spread: int = 1,
) -> StateSpec:
    """Make what a stage of the planned node says of its state, under the settings of its call.

    ``bound_to``: facts that its checkpoint is bound to, besides name, stage, buckets and tables;
    ``about``: what is kept for tools that read the state, types among it; ``reads``: tables whose
    rows are kept, if they are not the node's inputs.
    """
    tables = list(node.inputs if reads is None else reads)
    facts = {"join": node.name, "stage": kind.stage, "buckets": settings.buckets, **bound_to}
    facts["of"] = [table.name for table in tables]
    facts["tables"] = unkept(*tables)
    if spread > 1:
        facts["spread"] = spread
    together = settings.buckets == 1 and STAGES_SHARE_AN_OPERATOR not in settings.off
    if together:
        facts["together"] = True
    texts = dict(about)
    for name, item in about.items():
        if isinstance(item, DataType):
            texts[name] = json.loads(item.json())
    return StateSpec(
        node.name,
        settings.buckets,
        settings.retention_ms,
        settings.index_dir,
        identity_text(facts, texts),
        settings.validate,
        spread,
        together,
    )


def let_through(node: Node) -> bool:
    """Tell whether the node's changes come in the order in which an operator let them through.

    Not the changes of a source, nor of a staged join: its answers may be read in the place of its
    rows, and overtake each other in a topic.
    """
    join = join_below(node)
    return read_from(node) is None and (join is None or join.topics is None)


def counted(envelopes: Physical, spec: StageSpec) -> Counted:
    """Envelopes through the last stage of an operator, whose counters are summed up."""
    return Counted(Stage(envelopes, spec), spec.state.operator, (spec.stage,))


def packed(rows: Physical, pack: Pack, *columns: str, **others: Column) -> InWorkers:
    """Rows of a table, packed.

    ``columns``: those that packing gets besides; ``others``: expressions in the place of some of a
    table's columns, or besides.
    """
    if not columns and not others:
        return InWorkers(Picked(rows, _INTERNAL), pack, ENVELOPE)
    chosen = by_spark(lambda frame: frame.select(*packing_columns(**others), *columns), rows)
    return InWorkers(chosen, pack, ENVELOPE)


def framed(
    rows: DataFrame, key: str, deleted: Column, problem: Column, *columns: Column
) -> DataFrame:
    """The frame of a table, from rows that have a ``row``, ``version`` and ``ts``."""
    return rows.select(
        F.col(key).alias(KEY),
        F.col("row").alias(ROW),
        deleted.alias(DELETED),
        F.col("version").alias(VERSION),
        F.lit(None).cast("binary").alias(SOURCE),
        F.col("ts").alias(TS),
        problem.alias(PROBLEM),
        *columns,
    )


_INTERNAL = {
    "key": KEY,
    "row": ROW,
    "deleted": DELETED,
    "version": VERSION,
    "source": SOURCE,
    "ts": TS,
    "problem": PROBLEM,
}


def packing_columns(**others: Column) -> list[Column]:
    """Columns of a table's frame under the names that packing knows them by.

    ``others`` come in the place of some, or after.
    """
    columns = {name: F.col(internal) for name, internal in _INTERNAL.items()}
    return [column.alias(name) for name, column in (columns | others).items()]
