"""``Table.group_by``: groups, what rows contribute, and what is made of it, checked."""

from __future__ import annotations

from dataclasses import dataclass

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.checks import Deployment, as_emitted, refuse_same_name, refuse_to_start_over, require_deployment
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import Planned, Settings
from fkjoin.analysis.projection import Projection
from fkjoin.errors import TopologyError
from fkjoin.folds.fold import Fold
from fkjoin.kafka.repartition import RepartitionTopic, require_release
from fkjoin.plan.nodes import Aggregate, generated_name
from fkjoin.sessions.access import access, require_classic
from fkjoin.spark.names import require_beside
from fkjoin.spark.schemas import arrow_schema, require_plain_keys, spark_schema


@dataclass(frozen=True)
class Options:
    """The arguments of ``Table.group_by`` besides key and value."""

    name: str | None = None
    emit: Emit = "on-change"
    deployment: Deployment = "fused"
    application: str | None = None
    upgrade_from: str | None = None
    validate: bool | None = None


@dataclass(frozen=True, eq=False)
class AggregateBound:
    """The facts that lowering an aggregate needs besides its node."""

    key: Projection
    value: Projection
    tried: Attempt
    """The columns of groups' keys, and those of values."""
    fold: Fold
    topic: RepartitionTopic | None
    """The topic between the stages of a staged aggregate; None where both are in one query."""
    upgrade_from: str | None
    emission: Emission
    settings: Settings


def aggregated(
    table: Planned, key: Projection, value: Projection, fold: Fold, columns: tuple[tuple[str, str], ...], options: Options
) -> Planned:
    """The table of ``fold`` over what the rows contribute, by ``key``; ``columns``: names and descriptions of its columns.

    Raises ``TopologyError``.
    """
    emission = Emission.of(options.emit)
    require_deployment(options.deployment)
    if options.upgrade_from is not None and options.deployment == "fused":
        raise TopologyError('upgrade_from: it is for deployment="staged"; a fused aggregate has no topic to write to')
    label = options.name or f"{table.name}-by-{generated_name(table.name, key.texts, value.texts, columns)}"
    refuse_same_name(label, (table.node,), "aggregate")
    keys = tuple(key.schema.names)
    require_plain_keys("key", key.schema)
    require_beside(keys, "agg", fold.schema.names, "give it another name")
    topic = None
    if options.deployment == "staged":
        require_classic(table.spark, 'deployment="staged"', "leave the deployment fused")
        application = options.application or access(table.spark).application()
        topic = RepartitionTopic.of(application, label, table.connection, table.name)
        refuse_to_start_over("deployment", table)
        require_release(options.upgrade_from)
    through = None if topic is None else topic.name
    node = Aggregate(label, table.node, keys, key.texts, value.texts, columns, options.emit, through)
    arrow_schema("key", table.key_type)
    tried = attempt("group_by", table.name, (*key.bound, *value.bound), table.on_error)
    settings = Settings.of(table.spark, options.validate)
    return Planned(
        node,
        as_emitted("key", key.schema),
        spark_schema(fold.schema),
        table.spark,
        AggregateBound(key, value, tried, fold, topic, options.upgrade_from, emission, settings),
        (table,),
        table.timestamps,
        table.on_error,
        table.connection,
    )
