"""``Table.group_by``: regroup by row, then aggregate by group, or close of windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from fkjoin.analysis.attempt import Attempt, as_json, attempt
from fkjoin.analysis.bound import Projection, Scope, bound_condition
from fkjoin.analysis.checks import as_emitted, refuse_to_start_over, staged_application
from fkjoin.analysis.columns import column_of, resolve_column, said_once
from fkjoin.analysis.emission import Emission
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of, sources_below
from fkjoin.analysis.vectorize import scalar_of
from fkjoin.analysis.windows import Closes, Options, sources_of, windowed
from fkjoin.codec.expressions import Part
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.folds.fold import Fold, Having
from fkjoin.kafka.internal import InternalTopics, StageQuery, TopicSettings
from fkjoin.kafka.staged import (
    read_back,
    repartition_topic,
    to_records,
)
from fkjoin.lowering.stage import counted, let_through, packing_columns, state_spec
from fkjoin.lowering.table_plan import TablePlan, paced, pack_rows, table_of
from fkjoin.lowering.workers import contributing, read_by_workers
from fkjoin.plan.nodes import Aggregate, fired, generated_name, read_from
from fkjoin.plan.optimizer import aggregate_reads_answers, workers_evaluate_steps
from fkjoin.plan.physical import (
    Counted,
    InWorkers,
    MessagesOnly,
    Physical,
    Stage,
    Ticks,
    Union,
    by_spark,
    reads,
    topics_read,
)
from fkjoin.plan.rules import AGGREGATE_READS_ANSWERS, WORKERS_EVALUATE_STEPS
from fkjoin.spark.arrivals import GreatestTime, UntilBatchTime
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED, LEFT_GONE, PROBLEM, RAW, TS
from fkjoin.spark.names import require_beside
from fkjoin.spark.packing import PackRows
from fkjoin.spark.schemas import (
    Expression,
    arrow_schema,
    column_texts,
    require_plain_keys,
    spark_schema,
    text,
)
from fkjoin.spark.specs import AggregateSpec, CloseSpec, RegroupSpec, StageSpec, StateSpec
from fkjoin.spark.stepped import RowsAsTheyAre
from fkjoin.spark.unpacking import UnpackLate, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, ContributeRows
from fkjoin.stages.close import Closing
from fkjoin.stages.contribute import Contribute
from fkjoin.stages.time_windows import TimeWindows


@dataclass(frozen=True, eq=False)
class AggregateBound(OperatorBound):
    """The facts that lowering an aggregate needs besides its node."""

    operator = "aggregate"
    key: Projection
    value: Projection
    tried: Attempt
    """The columns of groups' keys, and of values."""
    fold: Fold
    topic: InternalTopics | None
    """The topic between the stages of a staged aggregate; None where both are in one query."""
    closes: Closes | None = None
    """The times at which windows close; None where groups are not windows."""


def condition_on(
    condition: Expression, spark: SparkSession, key: StructType, columns: pa.Schema
) -> Having:
    """The condition ``having`` on the columns of a result and of its key.

    Raises ``TopologyError``.
    """
    kind = StructType(
        [*spark_schema(columns), *(field for field in key if field.name not in columns.names)]
    )
    scope = Scope(
        spark.createDataFrame([], kind),
        tuple(kind.names),
        "the result",
        arrow_schema("having", kind),
    )
    bound = bound_condition("having", condition, scope)
    if bound.vector is None:
        raise TopologyError(
            f"having: only Spark can evaluate {text(condition)}; "
            "write agg(…).filter(…), without having"
        )
    return Having(bound.vector, arrow_schema("key", key), text(condition))


