"""A join by primary key: one stage with one store, or two where Spark makes the joined rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from fkjoin.analysis.key_joins import KeyJoinBound
from fkjoin.analysis.planned import Planned
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.joins import packed_joined
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import Kept, needed
from fkjoin.lowering.stage import counted, made_by_operators, rows_of, state_spec
from fkjoin.lowering.table_plan import Packed, TablePlan, dead_of_all, stages_of
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.nodes import KeyJoin, fired, starts_over
from fkjoin.plan.optimizer import join_keeps_what_it_needs
from fkjoin.plan.physical import Counted, MessagesOnly, Physical, Stage, Union
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.spark.packing import PackJoined, PackRows
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.specs import PairSpec, ResolveSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.contribute import Fields


def plan_key_join(planned: Planned, left: TablePlan, right: TablePlan) -> TablePlan:
    """The join of two tables by primary key."""
    return _KeyJoin(planned, left, right).plan()


@dataclass(frozen=True, eq=False)
class _KeyJoin:
    """A join by primary key of two tables."""

    planned: Planned
    left: TablePlan
    right: TablePlan

    def plan(self) -> TablePlan:
        """The table of the joined rows."""
        node, bound = self._node, self._bound
        about = {**self._about, "result": self.planned.row_type}
        settings = bound.settings
        results = paced(self._results, node.name, bound.emission, about, settings, joiner=node.joiner)
        unpack = UnpackResults(self._key, self._rows, node.versions)
        return TablePlan(
            self.planned,
            node,
            rows_of(results, unpack),
            (*dead_of_all(self.left, self.right), *self._letters),
            stages_of(self.left, self.right),
            Packed(results, unpack),
        )

    @property
    def _bound(self) -> KeyJoinBound:
        bound: KeyJoinBound = self.planned.bound
        return bound

    @cached_property
    def _needed(self) -> tuple[KeyJoin, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        assert isinstance(self.planned.node, KeyJoin)
        columns = self._columns
        left = arrow_schema("left", self.left.row_type)
        whole = Kept(left, arrow_schema("right", self.right.row_type))
        less = needed(self._bound.joiner, whole)
        node = replace(
            self.planned.node,
            left=self.left.node,
            right=self.right.node,
            left_to_spark=columns if isinstance(columns, str) else None,
        )
        obstacle = less if isinstance(less, str) else None
        node = join_keeps_what_it_needs(node, self._bound.settings.off, obstacle)
        if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS):
            return node, less
        return node, whole

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
        if self._bound.joiner.both_rows:
            return self._kept
        return (arrow_schema("joiner", self.planned.row_type),)

    @property
    def _about(self) -> dict[str, object]:
        versions = [list(version) for version in self._node.versions]
        return {"key": self.left.key_type, "versions": versions}

    @cached_property
    def _packed(self) -> Physical:
        """The rows of both tables, packed."""
        left, right = self._kept
        return Union((self._side(self.left, left, 0), self._side(self.right, right, 1)))

    def _side(self, table: TablePlan, kept: pa.Schema, number: int) -> Physical:
        settings = self._bound.settings
        pack = PackRows(
            arrow_schema("key", table.key_type),
            kept,
            settings.buckets,
            validate=settings.validate,
            number=number,
            start_over=starts_over(table.node),
        )
        return packed_rows(table, pack)

    def _state(self, kind: type[StageSpec], materialized: str | None = None) -> StateSpec:
        node = self._node
        left, right = self._kept
        bound_to = {
            "how": node.how,
            "materialized": materialized,
            "joiner": node.joiner,
            "key": schema_text(self._key),
            "left": schema_text(left),
            "right": schema_text(right),
        }
        types = {
            "left": spark_schema(left),
            "right": spark_schema(right),
            "result": self.planned.row_type,
        }
        return state_spec(
            self._bound.settings,
            kind,
            node.name,
            bound_to=bound_to,
            about={**self._about, **types},
            tables={"key": node.left.name, "left": node.left.name, "right": node.right.name},
        )

    def _pair(self, materialized: str | None, *, answers: bool) -> PairSpec:
        node, makes = self._node, None
        if isinstance(self._columns, Columns):
            fields = Fields(self._key, *self._kept, node.how)
            rows = AnswerRows(fields, RowMaker(self._columns), self.left.on_error == "fail")
            makes = Joined(rows, self._rows[0])
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
    def _results(self) -> Physical:
        node = self._node
        if node.left_to_spark is None:
            return counted(self._packed, self._pair(node.materialized, answers=False))
        named = self._key if self.left.on_error == "fail" else None
        unpack = UnpackAnswers(*self._kept, node.how, named)
        answers = Stage(self._packed, self._pair(None, answers=True))
        rows = self._joining.joined(answers, unpack)
        pack = PackJoined(self._rows[0], self._bound.settings.buckets)
        resolve = ResolveSpec(
            self._state(ResolveSpec, node.materialized),
            how=node.how,
            materialized=node.materialized is not None,
            in_order=True,
            every=self._bound.emission.every,
        )
        resolved = Stage(packed_joined(rows, pack), resolve)
        return Counted(resolved, node.name, ("pair", "resolve"))

    @property
    def _joining(self) -> Joining:
        return Joining(self._node.name, self._bound.joiner)

    @property
    def _letters(self) -> tuple[Physical, ...]:
        """The rows that dead letters come from, on which the joiner throws; they have a stage of their own."""
        if self.left.on_error != "dead-letter" or self._bound.joiner.tried.reason is None:
            return ()
        pairs = Stage(self._packed, self._pair(None, answers=True))
        answers = MessagesOnly(Counted(pairs, f"{self._node.name}-answers", ("pair",)))
        unpack = UnpackAnswers(*self._kept, self._node.how, self._key)
        return self._joining.letters(answers, unpack)
