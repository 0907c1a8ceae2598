"""``fk_join``: foreign keys and joiners checked, before anything of the join is a frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from fkjoin.analysis.checks import (
    Deployment,
    Extractor,
    Joiner,
    as_emitted,
    described,
    refuse_to_start_over,
    require_same_timestamps,
    staged_application,
)
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.joiner import (
    BoundJoiner,
    ForeignKey,
    bound_foreign_key,
    bound_joiner,
    written_out,
)
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of
from fkjoin.errors import TopologyError
from fkjoin.kafka.internal import InternalTopics, TopicSettings
from fkjoin.kafka.staged import internal_topics
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Join, Source, View, generated_name
from fkjoin.sessions.settings import BUCKETS, prepare
from fkjoin.spark.names import require_beside
from fkjoin.spark.schemas import arrow_schema, spark_schema
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.stages.contribute import Place
from fkjoin.stages.join_rows import HowByKey, require_how


@dataclass(frozen=True, eq=False)
class JoinBound(OperatorBound):
    """Needs of lowering a join, besides its node."""

    operator = "join"
    foreign_key: ForeignKey
    joiner: BoundJoiner
    fields: Mapping[str, Place] | None
    """Columns of a joined row, and of its key, if they are fields of both rows."""
    places: Mapping[str, Place]
    """Those columns that are."""
    topics: InternalTopics | None
    """Topics of a staged join."""


def planned_join(
    left: Planned,
    right: Planned,
    *,
    extractor: Extractor,
    how: HowByKey,
    joiner: Joiner | None,
    name: str | None,
    deployment: Deployment,
    application: str | None,
    emit: Emit,
    settings: Settings,
    spread: int = 1,
    argument: str = "extractor",
) -> Planned:
    """See ``fk_join``.  Raises ``TopologyError``.

    ``argument``: what the caller calls the extractor.
    """
    named = require_how(how)
    emission = Emission.of(emit)
    require_same_timestamps(left, right)
    prepare(left.spark)
    joiner = written_out(joiner, left, right)
    foreign_key = bound_foreign_key(left, right, extractor, argument)
    by = described(extractor, "key", "row")
    joiner_text = None if joiner is None else described(joiner, "left", "right")
    label = (
        name
        or f"{left.name}-{right.name}-{generated_name(left.name, right.name, by, how, joiner_text)}"
    )
    _require_spread(spread, settings.buckets, deployment)
    topics = _internal_topics(deployment, application, join=label, left=left, right=right)
    through = None
    if topics is not None:
        registration, response = topics.partitions
        through = registration, response
    node = Join(label, left.node, right.node, named, by, joiner_text, through, emit, spread=spread)
    bound, key, row = joined_rows(label, left, right, joiner, how)
    places, every = _places(bound, left)
    fields = places if every else None
    needs = JoinBound(emission, settings, foreign_key, bound, fields, places, topics)
    return made_of((left, right), node, key, row, needs, kind="join")


def joined_rows(
    label: str, left: Planned, right: Planned, joiner: Joiner | None, how: HowByKey
) -> tuple[BoundJoiner, StructType, StructType]:
    """The joiner of the join with that ``label``, and the types of its rows' keys and its rows."""
    left_row, right_row = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    key = arrow_schema("left", left.key_type)
    answers = UnpackAnswers(left_row, right_row, how, key)
    rows = left.spark.createDataFrame([], spark_schema(answers.schema))
    bound = bound_joiner(label, joiner, rows, left.on_error)
    hint = ["name the result's columns in a joiner"] if joiner is None else []
    require_beside(left.key, "joiner", bound.result.names, *hint)
    return bound, spark_schema(key), as_emitted("joiner", bound.result)


def _require_spread(spread: int, buckets: int, deployment: Deployment) -> None:
    """Raise ``TopologyError`` if left rows cannot be spread over so many buckets."""
    if isinstance(spread, bool) or not isinstance(spread, int) or not 1 <= spread <= buckets:
        raise TopologyError(
            f"spread: {spread!r} is not a number from 1 to {buckets}, the number of buckets; "
            f"set {BUCKETS} before the first start to have more"
        )
    if spread > 1 and deployment == "staged":
        raise TopologyError(
            "spread: a staged join distributes its rows by the partitions of its topics; leave "
            "spread out, or leave the deployment fused"
        )


def _internal_topics(
    deployment: Deployment, application: str | None, *, join: str, left: Planned, right: Planned
) -> InternalTopics | None:
    """The topics of a staged join; None for a fused one."""
    name = staged_application(left.spark, deployment, application)
    if name is None:
        return None
    for argument, table in (("left", left), ("right", right)):
        if table.connection is None or not _of_source(table.node):
            raise TopologyError(
                f"{argument}: a staged join reads topics (Table.from_kafka), and {table.name} is "
                "not read from one; write it to a topic first, or leave the deployment fused"
            )
        refuse_to_start_over(argument, table)
    assert left.connection is not None
    assert right.connection is not None
    return internal_topics(
        name, join, left.connection, right.connection, settings=TopicSettings.of(left.spark)
    )


def _of_source(node: Node) -> bool:
    """Tell whether the node's rows, and so their versions, are a source's."""
    while isinstance(node, View):
        node = node.table
    return isinstance(node, Source)


def _places(joiner: BoundJoiner, left: Planned) -> tuple[dict[str, Place], bool]:
    """The places of columns of a joined row that are fields of the inputs' rows; and if all are."""
    places: dict[str, Place] = {name: ("key", (name,)) for name in left.key}
    if joiner.both_rows:
        return places | {"left": ("left", ()), "right": ("right", ())}, True
    if joiner.bound is None:
        return places, False
    every = True
    for column in joiner.bound:
        # A struct that stands alone becomes the row itself.
        alone = len(joiner.bound) == 1 and isinstance(column.field.dataType, StructType)
        path, name = column.path, column.field.name
        if path is None or len(path) < 2 or alone or name in places:
            every = False
        else:
            places[name] = ("left" if path[0] == "left" else "right", path[1:])
    return places, every
