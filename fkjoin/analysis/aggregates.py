"""``Table.group_by``: groups, what rows contribute, and what is made of it, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DataType, StructType

from fkjoin.analysis.attempt import Attempt, attempt
from fkjoin.analysis.bound import Scope, bind
from fkjoin.analysis.checks import Deployment, as_emitted, refuse_same_name, refuse_to_start_over, require_deployment
from fkjoin.analysis.columns import column_of, resolve_column, said_once
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import Planned, Settings
from fkjoin.analysis.projection import Projection
from fkjoin.analysis.vectorize import scalar_of
from fkjoin.analysis.windows import Closes, Window, windowed
from fkjoin.codec.expressions import Part
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.folds.fold import Fold, Having
from fkjoin.kafka.internal import TopicSettings
from fkjoin.kafka.repartition import RepartitionTopic, require_older_version
from fkjoin.plan.nodes import Aggregate, generated_name
from fkjoin.sessions.access import access, require_classic
from fkjoin.spark.names import require_beside
from fkjoin.spark.schemas import Expression, arrow_schema, require_plain_keys, spark_schema, text


@dataclass(frozen=True)
class Options:
    """The arguments of ``Table.group_by`` besides key and value."""

    name: str | None = None
    emit: Emit = "on-change"
    deployment: Deployment = "fused"
    application: str | None = None
    upgrade_from: int | None = None
    grace: str | None = None
    idle: str | None = None
    ahead: str | None = None
    window: Window | None = None
    """The window among the keys."""


@dataclass(frozen=True, eq=False)
class AggregateBound:
    """The facts that lowering an aggregate needs besides its node."""

    operator: ClassVar[str] = "aggregate"
    key: Projection
    value: Projection
    tried: Attempt
    """The columns of groups' keys, and those of values."""
    fold: Fold
    topic: RepartitionTopic | None
    """The topic between the stages of a staged aggregate; None where both are in one query."""
    upgrade_from: int | None
    emission: Emission
    settings: Settings
    closes: Closes | None = None
    """The times at which windows close; None where groups are no windows."""


def condition_on(given: Expression, spark: SparkSession, key: StructType, columns: pa.Schema) -> Having:
    """The condition ``having`` on the columns of a result, and those of its key.  Raises ``TopologyError``."""
    kind = StructType([*spark_schema(columns), *(field for field in key if field.name not in columns.names)])
    scope = Scope(spark.createDataFrame([], kind), tuple(kind.names), "the result", arrow_schema("having", kind))
    (bound,) = bind("having", [given], scope)
    if not isinstance(bound.field.dataType, BooleanType):
        said = f"{text(given)} is {bound.field.dataType.simpleString()}"
        raise ColumnTypeError(f"having: {said}, a boolean is needed: write a comparison")
    if bound.vector is None:
        raise TopologyError(f"having: only Spark can evaluate {text(given)}; write agg(…).filter(…), without having")
    return Having(bound.vector, arrow_schema("key", key), text(given))


def bound_step(argument: str, given: Expression, rows: DataFrame, kind: DataType) -> Part:
    """An adder or subtractor over the columns of ``rows``, cast to the aggregate's type.  Raises ``TopologyError``."""
    try:
        with said_once():
            return scalar_of(argument, column_of(argument, given, rows.columns).cast(kind), rows)
    except AnalysisException as error:
        found = rows.select(resolve_column(argument, given, rows, rows.columns, "aggregate, key and value")).schema[0].dataType
        said = f"{text(given)} is {found.simpleString()}"
        raise ColumnTypeError(
            f"{argument}: {said}, the aggregate is {kind.simpleString()}: cast it, or give returns="
        ) from error


def aggregated(
    table: Planned,
    key: Projection,
    value: Projection,
    *,
    fold: Fold,
    columns: tuple[tuple[str, str], ...],
    options: Options,
    settings: Settings,
) -> Planned:
    """The table of ``fold`` over what the rows contribute, by ``key``; ``columns``: names and descriptions of its columns.

    Raises ``TopologyError``.
    """
    closes = Closes.of(options.window, options.emit, grace=options.grace, idle=options.idle, ahead=options.ahead)
    emission = Emission.of(options.emit, windows=closes is not None)
    require_deployment(options.deployment)
    if options.upgrade_from is not None and options.deployment == "fused":
        raise TopologyError('upgrade_from: it is for deployment="staged"; a fused aggregate has no topic to write to')
    having = None if fold.having is None else fold.having.text
    grouped_by = key.texts if closes is None else (closes.window.text, *key.texts[1:])
    said = table.name, grouped_by, value.texts, columns, *([] if having is None else [having])
    label = options.name or f"{table.name}-by-{generated_name(*said)}"
    refuse_same_name(label, (table.node,), "aggregate")
    key_type = key.schema if closes is None else windowed(key.schema)
    keys = tuple(key_type.names)
    require_plain_keys("key", key_type)
    if closes is not None:
        closes.check(table, key.schema, options.deployment)
    require_beside(keys, "agg", fold.schema.names, "give it another name")
    topic = None
    if options.deployment == "staged":
        require_classic(table.spark, 'deployment="staged"', "leave the deployment fused")
        application = options.application or access(table.spark).application()
        topic = RepartitionTopic.of(application, label, table.connection, table.name, settings=TopicSettings.of(table.spark))
        refuse_to_start_over("deployment", table)
        require_older_version(options.upgrade_from)
    through = None if topic is None else topic.last
    node = Aggregate(label, table.node, keys, grouped_by, value.texts, columns, options.emit, through, having=having)
    if closes is not None:
        node = replace(node, closes=(closes.grace, closes.idle, closes.ahead))
    arrow_schema("key", table.key_type)
    tried = attempt("group_by", table.name, (*key.bound, *value.bound), table.on_error)
    return Planned(
        node,
        as_emitted("key", key_type),
        spark_schema(fold.schema),
        table.spark,
        AggregateBound(key, value, tried, fold, topic, options.upgrade_from, emission, settings, closes),
        (table,),
        table.timestamps,
        table.on_error,
        table.connection,
    )
