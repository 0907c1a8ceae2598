"""A foreign-key join of two tables on streaming DataFrames: its stages, its answers for other operators, its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned
from fkjoin.codec.rows import Path
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import staged
from fkjoin.lowering.foreign_keys import dead_frames, packed_sides
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.lowered import Answers, Kept, Lowered, PreResolve, stages_of
from fkjoin.lowering.multi_join import Joins, begin, lower_joins, share
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import needed
from fkjoin.lowering.stage import counted, frame_of, let_through, stage, state_spec
from fkjoin.plan.nodes import Join, fired
from fkjoin.plan.optimizer import join_keeps_what_it_needs, resolve_makes_rows
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS, RESOLVE_MAKES_ROWS
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import CopyRights, PackJoined
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import RekeySpec, ResolveSpec, StageSpec, StateSpec, SubscriptionSpec
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, CarryRows, Joined, RowMaker
from fkjoin.stages.contribute import Carry, Fields, Place


def lower_join(planned: Planned, left: Lowered, right: Lowered) -> Lowered:
    """The join of two tables; one with the joins that the left table is, where the rule allows it."""
    assert isinstance(planned.node, Join)
    lowering = JoinLowering(planned, replace(planned.node, left=left.node, right=right.node), left, right)
    node, joins = share(lowering.node, lowering.alone, left, right, planned.bound)
    if joins is not None:
        return lower_joins(planned, node, joins, left, lowering.dead)
    return replace(lowering, node=node).lowered()


class _Answered(NamedTuple):
    """The answers, and the queries that make them if they are others."""

    node: Join
    """After the rules that are for what is before resolve."""
    envelopes: DataFrame
    queries: tuple[StageQuery, ...]


class _Joined(NamedTuple):
    """Messages that come to resolve, and the joined rows."""

    node: Join
    """After all rules."""
    envelopes: DataFrame
    makes: Joined | None
    """Function that makes rows of answers, where resolve does so itself."""
    rows: tuple[pa.Schema, ...]
    result: DataType


@dataclass(frozen=True, eq=False)
class JoinLowering:
    """A join of two tables that are lowered; its parts are made when they are asked for."""

    planned: Planned
    node: Join
    """With the rules that have fired in its inputs, and its own so far."""
    left: Lowered
    right: Lowered

    @property
    def bound(self) -> JoinBound:
        return self.planned.bound

    @property
    def alone(self) -> str | None:
        """The reason why it cannot be one with other joins, whatever its rows are."""
        if self.bound.topics is not None:
            return "the join is staged"
        if self.node.spread > 1:
            return "its left rows are spread"
        return f"it is {self.node.emit}" if self.bound.emission.every else None

    @cached_property
    def rows(self) -> DataFrame:
        """The left table's rows with their foreign keys."""
        return self.bound.foreign_key.on(self.left.visible)

    @cached_property
    def dead(self) -> tuple[DataFrame, ...]:
        """List the frames that dead letters come from."""
        frames = dead_frames(self.left, self.right, self.bound.foreign_key, self.node.name)
        if self.bound.fields is not None or self.left.on_error != "dead-letter":  # fields cannot throw
            return frames
        unpack = UnpackAnswers(self._kept.left, self._kept.right, self.node.how, self._key)
        return (*frames, *self._joining.letters(self._answers.counted, unpack))

    def lowered(self) -> Lowered:
        """The table of the joined rows."""
        bound, materialized = self.bound, self.node.materialized
        node, left, right = self._joined.node, self.left, self.right
        resolved = stage(self._joined.envelopes, self._resolve(materialized))
        resolved = counted(resolved, self.node.name, *self._before, "resolve")
        unpack = UnpackResults(self._key, self._joined.rows, node.versions)
        about = {**self._about, "result": self._joined.result}
        results = paced(resolved, self.node.name, bound.emission, about, bound.settings, joiner=node.joiner)
        before = PreResolve(self._answers, self._places, self._before_resolve, self._row_maker)
        return Lowered(
            self.planned,
            node,
            frame_of(results, unpack),
            self.dead,
            (*stages_of(left, right), *self._answered.queries),
            encoded=(results, unpack),
            answers=None if bound.fields is None else self._answers,
            pre_resolve=None if bound.topics is not None else before,
            joins=None if materialized is not None else self._joins,
        )

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.left.key_type)

    @cached_property
    def _foreign_key(self) -> pa.Schema:
        return arrow_schema("right", self.right.key_type)

    @cached_property
    def _needed(self) -> tuple[Join, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        whole = Kept(arrow_schema("left", self.left.row_type), arrow_schema("right", self.right.row_type))
        less = needed(self.bound.joiner, whole)
        node = join_keeps_what_it_needs(self.node, self.bound.settings.off, less if isinstance(less, str) else None)
        return node, less if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS) else whole

    @property
    def _kept(self) -> Kept:
        return self._needed[1]

    @property
    def _before(self) -> tuple[StageName, ...]:
        """The stages whose counters come with the answers: they are within the query."""
        return () if self.bound.topics is not None else ("rekey", "subscription")

    @property
    def _about(self) -> dict[str, object]:
        node = self.node
        parts = node.left.parts, node.right.parts
        kinds = {"key": self.left.key_type, "foreign_key": self.right.key_type}
        return {**kinds, "parts": parts, "fused": self.bound.topics is None}

    @property
    def _joins(self) -> Joins | str:
        """Collect what another join needs to be one with this one; or say why it cannot."""
        label = self.node.name
        if self.alone is not None:
            if self.node.spread > 1:
                return f"{label} has left rows that are spread"
            return f"{label} is staged" if self.bound.topics is not None else f"{label} is {self.node.emit}"
        if self.bound.fields is None:
            return f"{label} makes more of the rows than fields of them"
        return begin(
            self.left, self.right, self.rows, foreign_key=self.bound.foreign_key, how=self.node.how, fields=self.bound.fields
        )

    def _state(
        self, kind: type[StageSpec], kept: Kept, materialized: str | None = None, result: DataType | None = None
    ) -> StateSpec:
        node = self.node
        named = {"key": self._key, "foreign_key": self._foreign_key, "left": kept.left, "right": kept.right}
        bound_to = {
            "how": node.how,
            "materialized": materialized,
            "extractor": node.extractor,
            "joiner": node.joiner,
            **{what: schema_text(schema) for what, schema in named.items()},
        }
        types = {"left": spark_schema(kept.left), "right": spark_schema(kept.right)}
        about = {**self._about, **types, "result": result}
        left, right = node.left.name, node.right.name
        tables = {"key": left, "left": left, "foreign_key": right, "right": right}
        settings, spread = self.bound.settings, node.spread
        return state_spec(settings, kind, node.name, bound_to=bound_to, about=about, tables=tables, spread=spread)

    def _rekey(self, kept: Kept, from_answers: Carry | CarryRows | None) -> RekeySpec:
        return RekeySpec(
            self._state(RekeySpec, kept),
            in_order=let_through(self.node.left),
            fused=self.bound.topics is None,
            right_parts=self.node.right.parts,
            every=self.bound.emission.every,
            from_answers=from_answers,
        )

    def _subscription(self, kept: Kept) -> SubscriptionSpec:
        node, fused = self.node, self.bound.topics is None
        return SubscriptionSpec(
            self._state(SubscriptionSpec, kept),
            in_order=fused,
            rights_in_order=fused and let_through(node.right),
            shared_log=node.left.log is not None and node.left.log == node.right.log,
            right_parts=node.right.parts,
            every=self.bound.emission.every,
        )

    def _resolve(self, materialized: str | None) -> ResolveSpec:
        return ResolveSpec(
            self._state(ResolveSpec, self._kept, materialized, self._joined.result),
            how=self.node.how,
            materialized=materialized is not None,
            in_order=self.bound.topics is None,
            every=self.bound.emission.every,
            from_answers=self._joined.makes,
        )

    def _answering(self, kept: Kept) -> _Answered:
        """The answers with so much of both rows."""
        bound, label = self.bound, self.node.name
        left, right = kept
        schemas = self._key, self._foreign_key, left, right
        sides = packed_sides(
            self._needed[0], bound.settings, self.left, right=self.right, foreign_key=bound.foreign_key, schemas=schemas
        )

        specs = {"rekey": self._rekey(kept, sides.from_answers), "subscription": self._subscription(kept)}

        def through(rows: DataFrame, kind: StageName) -> DataFrame:
            return counted(stage(rows, specs[kind]), f"{label}-{kind}", kind)

        if bound.topics is not None:
            buckets = bound.settings.buckets
            return _Answered(
                sides.node, *staged(sides.left, sides.right, through, join=label, buckets=buckets, topics=bound.topics)
            )
        rekeyed = stage(sides.left, specs["rekey"])  # within a query counters travel on
        right, spread = sides.right, self.node.spread
        if spread > 1:
            right = right.mapInArrow(CopyRights(bound.settings.buckets, spread), ENVELOPE)
        return _Answered(sides.node, stage(rekeyed.unionAll(right), specs["subscription"]), ())

    @cached_property
    def _answered(self) -> _Answered:
        return self._answering(self._kept)

    @cached_property
    def _answers(self) -> Answers:
        of = Fields(self._key, self._kept.left, self._kept.right, self.node.how)
        less = None if self.bound.topics is not None else self._with_less
        return Answers(f"{self.node.name}-answers", self._answered.envelopes, of, self.bound.fields or {}, self._before, less)

    def _with_less(self, kept: Kept, reader: str) -> Answers:
        """See ``Answers.less``."""
        of = Fields(self._key, kept.left, kept.right, self.node.how)
        name = f"{self.node.name}-answers-for-{reader}"
        return Answers(name, self._answering(kept).envelopes, of, self._answers.fields, self._before)

    def _places(self, paths: Sequence[Path] | None) -> list[Place] | None:
        """See ``PreResolve``.  Without a joiner rows are both rows, and a path in them one of left or right."""
        if not self.bound.joiner.both_rows or paths is None:
            return None
        fields = self._answers.fields
        return [(fields[path[0]][0], path[1:]) for path in paths]

    def _before_resolve(self, answers: Answers) -> DataFrame:
        unpack = UnpackAnswers(answers.of.left, answers.of.right, self.node.how, self._key)
        return self._joining.before_resolve(answers.counted, unpack)

    @property
    def _joining(self) -> Joining:
        return Joining(self.node.name, self.bound.joiner)

    @cached_property
    def _row_maker(self) -> RowMaker | str:
        """The way in which workers make rows of answers, or why Spark has to."""
        if (why := self.bound.settings.off.get(RESOLVE_MAKES_ROWS)) is not None:
            return why
        if self.bound.joiner.both_rows:
            return RowMaker(None)
        columns = evaluated(self.node.name, self.bound.joiner)
        return columns if isinstance(columns, str) else RowMaker(columns)

    @cached_property
    def _joined(self) -> _Joined:
        left, right = self._kept.left, self._kept.right
        if self.bound.joiner.both_rows:
            both = StructType([StructField("left", self.left.row_type), StructField("right", self.right.row_type)])
            return _Joined(self._answered.node, self._answered.envelopes, None, (left, right), both)
        named = self._key if self.left.on_error == "fail" else None
        rows = self._joining.joined(self._answered.envelopes, UnpackAnswers(left, right, self.node.how, named))
        result = rows.schema["row"].dataType
        schema = arrow_schema("joiner", result)
        node = resolve_makes_rows(
            self._answered.node, self.bound.settings.off, self._row_maker if isinstance(self._row_maker, str) else None
        )
        if isinstance(self._row_maker, str):
            rows = rows.select("key", "version", "ts", "gone", "row", "problem", "counter", "count")
            packed = rows.mapInArrow(PackJoined(schema, self.bound.settings.buckets), ENVELOPE)
            return _Joined(node, packed, None, (schema,), result)
        makes = Joined(AnswerRows(self._answers.of, self._row_maker, self.left.on_error == "fail"), schema)
        return _Joined(node, self._answered.envelopes, makes, (schema,), result)
