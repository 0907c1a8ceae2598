"""A join's answers before resolve, and rows made of them, for operators that read the join."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import pyarrow as pa

from fkjoin.analysis.bound import Bound
from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.analysis.views import ViewStep
from fkjoin.codec.rows import Path
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.pruning import Kept, narrow, with_needed
from fkjoin.plan.nodes import Join, fired
from fkjoin.plan.optimizer import N, Off, answers_keep_what_is_read
from fkjoin.plan.physical import Counted, MessagesOnly, Physical, by_spark
from fkjoin.plan.rules import ANSWERS_KEEP_WHAT_IS_READ, RESOLVE_MAKES_ROWS
from fkjoin.spark.frame import LEFT_GONE, PACKED_KEY
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.schemas import arrow_schema
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.stages.answer_rows import RowMaker
from fkjoin.stages.contribute import Fields, Place

ALL_READ = "every column is read"


@dataclass(frozen=True, eq=False)
class Answers:
    """A join's answers before resolve, for one reader."""

    name: str
    """Name of their counters in the progress: the join's name belongs to what resolve emits."""
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

    plan: JoinAnswers
    steps: tuple[tuple[Planned, ViewStep], ...] = ()
    """Views, each with the table that it is of."""

    def then(self, table: Planned, step: ViewStep) -> JoinRows:
        """The rows after one more view."""
        return JoinRows(self.plan, (*self.steps, (table, step)))

    def keeping(self, condition: Bound) -> JoinRows | str:
        """The rows for which a condition holds, by a filter below the join; or why not."""
        if any(step.condition is None for _, step in self.steps):
            return "the rows are changed before it"
        if any(step.tried.reason is not None for _, step in self.steps):
            return "a filter before it may throw"
        plan = self.plan.keeping(condition)
        return plan if isinstance(plan, str) else JoinRows(plan, self.steps)

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


@dataclass(frozen=True, eq=False)
class JoinAnswers(ABC):
    """A join of two tables, as operators read it; its parts are made when they are asked for."""

    planned: Planned
    node: Join
    """With the rules that have fired in its inputs, and its own so far."""
    _read: dict[str, Answers] = field(default_factory=dict, init=False, repr=False)
    """Whole answers, by their readers."""

    @property
    def bound(self) -> JoinBound:
        return self.planned.bound

    @property
    def is_staged(self) -> bool:
        return self.bound.topics is not None

    @property
    def fields(self) -> Mapping[str, Place]:
        """Columns of a joined row and its key; none where they are more than the rows' fields."""
        return self.bound.fields or {}

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
            return Answers(name, self._envelopes(columns), self._fields(columns), self._before)
        if name not in self._read:
            self._read[name] = Answers(name, self._envelopes(None), self.whole, self._before)
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

    @abstractmethod
    def keeping(self, condition: Bound) -> JoinAnswers | str:
        """The join, without rows of a table that a condition of its rows rules out; or why not."""

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

    def narrowed(self, node: N, off: Off, places: Iterable[Place] | None) -> tuple[N, Answers]:
        """An operator, and the answers with no more than it reads of them, if the rule allows it.

        ``places``: what it reads; None: everything.
        """
        if self.is_staged or places is None:
            return node, self.answers(node.name)
        read: dict[str, list[Path]] = {"left": [], "right": [], "key": []}
        for side, path in places:
            read[side].append(path)
        whole = self.kept
        less = Kept(narrow(whole.left, read["left"]), narrow(whole.right, read["right"]))
        node = answers_keep_what_is_read(node, off, ALL_READ if less == whole else None)
        columns = less if fired(node, ANSWERS_KEEP_WHAT_IS_READ) else None
        return node, self.answers(node.name, columns)

    @abstractmethod
    def _envelopes(self, columns: Kept | None) -> Physical:
        """The answers with these columns of both rows; None: with all that is kept."""

    @property
    def _joining(self) -> Joining:
        return Joining(self.node.name, self.bound.joiner)

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.planned.inputs[0].key_type)

    @cached_property
    def _needed(self) -> tuple[Join, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        left, right = (table.row_type for table in self.planned.inputs)
        whole = Kept(arrow_schema("left", left), arrow_schema("right", right))
        return with_needed(self.node, self.bound.settings.off, self.bound.joiner, whole)

    def _fields(self, columns: Kept) -> Fields:
        return Fields(self._key, columns.left, columns.right, self.node.how)

    def _unpack(self, columns: Kept, named: pa.Schema | None) -> UnpackAnswers:
        return UnpackAnswers(columns.left, columns.right, self.node.how, named)

    @property
    def _before(self) -> tuple[str, ...]:
        """The stages whose counters come with the answers: they are within the query."""
        return () if self.is_staged else ("rekey", "subscription")


class Prunable(Protocol):
    """Joins that are one, whose rows can be made with fewer columns."""

    def narrowed(
        self, node: N, off: Off, paths: Sequence[Path] | None
    ) -> tuple[N, Physical | None]:
        """Narrow the rows to what an operator reads; no rows if they are to be the table's own."""
