"""A join by primary key on streaming DataFrames: one stage with one store, or two where Spark makes the joined rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame

from fkjoin.analysis.key_joins import KeyJoinBound
from fkjoin.analysis.planned import Planned
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.lowered import Kept, Lowered, dead_of_all, stages_of
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import needed
from fkjoin.lowering.stage import counted, frame_of, made_by_operators, stage, state_spec
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.nodes import KeyJoin, fired, starts_over
from fkjoin.plan.optimizer import join_keeps_what_it_needs
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackJoined, PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import PairSpec, ResolveSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.contribute import Fields


def lower_key_join(planned: Planned, left: Lowered, right: Lowered) -> Lowered:
    """The join of two tables by primary key."""
    return _KeyJoin(planned, left, right).lowered()


@dataclass(frozen=True, eq=False)
class _KeyJoin:
    """A join by primary key of two tables that are lowered."""

    planned: Planned
    left: Lowered
    right: Lowered

    def lowered(self) -> Lowered:
        """The table of the joined rows."""
        node, bound = self._node, self._bound
        about = {**self._about, "result": self.planned.row_type}
        results = paced(self._results, node.name, bound.emission, about, bound.settings, joiner=node.joiner)
        unpack = UnpackResults(self._key, self._rows, node.versions)
        return Lowered(
            self.planned,
            node,
            frame_of(results, unpack),
            (*dead_of_all(self.left, self.right), *self._letters),
            stages_of(self.left, self.right),
            encoded=(results, unpack),
        )

    @property
    def _bound(self) -> KeyJoinBound:
        bound: KeyJoinBound = self.planned.bound
        return bound

    @cached_property
    def _needed(self) -> tuple[KeyJoin, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        assert isinstance(self.planned.node, KeyJoin)
        made = self._columns
        whole = Kept(arrow_schema("left", self.left.row_type), arrow_schema("right", self.right.row_type))
        less = needed(self._bound.joiner, whole)
        node = replace(
            self.planned.node,
            left=self.left.node,
            right=self.right.node,
            left_to_spark=made if isinstance(made, str) else None,
        )
        node = join_keeps_what_it_needs(node, self._bound.settings.off, less if isinstance(less, str) else None)
        return node, less if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS) else whole

    @property
    def _node(self) -> KeyJoin:
        return self._needed[0]

    @property
    def _kept(self) -> Kept:
        return self._needed[1]

    @cached_property
    def _columns(self) -> Columns | str | None:
        """The joiner for workers, or why it is left to Spark; None without one."""
        joiner = self._bound.joiner
        return None if joiner.both_rows else evaluated(self.planned.name, joiner)

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.left.key_type)

    @cached_property
    def _rows(self) -> tuple[pa.Schema, ...]:
        """The schema of results; without a joiner, those of both rows."""
        return self._kept if self._bound.joiner.both_rows else (arrow_schema("joiner", self.planned.row_type),)

    @property
    def _about(self) -> dict[str, object]:
        versions = [list(version) for version in self._node.versions]
        return {"key": self.left.key_type, "versions": versions}

    @cached_property
    def _packed(self) -> DataFrame:
        """The rows of both tables, packed."""
        settings = self._bound.settings
        sides = []
        for at, (table, kept) in enumerate(zip((self.left, self.right), self._kept, strict=True)):
            key = arrow_schema("key", table.key_type)
            over = starts_over(table.node)
            pack = PackRows(key, kept, settings.buckets, validate=settings.validate, number=at, start_over=over)
            sides.append(packed_rows(table, pack))
        return sides[0].unionAll(sides[1])

    def _state(self, kind: type[StageSpec], materialized: str | None = None) -> StateSpec:
        node = self._node
        left, right = self._kept
        schemas = {"key": self._key, "left": left, "right": right}
        bound_to = {
            "how": node.how,
            "materialized": materialized,
            "joiner": node.joiner,
            **{what: schema_text(schema) for what, schema in schemas.items()},
        }
        types = {"left": spark_schema(left), "right": spark_schema(right), "result": self.planned.row_type}
        tables = {"key": node.left.name, "left": node.left.name, "right": node.right.name}
        about = {**self._about, **types}
        return state_spec(self._bound.settings, kind, node.name, bound_to=bound_to, about=about, tables=tables)

    def _pair(self, materialized: str | None, *, answers: bool) -> PairSpec:
        node, makes = self._node, None
        if isinstance(self._columns, Columns):
            fields = Fields(self._key, *self._kept, node.how)
            makes = Joined(AnswerRows(fields, RowMaker(self._columns), self.left.on_error == "fail"), self._rows[0])
        left, right = made_by_operators(node.left, node.right)
        return PairSpec(
            self._state(PairSpec, materialized),
            how=node.how,
            parts=(node.left.parts, node.right.parts),
            in_order=(left, right),
            materialized=materialized is not None,
            every=self._bound.emission.every,
            makes=makes,
            answers=answers,
        )

    @cached_property
    def _results(self) -> DataFrame:
        node, name = self._node, self._node.name
        if node.left_to_spark is None:
            return counted(stage(self._packed, self._pair(node.materialized, answers=False)), name, "pair")
        answers = stage(self._packed, self._pair(None, answers=True))
        named = self._key if self.left.on_error == "fail" else None
        rows = self._joining.joined(answers, UnpackAnswers(*self._kept, node.how, named))
        rows = rows.select("key", "version", "ts", "gone", "row", "problem", "counter", "count")
        packed = rows.mapInArrow(PackJoined(self._rows[0], self._bound.settings.buckets), ENVELOPE)
        spec = ResolveSpec(
            self._state(ResolveSpec, node.materialized),
            how=node.how,
            materialized=node.materialized is not None,
            in_order=True,
            every=self._bound.emission.every,
        )
        return counted(stage(packed, spec), name, "pair", "resolve")

    @property
    def _joining(self) -> Joining:
        return Joining(self._node.name, self._bound.joiner)

    @property
    def _letters(self) -> tuple[DataFrame, ...]:
        """The frame that dead letters come from, of rows on which the joiner throws; it has a stage of its own."""
        if self.left.on_error != "dead-letter" or self._bound.joiner.tried.reason is None:
            return ()
        answers = counted(stage(self._packed, self._pair(None, answers=True)), f"{self._node.name}-answers", "pair")
        unpack = UnpackAnswers(*self._kept, self._node.how, self._key)
        return self._joining.letters(answers.where("counter is null"), unpack)
