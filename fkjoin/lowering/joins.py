"""A foreign-key join of two tables: its stages, its answers for other operators, its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.analysis.views import ViewStep
from fkjoin.codec.rows import Path
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import staged
from fkjoin.lowering.ends import paced, table_of
from fkjoin.lowering.foreign_keys import JoinSides, Schemas
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.multi_join import Joins, begin, plan_joins, share
from fkjoin.lowering.pruning import Kept, with_needed
from fkjoin.lowering.stage import let_through, state_spec
from fkjoin.lowering.table_plan import TablePlan, stages_of
from fkjoin.plan.nodes import Join
from fkjoin.plan.optimizer import resolve_makes_rows
from fkjoin.plan.physical import (
    Counted,
    InWorkers,
    MessagesOnly,
    Physical,
    Stage,
    by_spark,
    union,
)
from fkjoin.plan.rules import RESOLVE_MAKES_ROWS
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import LEFT_GONE, PACKED_KEY
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.packing import CopyRights, PackJoined
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import RekeySpec, ResolveSpec, StageSpec, StateSpec, SubscriptionSpec
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, CarryRows, Joined, RowMaker
from fkjoin.stages.contribute import Carry, Fields, Place


def plan_join(planned: Planned, left: TablePlan, right: TablePlan) -> TablePlan:
    """The join of two tables; one with the joins that the left table is, where the rule allows."""
    assert isinstance(planned.node, Join)
    node = replace(planned.node, left=left.node, right=right.node)
    join = JoinPlan(planned, node, left, right)
    node, joins = share(node, join.alone, left, right, planned.bound)
    if joins is not None:
        return plan_joins(planned, node, joins, join.dead)
    return replace(join, node=node).plan()


@dataclass(frozen=True, eq=False)
class Answers:
    """A join's answers before resolve, for one reader."""

    name: str
    """Name of their counters in the progress: the join's name is that of what resolve emits."""
    envelopes: Physical
    fields: Fields
    stages: tuple[str, ...]
    """Stages whose counters come with the answers."""

    @cached_property
    def counted(self) -> Physical:
        """The answers alone."""
        return MessagesOnly(Counted(self.envelopes, self.name, self.stages))


@dataclass(frozen=True, eq=False)
class JoinRows:
    """The rows of a join, and of views of it, before resolve."""

    plan: JoinPlan
    steps: tuple[tuple[Planned, ViewStep], ...] = ()
    """Views, each with the table that it is of."""

    def then(self, table: Planned, step: ViewStep) -> JoinRows:
        """The rows after one more view."""
        return JoinRows(self.plan, (*self.steps, (table, step)))

    def places(self, paths: Sequence[Path] | None) -> list[Place] | None:
        """Places that the answers must have for paths of the rows; None: everything.

        ``paths``: None stands for all of them.
        """
        for _, step in reversed(self.steps):
            paths = step.reads(paths)
        return self.plan.places(paths)

    def rows(self, answers: Answers) -> Physical:
        """The rows, by Spark, with ``PACKED_KEY`` and ``LEFT_GONE``."""
        rows = self.plan.before_resolve(answers)
        for table, step in self.steps:
            visible = by_spark(partial(with_visible, key=table.key, row=table.row_type), rows)
            rows = by_spark(partial(_after, step), visible)
        return rows

    @property
    def maker(self) -> RowMaker | str:
        """The way in which workers make rows of answers; or why Spark has to."""
        maker = self.plan.maker
        for _, step in self.steps:
            if isinstance(maker, str):
                return maker
            steps = step.evaluate()
            if steps is None:
                return f"{step} is left to Spark"
            maker = RowMaker(maker.joiner, (*maker.steps, *steps))
        return maker


def _after(step: ViewStep, visible: Any) -> Any:
    return step.taken(visible, PACKED_KEY, LEFT_GONE)


