"""A join by primary key: checked, and planned as one stage with one store.

There are two stages where Spark makes the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from fkjoin.analysis.checks import Joiner, as_emitted, described, require_same_timestamps
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.joiner import BoundJoiner, written_out
from fkjoin.analysis.joins import joined_rows
from fkjoin.analysis.planned import OperatorBound, Planned, Settings, made_of
from fkjoin.codec.vectors import Columns
from fkjoin.errors import TopologyError
from fkjoin.lowering.answers import JoinedTables, evaluated
from fkjoin.lowering.joins import packed_joined
from fkjoin.lowering.stage import counted, let_through
from fkjoin.lowering.table_plan import TablePlan, dead_of_all, paced, pack_rows, table_of
from fkjoin.lowering.workers import packed_rows
from fkjoin.plan.nodes import KeyJoin, generated_name
from fkjoin.plan.physical import Counted, MessagesOnly, Physical, Stage, Union
from fkjoin.sessions.settings import prepare
from fkjoin.spark.packing import PackJoined
from fkjoin.spark.schemas import arrow_schema, types_text
from fkjoin.spark.specs import PairSpec, ResolveSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.contribute import Fields
from fkjoin.stages.join_rows import HowByKey, require_how_by_key


@dataclass(frozen=True, eq=False)
class KeyJoinBound(OperatorBound):
    """Needs of lowering a join by primary key, besides its node."""

    operator = "key_join"
    joiner: BoundJoiner


def planned_key_join(
    left: Planned,
    right: Planned,
    *,
    how: HowByKey,
    joiner: Joiner | None,
    name: str | None,
    emit: Emit,
    settings: Settings,
) -> Planned:
    """See ``Table.join``.  Raises ``TopologyError``."""
    require_how_by_key(how)
    emission = Emission.of(emit)
    _require_one_key(left, right)
    require_same_timestamps(left, right)
    prepare(left.spark)
    joiner = written_out(joiner, left, right, by_key=True)
    text = None if joiner is None else described(joiner, "left", "right")
    label = name or f"{left.name}-{right.name}-{generated_name(left.name, right.name, how, text)}"
    bound, key, row = joined_rows(label, left, right, joiner, how)
    node = KeyJoin(label, left.node, right.node, how, text, emit)
    needs = KeyJoinBound(emission, settings, bound)
    return made_of((left, right), node, key, row, needs, kind="join")


def _require_one_key(left: Planned, right: Planned) -> None:
    """Raise ``TopologyError`` if the keys are of other types; names of their columns may differ."""
    if left.name == right.name:
        raise TopologyError(
            f"right: {right.name} is joined with itself, or another table has its name; "
            "give one of them a name= of its own"
        )
    if left.key != right.key and set(left.key) == set(right.key):
        raise TopologyError(
            f"right: the key of {right.name} is ({', '.join(right.key)}), "
            f"and the key of {left.name} is ({', '.join(left.key)}): "
            "columns are matched by position; "
            "give both keys in the same order, for instance with rekey"
        )
    if [field.dataType for field in as_emitted("left", left.key_type)] != [
        field.dataType for field in as_emitted("right", right.key_type)
    ]:
        raise TopologyError(
            f"right: the key of {right.name} is {types_text(right.key_type)}, "
            f"and the key of {left.name} is {types_text(left.key_type)}; "
            "name the columns of left that are right's key, on=…, "
            "or make both keys the same, for instance with rekey"
        )


def plan_key_join(planned: Planned, left: TablePlan, right: TablePlan) -> TablePlan:
    """The join of two tables by primary key."""
    assert isinstance(planned.node, KeyJoin)
    columns = evaluated(planned.bound.joiner)
    node = replace(
        planned.node,
        left=left.node,
        right=right.node,
        left_to_spark=columns if isinstance(columns, str) else None,
    )
    return _KeyJoin(planned, node, left, right, columns).plan()


@dataclass(frozen=True, eq=False)
class _KeyJoin(JoinedTables[KeyJoin]):
    """A join by primary key of two tables."""

    left: TablePlan
    right: TablePlan
    columns: Columns | str | None
    """The joiner for workers, or why it is left to Spark; None without one."""

    def plan(self) -> TablePlan:
        """The table of the joined rows."""
        node = self._node
        about = {**self._about, "result": self.planned.row_type}
        results = paced(self.planned, self._results, about, joiner=node.joiner)
        unpack = UnpackResults(self._key, self._rows, node.versions)
        tables = self.left, self.right
        dead = (*dead_of_all(*tables), *self._dead)
        return table_of(self.planned, node, results, unpack, *tables, dead=dead)

    @property
    def _node(self) -> KeyJoin:
        return self._needed[0]

    @cached_property
    def _rows(self) -> tuple[pa.Schema, ...]:
        """The schema of results; without a joiner, the columns of both rows."""
        if self.bound.joiner.both_rows:
            return self.kept
        return (arrow_schema("joiner", self.planned.row_type),)

    @property
    def _about(self) -> dict[str, object]:
        versions = [list(version) for version in self._node.versions]
        return {"key": self.left.key_type, "versions": versions}

    @cached_property
    def _packed(self) -> Physical:
        """The rows of both tables, packed."""
        sides = []
        for number, table in enumerate((self.left, self.right)):
            pack = pack_rows(table, self.kept[number], self.bound.settings, number=number)
            sides.append(packed_rows(table, pack))
        return Union(tuple(sides))

    def _state(self, kind: type[StageSpec], materialized: str | None = None) -> StateSpec:
        about = {**self._about, "result": self.planned.row_type}
        return self._state_of(kind, self.kept, about=about, materialized=materialized)

    def _pair(self, materialized: str | None, *, answers: bool) -> PairSpec:
        node, makes = self._node, None
        if isinstance(self.columns, Columns):
            fields = Fields(self._key, *self.kept, node.how)
            rows = AnswerRows(fields, RowMaker(self.columns), self.left.on_error == "fail")
            makes = Joined(rows, self._rows[0])
        return PairSpec(
            self._state(PairSpec, materialized),
            how=node.how,
            parts=(node.left.parts, node.right.parts),
            in_order=(let_through(node.left), let_through(node.right)),
            materialized=materialized is not None,
            every=self.bound.emission.every,
            makes=makes,
            answers=answers,
        )

    @cached_property
    def _results(self) -> Physical:
        node = self._node
        if node.left_to_spark is None:
            return counted(self._packed, self._pair(node.materialized, answers=False))
        named = self._key if self.left.on_error == "fail" else None
        answers = Stage(self._packed, self._pair(None, answers=True))
        rows = self.joined(answers, self._unpack(named))
        pack = PackJoined(self._rows[0], self.bound.settings.buckets)
        resolve = ResolveSpec(
            self._state(ResolveSpec, node.materialized),
            how=node.how,
            materialized=node.materialized is not None,
            in_order=True,
            every=self.bound.emission.every,
        )
        resolved = Stage(packed_joined(rows, pack), resolve)
        return Counted(resolved, node.name, ("pair", "resolve"))

    @property
    def _dead(self) -> tuple[Physical, ...]:
        """The rows that dead letters come from, on which the joiner throws.

        They have a stage of their own.
        """
        if self.left.on_error != "dead-letter":
            return ()
        pairs = Stage(self._packed, self._pair(None, answers=True))
        return self.letters(MessagesOnly(Counted(pairs, f"{self._node.name}-answers", ("pair",))))