def bound_step(argument: str, step: Expression, rows: DataFrame, kind: DataType) -> Part:
    """An adder or subtractor over the columns of ``rows``, cast to the aggregate's type.

    Raises ``TopologyError``.
    """
    try:
        with said_once():
            return scalar_of(argument, column_of(argument, step, rows.columns).cast(kind), rows)
    except AnalysisException as error:
        column = resolve_column(argument, step, rows, rows.columns, "aggregate, key and value")
        own_kind = rows.select(column).schema[0].dataType
        mismatch = f"{text(step)} is {own_kind.simpleString()}"
        raise ColumnTypeError(
            f"{argument}: {mismatch}, the aggregate is {kind.simpleString()}: "
            "cast it, or give returns="
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
    """The table of ``fold`` over what the rows contribute, by ``key``.

    ``columns``: names and descriptions of its columns.  Raises ``TopologyError``.
    """
    closes = Closes.of(options)
    emission = Emission.of(options.emit, windows=closes is not None)
    application = staged_application(table.spark, options.deployment, options.application)
    having = None if fold.having is None else fold.having.text
    grouped_by = key.texts if closes is None else (closes.window.text, *key.texts[1:])
    facts = table.name, grouped_by, value.texts, columns, *([] if having is None else [having])
    label = options.name or f"{table.name}-by-{generated_name(*facts)}"
    key_type = key.schema if closes is None else windowed(key.schema)
    keys = tuple(key_type.names)
    require_plain_keys("key", key_type)
    if closes is not None:
        closes.check(table, key.schema, options.deployment)
    require_beside(keys, "agg", fold.schema.names, "give it another name")
    topic = None
    if application is not None:
        read = {source.name: source.connection for source in sources_below(table)}
        topic = repartition_topic(application, label, read, settings=TopicSettings.of(table.spark))
        refuse_to_start_over("deployment", table)
    through = None if topic is None else topic.last
    node = Aggregate(
        label,
        table.node,
        keys,
        grouped_by,
        value.texts,
        columns,
        options.emit,
        through,
        having=having,
    )
    if closes is not None:
        node = replace(node, closes=(closes.grace, closes.idle, closes.ahead))
    arrow_schema("key", table.key_type)
    tried = attempt("group_by", table.name, (*key.bound, *value.bound), table.on_error)
    needs = AggregateBound(emission, settings, key, value, tried, fold, topic, closes)
    kinds = as_emitted("key", key_type), spark_schema(fold.schema)
    return made_of((table,), node, *kinds, needs, kind="aggregate")


def plan_aggregate(planned: Planned, table: TablePlan) -> TablePlan:
    """The table of what the rows of each group come to."""
    return AggregatePlan(planned, table).plan()


class _Contributed(NamedTuple):
    """Contributions that come to regroup."""

    node: Aggregate
    """After all rules."""
    envelopes: Physical
    contribute: Contribute | ContributeRows | None = None
    """Function that makes contributions of a join's answers, where those come."""


@dataclass(frozen=True, eq=False)
class AggregatePlan:
    """An aggregate of a table; its parts are made when they are asked for."""

    planned: Planned
    table: TablePlan

    def plan(self) -> TablePlan:
        """The table of the groups' rows."""
        table, bound, label = self.table, self._bound, self.planned.name
        grouped = self.contributions(every=bound.emission.every)
        queries = table.stages
        dead = (*table.dead, *table.dead_of(bound.tried, label))
        if bound.topic is not None:
            records = to_records(grouped, bound.topic)
            subscribed = topics_read(records)
            read = {
                stage.topics.last: stage.topics.connection
                for stage in queries
                if stage.topics.last in subscribed
            }
            about = records, bound.topic, bound.topic.reads, read
            queries = (*queries, StageQuery(f"{label}-regroup", table.spark, *about))
            grouped, unreadable = read_back(
                table.spark, bound.topic, bound.fold.value, bound.settings.buckets
            )
            raw = F.col(RAW).withField("table", F.lit(label))
            dead = (*dead, by_spark(lambda frame: frame.withColumn(RAW, raw), unreadable))
        if self._closing is not None:
            dead = (*dead, *self._late(self._closing))
            closes = self._closes(self._closing)
            timed = _with_time(grouped, self._readings, closes)
            results: Physical = counted(timed, closes)
        else:
            results = self._aggregated(grouped)
        key = arrow_schema("key", self.planned.key_type)
        node = self._contributed.node
        unpack = UnpackResults(key, (bound.fold.schema,), node.versions)
        grouping = table_of(self.planned, node, results, unpack, dead=dead, stages=queries)
        return replace(grouping, contributions=self.contributions)

    def contributions(
        self,
        *,
        every: bool,
        number: int | None = None,
        reader: str | None = None,
        letters: bool = False,
    ) -> Physical:
        """Envelopes of ``GROUPED``.

        ``every``: also of updates that contribute what they did.  ``number``: the table's number in
        a cogroup that folds them itself.  ``reader``: what else than the aggregate reads them,
        since Spark counts by name.  ``letters``: rows that are set aside, too.
        """
        spec = RegroupSpec(
            self._state(RegroupSpec, None),
            as_read=read_from(self.table.node) is not None,
            in_order=self._bound.topic is None and let_through(self.table.node),
            every=every,
            from_answers=self._contributed.contribute,
            number=number,
            windows=None if self._closing is None else self._closing.windows,
            letters=letters,
        )
        name = f"{self.planned.name}-regroup"
        if reader is not None:
            name = f"{name}-for-{reader}"
        regrouped = Stage(self._contributed.envelopes, spec)
        return MessagesOnly(Counted(regrouped, name, ("regroup",)))

    @property
    def _bound(self) -> AggregateBound:
        return self.planned.bound

    @cached_property
    def _group(self) -> pa.Schema:
        return arrow_schema("key", self._bound.key.schema)

    @cached_property
    def _row_key(self) -> pa.Schema:
        return arrow_schema("key", self.table.key_type)

    @cached_property
    def _closing(self) -> Closing | None:
        """The times at which windows of the table close."""
        closes = self._bound.closes
        if closes is None:
            return None
        window = closes.window
        windows = TimeWindows(window.size_us, window.slide_us, self._group, closes.ahead_us)
        names = tuple(reading.source.name for reading in self._readings)
        return Closing(windows, closes.grace_us, names, closes.idle_ms)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """Facts that the checkpoint is bound to."""
        key, value, fold = self._bound.key, self._bound.value, self._bound.fold
        assert isinstance(self.planned.node, Aggregate)
        columns = self.planned.node.columns
        types = zip(value.texts, fold.value, strict=True)
        # The store of a fused one does not know what each row contributed.
        deployment = "fused" if self._bound.topic is None else "staged"
        facts = {
            "deployment": deployment,
            "grouped_by": list(key.texts),
            "value": [f"{item}: {field.type}" for item, field in types],
            "columns": [
                f"{title} = {column}: {fold.schema.field(title).type}" for title, column in columns
            ],
            "key": column_texts(self._group),
            "row_key": column_texts(self._row_key),
        }
        if fold.having is not None:
            facts["having"] = fold.having.text
        if self._closing is not None:
            windows = self._closing.windows
            facts["windows"] = [str(windows.size), str(windows.slide)]
            facts["sources"] = list(self._closing.sources)
        return facts

    @cached_property
    def _about(self) -> dict[str, Any]:
        bound = self._bound
        about: dict[str, Any] = {
            "key": bound.key.schema,
            "row_key": self.table.key_type,
            "value": bound.value.schema,
            "result": spark_schema(bound.fold.schema),
            "versions": [["version", 1]],
        }
        if bound.fold.collected:
            about["collected"] = bound.fold.collected
        return about

    def _state(self, kind: type[StageSpec], materialized: str | None) -> StateSpec:
        about = self._about
        if kind is CloseSpec:
            about = {**about, "key": self.planned.key_type}
        return state_spec(
            self._bound.settings,
            kind,
            self.planned.node,
            bound_to={"materialized": materialized, **self._facts},
            about=about,
        )

    def _aggregated(self, grouped: Physical) -> Physical:
        bound = self._bound
        spec = AggregateSpec(
            self._state(AggregateSpec, self._contributed.node.kept_as),
            fold=bound.fold,
            in_order=bound.topic is None,
            every=bound.emission.every,
        )
        return paced(self.planned, counted(grouped, spec), self._about)

    def _closes(self, closing: Closing) -> CloseSpec:
        return CloseSpec(self._state(CloseSpec, None), fold=self._bound.fold, closing=closing)

    def _late(self, closing: Closing) -> tuple[Physical, ...]:
        """The rows that dead letters come from, of changes that come to windows that are closed.

        They have a query of their own, which decides by its own batches what is late.
        """
        if self.table.on_error != "dead-letter":
            return ()
        label, closes, windows = self.planned.name, self._closes(closing), closing.windows
        contributions = self.contributions(
            every=self._bound.emission.every, reader="letters", letters=True
        )
        timed = _with_time(contributions, self._readings, closes)
        late = MessagesOnly(Stage(timed, replace(closes, letters=True)))
        unpack = UnpackLate(self._row_key, windows.key)
        early = F.lit(None).cast("string") if windows.ahead is None else F.lit(windows.ahead_text)

        def letters(rows: DataFrame) -> DataFrame:
            raw = F.struct(
                F.lit(label).alias("table"),
                as_json(F.col("row_key")).alias("key"),
                as_json(F.col("group")).alias("value"),
            )
            why = F.when(F.col("early"), early).otherwise(F.lit("the window was closed"))
            problem = F.concat(F.lit(f"group_by {label}: "), why)
            return rows.select(raw.alias(RAW), problem.alias(PROBLEM))

        return (by_spark(letters, InWorkers(late, unpack, spark_schema(unpack.schema))),)

    @cached_property
    def _readings(self) -> list[_Reading]:
        return _readings(self._contributed.envelopes, self.table.planned)

    @cached_property
    def _contributed(self) -> _Contributed:
        """The contributions of the table's rows, packed."""
        table, bound = self.table, self._bound
        off, on_error = bound.settings.off, table.on_error
        assert isinstance(self.planned.node, Aggregate)
        node = replace(self.planned.node, table=table.node)
        contribute = self._contribute()
        obstacle = contribute if isinstance(contribute, str) else None
        node = aggregate_reads_answers(node, off, obstacle)
        if not fired(node, AGGREGATE_READS_ANSWERS):
            return self._of_rows(node)
        if table.answers is not None and isinstance(contribute, Contribute):
            node, answers = table.answers.narrowed(node, off, contribute.places)
            return _Contributed(node, answers.counted, replace(contribute, fields=answers.fields))
        assert table.join is not None
        node, answers = table.join.plan.narrowed(node, off, table.join.places(self._paths))
        maker = table.join.maker
        columns = contributing(table, bound.key, bound.value)
        if isinstance(maker, str) or columns is None:
            rows = table.join.rows(answers)
            return _Contributed(node, self._packed(rows, gone=F.col(LEFT_GONE)))
        joined = AnswerRows(answers.fields, maker, on_error == "fail")
        return _Contributed(node, answers.counted, ContributeRows(joined, *columns))

    def _of_rows(self, node: Aggregate) -> _Contributed:
        """The contributions of the table's own rows."""
        table, bound = self.table, self._bound
        if table.multi is not None:
            node, fewer = table.multi(node, bound.settings.off, self._paths)
            return _Contributed(node, self._packed(table.rows if fewer is None else fewer))
        if table.undecoded is None:
            return _Contributed(node, self._packed(table.rows))
        columns = contributing(table, bound.key, bound.value)
        obstacle = None if columns else "what a row contributes is left to Spark"
        node = workers_evaluate_steps(node, bound.settings.off, obstacle)
        if not fired(node, WORKERS_EVALUATE_STEPS):
            return _Contributed(node, self._packed(table.rows))
        envelopes = read_by_workers(
            table.undecoded, self._pack, contributing=columns, failing=table.failing
        )
        return _Contributed(node, envelopes)

    @property
    def _paths(self) -> list[tuple[str, ...]]:
        """The paths of what groups and values read of the rows."""
        expressions = (*self._bound.key.bound, *self._bound.value.bound)
        return list(chain.from_iterable(expression.paths for expression in expressions))

    @property
    def _pack(self) -> PackRows:
        return pack_rows(self.table, self._bound.fold.value, self._bound.settings, self._group)

    def _packed(self, rows: Physical, **columns: Column) -> Physical:
        """The contributions of rows, evaluated by Spark."""
        bound = self._bound
        groups = len(bound.key.bound)
        value = bound.value.struct_of(bound.tried.columns[groups:])
        chosen = packing_columns(
            problem=bound.tried.problems,
            row=F.when(~F.col(DELETED), value),
            group=bound.key.struct_of(bound.tried.columns[:groups]),
            **columns,
        )
        evaluated = by_spark(
            lambda frame: bound.tried.on(frame).select(*chosen), self.table.visible_in(rows)
        )
        return InWorkers(evaluated, self._pack, ENVELOPE)

    def _contribute(self) -> Contribute | str:
        """The way to take contributions from a join's answers; or why there is none."""
        join = self.table.answers
        if join is None:
            return "its rows are more than fields of both rows"
        key, value = self._bound.key.bound, self._bound.value.bound
        expressions = [column.expression for column in (*key, *value)]
        places = join.places_of(expressions, self.table.planned.scope.schema)
        if None in places:
            return f"{text(expressions[places.index(None)])} is more than a field"
        fields = tuple(field for field in places if field is not None)
        return Contribute(
            join.whole,
            fields[: len(key)],
            fields[len(key) :],
            self._group,
            self._bound.fold.value,
        )


_TICKS_AN_IDLE = 4
"""The number of the clock's intervals in the time after which a source is idle."""


class _Reading(NamedTuple):
    """A way in which a plan reads a source."""

    source: Planned
    by_lines: bool
    """Workers parse its lines; False: Spark has its rows."""


def _readings(envelopes: Physical, table: Planned) -> list[_Reading]:
    """The ways in which the envelopes read the table's sources.

    A folder that Spark reads as lines and as rows is listed twice, and a batch may have a file in
    one list alone.  Each reading has its own time then, or windows close before all rows came.
    """
    leaves = set(reads(envelopes))
    readings = []
    for source in sources_of(table):
        rows, undecoded = source.bound.rows, source.bound.undecoded
        by_rows, by_lines = set(reads(rows)), set()
        if undecoded is not None:
            by_lines = set(reads(undecoded.lines))
        workers_read = bool(by_lines) and by_lines <= leaves
        if workers_read:
            readings.append(_Reading(source, by_lines=True))
        if not workers_read or (by_rows <= leaves and not by_lines <= by_rows):
            readings.append(_Reading(source, by_lines=False))
    return readings


def _with_time(contributions: Physical, readings: list[_Reading], spec: CloseSpec) -> Physical:
    """Contributions, and what each bucket is told of time.

    It is told the greatest timestamps of the readings, and the ends of a clock's intervals.
    """
    buckets, idle_ms = spec.state.buckets, spec.closing.idle_ms
    timed = [contributions]
    for number, reading in enumerate(readings):
        timed.append(_greatest(reading, GreatestTime(number, buckets, spec.closing.windows.ahead)))
    if idle_ms is not None:
        timed.append(Ticks(idle_ms // _TICKS_AN_IDLE, buckets))
    return Union(tuple(timed))


def _greatest(reading: _Reading, latest: GreatestTime) -> Physical:
    """The greatest timestamps of a source, read as the contributions read it.

    Else Spark would read it twice, and a batch could have a time without the rows.
    """
    dated = latest.ahead is not None
    if reading.by_lines:
        undecoded = reading.source.bound.undecoded
        if not dated:
            return read_by_workers(undecoded, latest)
        # A snapshot's rows have no timestamps: what is bounded leaves them out.
        return _until(undecoded.lines, undecoded.reading, latest)
    times = by_spark(_times, reading.source.bound.rows)
    if dated:
        return _until(times, RowsAsTheyAre(), latest)
    return InWorkers(times, latest, ENVELOPE)


def _times(rows: DataFrame) -> DataFrame:
    return rows.select(F.col(TS).alias("ts"), F.col(PROBLEM).alias("problem"))


def _until(rows: Physical, reading: Any, latest: GreatestTime) -> Physical:
    """Envelopes with the greatest timestamps that are not too far ahead of the batch."""
    return InWorkers(rows, UntilBatchTime(reading, latest), ENVELOPE, dated=True)
