"""A foreign-key join of two tables: its stages, its answers for other operators, its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from fkjoin.analysis.bound import Bound
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.vectorize import moved
from fkjoin.codec.vectors import Where
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import staged
from fkjoin.lowering.answers import JoinAnswers, JoinRows, Kept
from fkjoin.lowering.foreign_keys import JoinSides
from fkjoin.lowering.multi_join import Joins, begin, field_in, plan_joins, share
from fkjoin.lowering.stage import let_through
from fkjoin.lowering.table_plan import TablePlan, paced, stages_of, table_of
from fkjoin.lowering.workers import stepped
from fkjoin.plan.nodes import Join
from fkjoin.plan.optimizer import Off, resolve_makes_rows
from fkjoin.plan.physical import Counted, InWorkers, Physical, Stage, by_spark, union
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.frame import DELETED, ROW
from fkjoin.spark.packing import CopyRights, PackJoined
from fkjoin.spark.schemas import arrow_schema, column_texts
from fkjoin.spark.specs import RekeySpec, ResolveSpec, StageSpec, StateSpec, SubscriptionSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, CarryRows, Joined
from fkjoin.stages.contribute import Carry, Place


def plan_join(planned: Planned, left: TablePlan, right: TablePlan) -> TablePlan:
    """The join of two tables; one with the joins that the left table is, where the rule allows."""
    assert isinstance(planned.node, Join)
    node = replace(planned.node, left=left.node, right=right.node)
    join = JoinPlan(planned, node, left, right)
    node, joins = share(node, join.alone, left, right, planned.bound)
    if joins is not None:
        return plan_joins(planned, node, joins, join.dead)
    return replace(join, node=node).plan()


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
class JoinPlan(JoinAnswers):
    """A join of two tables, with its stages."""

    left: TablePlan
    right: TablePlan

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
        return (*dead, *self.letters(self.answers().counted))

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

    def keeping(self, condition: Bound) -> JoinPlan | str:
        label = self.node.name
        if condition.can_throw:
            return "the condition may throw"
        if self.bound.foreign_key.tried.reason is not None:
            return "the extractor may throw"
        # An answer on which it throws leaves the last result as it is.
        if self.bound.joiner.tried.reason is not None:
            return "the joiner may throw"
        if self.bound.emission.every:
            return f"{label} is {self.node.emit}"
        names = {path[0] for path in condition.paths}
        fields = self.bound.places
        places = {name: fields[name] for name in sorted(names & fields.keys())}
        if len(places) < len(names):
            return "it reads more of the rows than fields of them"
        sides = {side for side, _ in places.values()}
        if sides == {"right"} and self.node.how == "inner":
            right = without(self.right, condition, places, self.bound.settings.off)
            return right if isinstance(right, str) else replace(self, right=right)
        if "right" in sides:
            return "it reads both rows" if len(sides) > 1 else "it reads right rows of a left join"
        left = without(self.left, condition, places, self.bound.settings.off)
        return left if isinstance(left, str) else replace(self, left=left)

    @property
    def _sides(self) -> JoinSides:
        return JoinSides(self.left, self.right, self.bound.foreign_key, self.bound.settings)

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
        return self._state_of(
            kind,
            columns,
            about={**self._about, "result": result},
            spread=self.node.spread,
            materialized=materialized,
            extractor=self.node.extractor,
            foreign_key=column_texts(arrow_schema("right", self.right.key_type)),
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

    def _envelopes(self, columns: Kept | None) -> Physical:
        answered = self._answered if columns is None else self._answering(columns)
        return answered.envelopes

    @cached_property
    def _answered(self) -> _Answered:
        return self._answering(self.kept)

    def _answering(self, columns: Kept) -> _Answered:
        """The answers with so much of both rows."""
        bound, label = self.bound, self.node.name
        sides = self._sides.packed(self._needed[0], columns)
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
            both = StructType().add("left", self.left.row_type).add("right", self.right.row_type)
            return _Joined(node, envelopes, None, tuple(self.kept), both)
        fails = self.left.on_error == "fail"
        rows = self.joined(envelopes, self._unpack(self._key if fails else None))
        result = self.left.columns_of(rows)["row"].dataType
        schema = arrow_schema("joiner", result)
        maker = self.maker
        obstacle = maker if isinstance(maker, str) else None
        node = resolve_makes_rows(node, self.bound.settings.off, obstacle)
        if isinstance(maker, str):
            pack = PackJoined(schema, self.bound.settings.buckets)
            return _Joined(node, packed_joined(rows, pack), None, (schema,), result)
        makes = Joined(AnswerRows(self.whole, maker, fails), schema)
        return _Joined(node, envelopes, makes, (schema,), result)


def packed_joined(rows: Physical, pack: PackJoined) -> Physical:
    """Joined rows that Spark has made, packed for resolve."""
    columns = ("key", "version", "ts", "gone", "row", "problem", "counter", "count")
    return InWorkers(by_spark(lambda frame: frame.select(*columns), rows), pack, ENVELOPE)


def without(
    table: TablePlan, condition: Bound, places: Mapping[str, Place], off: Off
) -> TablePlan | str:
    """The table without the rows for which the condition does not hold; or why it has them.

    *Law*: the filtered join is the same.  A row that the condition rules out has no result, so its
    table may as well lack it.  The filter stays above the join, too, for rows that came before the
    rule was on.

    ``places``: fields of the table's rows, by the columns that the condition names.
    """
    if any(join is not None for join in (table.join, table.answers, table.multi)):
        return f"{table.name} is made of a join"
    rows = by_spark(partial(_held, condition, places), table.rows)
    undecoded = None if WORKERS_EVALUATE_STEPS in off else table.undecoded
    if undecoded is not None:
        paths = {name.lower(): path for name, (_, path) in places.items()}
        vector = condition.vector
        if vector is not None:
            vector = moved(vector, paths, table.planned.scope.schema)
        if vector is None:
            return "the condition is left to Spark"
        where = Where(vector, f"filter below a join of {table.name}")
        undecoded = undecoded._replace(reading=stepped(undecoded).then((where,)))
    return replace(table, rows=rows, packed=None, settled=None, undecoded=undecoded)


def _held(condition: Bound, places: Mapping[str, Place], rows: DataFrame) -> DataFrame:
    # Texts of joined rows have no collation, whatever the table's texts have.
    kinds = condition.scope.frame.schema
    named = {}
    for name, (side, path) in places.items():
        named[name] = field_in(side == "key", path).cast(kinds[name].dataType)
    stays = ~F.col(DELETED) & F.coalesce(condition.column, F.lit(False))
    held = {ROW: F.when(stays, F.col(ROW)), DELETED: ~stays}
    return rows.withColumns(named).withColumns(held).select(rows.columns)