class _Answered(NamedTuple):
    """The answers, and the queries that make them if they are others."""

    node: Join
    """After the rules that are for what is before resolve."""
    envelopes: Physical
    queries: tuple[StageQuery, ...] = ()


class _Joined(NamedTuple):
    """Messages that come to resolve, and the joined rows."""

    node: Join
    """After all rules."""
    envelopes: Physical
    makes: Joined | None
    """Function that makes rows of answers, where resolve does so itself."""
    rows: tuple[pa.Schema, ...]
    result: DataType


@dataclass(frozen=True, eq=False)
class JoinPlan:
    """A join of two tables; its parts are made when they are asked for."""

    planned: Planned
    node: Join
    """With the rules that have fired in its inputs, and its own so far."""
    left: TablePlan
    right: TablePlan
    _read: dict[str, Answers] = field(default_factory=dict, init=False, repr=False)
    """Whole answers, by their readers."""

    @property
    def bound(self) -> JoinBound:
        bound: JoinBound = self.planned.bound
        return bound

    @property
    def is_staged(self) -> bool:
        return self.bound.topics is not None

    @property
    def fields(self) -> Mapping[str, Place]:
        """Columns of a joined row and its key; none where they are more than the rows' fields."""
        return self.bound.fields or {}

    @property
    def alone(self) -> str | None:
        """The reason why it cannot be one with other joins, whatever its rows are."""
        if self.is_staged:
            return "the join is staged"
        if self.node.spread > 1:
            return "its left rows are spread"
        return f"it is {self.node.emit}" if self.bound.emission.every else None

    @cached_property
    def dead(self) -> tuple[Physical, ...]:
        """The rows that dead letters come from."""
        dead = self._sides.dead(self.node.name)
        if self.bound.fields is not None or self.left.on_error != "dead-letter":
            return dead  # fields cannot throw
        unpack = self._unpack(self.kept, self._key)
        return (*dead, *self._joining.letters(self.answers().counted, unpack))

    def plan(self) -> TablePlan:
        """The table of the joined rows."""
        bound, materialized = self.bound, self.node.materialized
        node = self._joined.node
        resolved = Stage(self._joined.envelopes, self._resolve(materialized))
        counted = Counted(resolved, node.name, (*self._before, "resolve"))
        about = {**self._about, "result": self._joined.result}
        results = paced(self.planned, counted, about, joiner=node.joiner)
        unpack = UnpackResults(self._key, self._joined.rows, node.versions)
        return table_of(
            self.planned,
            node,
            results,
            unpack,
            dead=self.dead,
            stages=(*stages_of(self.left, self.right), *self._answered.queries),
            answers=None if bound.fields is None else self,
            join=None if self.is_staged else JoinRows(self),
            joins=None if materialized is not None else self._joins,
        )

    @cached_property
    def kept(self) -> Kept:
        """Columns that are kept of both rows."""
        return self._needed[1]

    @property
    def whole(self) -> Fields:
        """The fields of answers with all that is kept."""
        return self._fields(self.kept)

    def answers(self, reader: str | None = None, columns: Kept | None = None) -> Answers:
        """The answers for a reader.

        ``columns``: all that they have of both rows; None: all that is kept.  Each reader runs the
        join, and Spark counts by name.
        """
        name = f"{self.node.name}-answers"
        if reader is not None:
            name = f"{name}-for-{reader}"
        if columns is not None:
            envelopes = self._answering(columns).envelopes
            return Answers(name, envelopes, self._fields(columns), self._before)
        if name not in self._read:
            envelopes = self._answered.envelopes
            self._read[name] = Answers(name, envelopes, self.whole, self._before)
        return self._read[name]

    def places_of(self, expressions: Iterable[Any], columns: pa.Schema) -> list[Place | None]:
        """Places of expressions over the columns of a joined row; None for more than a field."""
        places: list[Place | None] = []
        for expression in expressions:
            path = plain_path(expression, columns)
            origin = None if path is None else self._place(path)
            # An empty path is a whole row, which is more than a field.
            places.append(origin if origin is not None and origin[1] else None)
        return places

    def _place(self, path: Path) -> Place | None:
        """The place of a field of a joined row; None if there is no such field.

        With an empty path it is one of both rows.
        """
        if path[0] not in self.fields:
            return None
        side, above = self.fields[path[0]]
        return side, (*above, *path[1:])

    def places(self, paths: Sequence[Path] | None) -> list[Place] | None:
        """Places that the answers must have for paths of the rows; None: everything.

        Without a joiner rows are both rows, and a path in them one of left or right.
        """
        if not self.bound.joiner.both_rows or paths is None:
            return None
        return [(self.fields[path[0]][0], path[1:]) for path in paths]

    def before_resolve(self, answers: Answers) -> Physical:
        """The rows before resolve, by Spark."""
        unpack = UnpackAnswers(answers.fields.left, answers.fields.right, self.node.how, self._key)
        return self._joining.before_resolve(answers.counted, unpack)

    @cached_property
    def maker(self) -> RowMaker | str:
        """The way in which workers make rows of answers, or why Spark has to."""
        why = self.bound.settings.off.get(RESOLVE_MAKES_ROWS)
        if why is not None:
            return why
        if self.bound.joiner.both_rows:
            return RowMaker(None)
        columns = evaluated(self.node.name, self.bound.joiner)
        return columns if isinstance(columns, str) else RowMaker(columns)

    @property
    def _sides(self) -> JoinSides:
        return JoinSides(self.left, self.right, self.bound.foreign_key, self.bound.settings)

    @property
    def _joining(self) -> Joining:
        return Joining(self.node.name, self.bound.joiner)

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.left.key_type)

    @cached_property
    def _foreign_key(self) -> pa.Schema:
        return arrow_schema("right", self.right.key_type)

    @cached_property
    def _needed(self) -> tuple[Join, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        left = arrow_schema("left", self.left.row_type)
        whole = Kept(left, arrow_schema("right", self.right.row_type))
        return with_needed(self.node, self.bound.settings.off, self.bound.joiner, whole)

    def _fields(self, columns: Kept) -> Fields:
        return Fields(self._key, columns.left, columns.right, self.node.how)

    def _unpack(self, columns: Kept, named: pa.Schema | None) -> UnpackAnswers:
        return UnpackAnswers(columns.left, columns.right, self.node.how, named)

    @property
    def _before(self) -> tuple[str, ...]:
        """The stages whose counters come with the answers: they are within the query."""
        return () if self.is_staged else ("rekey", "subscription")

    @property
    def _about(self) -> dict[str, object]:
        return {
            "key": self.left.key_type,
            "foreign_key": self.right.key_type,
            "parts": (self.node.left.parts, self.node.right.parts),
            "fused": not self.is_staged,
        }

    @property
    def _joins(self) -> Joins | str:
        """Collect what another join needs to be one with this one; or say why it cannot."""
        label = self.node.name
        if self.is_staged:
            return f"{label} is staged"
        if self.node.spread > 1:
            return f"{label} has left rows that are spread"
        if self.alone is not None:
            return f"{label} is {self.node.emit}"
        if self.bound.fields is None:
            return f"{label} makes more of the rows than fields of them"
        return begin(self._sides, how=self.node.how, fields=self.bound.fields)

    def _state(
        self,
        kind: type[StageSpec],
        columns: Kept,
        materialized: str | None = None,
        result: DataType | None = None,
    ) -> StateSpec:
        node = self.node
        bound_to = {
            "how": node.how,
            "materialized": materialized,
            "extractor": node.extractor,
            "joiner": node.joiner,
            "key": schema_text(self._key),
            "foreign_key": schema_text(self._foreign_key),
            "left": schema_text(columns.left),
            "right": schema_text(columns.right),
        }
        types = {"left": spark_schema(columns.left), "right": spark_schema(columns.right)}
        left, right = node.left.name, node.right.name
        return state_spec(
            self.bound.settings,
            kind,
            node.name,
            bound_to=bound_to,
            about={**self._about, **types, "result": result},
            tables={"key": left, "left": left, "foreign_key": right, "right": right},
            spread=node.spread,
        )

    def _rekey(self, columns: Kept, from_answers: Carry | CarryRows | None) -> RekeySpec:
        return RekeySpec(
            self._state(RekeySpec, columns),
            in_order=let_through(self.node.left),
            fused=not self.is_staged,
            right_parts=self.node.right.parts,
            every=self.bound.emission.every,
            from_answers=from_answers,
        )

    def _subscription(self, columns: Kept) -> SubscriptionSpec:
        node, fused = self.node, not self.is_staged
        return SubscriptionSpec(
            self._state(SubscriptionSpec, columns),
            in_order=fused,
            rights_in_order=fused and let_through(node.right),
            shared_log=node.left.log is not None and node.left.log == node.right.log,
            right_parts=node.right.parts,
            every=self.bound.emission.every,
        )

    def _resolve(self, materialized: str | None) -> ResolveSpec:
        return ResolveSpec(
            self._state(ResolveSpec, self.kept, materialized, self._joined.result),
            how=self.node.how,
            materialized=materialized is not None,
            in_order=not self.is_staged,
            every=self.bound.emission.every,
            from_answers=self._joined.makes,
        )

    @cached_property
    def _answered(self) -> _Answered:
        return self._answering(self.kept)

    def _answering(self, columns: Kept) -> _Answered:
        """The answers with so much of both rows."""
        bound, label = self.bound, self.node.name
        schemas = Schemas(self._key, self._foreign_key, columns.left, columns.right)
        sides = self._sides.packed(self._needed[0], schemas)
        rekey = self._rekey(columns, sides.from_answers)
        subscription = self._subscription(columns)
        if bound.topics is not None:
            first = Counted(Stage(sides.left, rekey), f"{label}-rekey", ("rekey",))
            answers, queries = staged(
                self.planned.spark,
                first,
                sides.right,
                subscription,
                join=label,
                buckets=bound.settings.buckets,
                topics=bound.topics,
            )
            return _Answered(sides.node, answers, queries)
        rekeyed = Stage(sides.left, rekey)  # within a query counters travel on
        right, spread = sides.right, self.node.spread
        if spread > 1:
            right = InWorkers(right, CopyRights(bound.settings.buckets, spread), ENVELOPE)
        return _Answered(sides.node, Stage(union(rekeyed, right), subscription))

    @cached_property
    def _joined(self) -> _Joined:
        node, envelopes, _ = self._answered
        joiner = self.bound.joiner
        if joiner.both_rows:
            sides = {"left": self.left.row_type, "right": self.right.row_type}
            both = StructType([StructField(name, kind) for name, kind in sides.items()])
            return _Joined(node, envelopes, None, tuple(self.kept), both)
        fails = self.left.on_error == "fail"
        rows = self._joining.joined(
            envelopes, self._unpack(self.kept, self._key if fails else None)
        )
        result = self.left.columns_of(rows)["row"].dataType
        schema = arrow_schema("joiner", result)
        maker = self.maker
        if isinstance(maker, str):
            node = resolve_makes_rows(node, self.bound.settings.off, maker)
            pack = PackJoined(schema, self.bound.settings.buckets)
            return _Joined(node, packed_joined(rows, pack), None, (schema,), result)
        node = resolve_makes_rows(node, self.bound.settings.off, None)
        makes = Joined(AnswerRows(self.whole, maker, fails), schema)
        return _Joined(node, envelopes, makes, (schema,), result)


def packed_joined(rows: Physical, pack: PackJoined) -> Physical:
    """Joined rows that Spark has made, packed for resolve."""
    columns = ("key", "version", "ts", "gone", "row", "problem", "counter", "count")
    return InWorkers(by_spark(lambda frame: frame.select(*columns), rows), pack, ENVELOPE)
