"""A join's answers before resolve: what they have of both rows, and rows made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import letters
from fkjoin.analysis.bound import Bound, for_workers, schema_of
from fkjoin.analysis.joiner import BoundJoiner
from fkjoin.analysis.planned import Planned, with_visible
from fkjoin.analysis.views import ViewStep
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.stage import framed, state_spec
from fkjoin.plan.nodes import Join, fired
from fkjoin.plan.optimizer import J, N, Off, answers_keep_what_is_read, join_keeps_what_it_needs
from fkjoin.plan.physical import Counted, InWorkers, MessagesOnly, Physical, by_spark
from fkjoin.plan.rules import (
    ANSWERS_KEEP_WHAT_IS_READ,
    JOIN_KEEPS_WHAT_IT_NEEDS,
    RESOLVE_MAKES_ROWS,
)
from fkjoin.spark.frame import KEY, LEFT_GONE, PACKED_KEY
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.schemas import arrow_schema, column_texts, spark_schema
from fkjoin.spark.specs import StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.stages.answer_rows import RowMaker
from fkjoin.stages.contribute import Fields, Place


class Kept(NamedTuple):
    """Columns that are kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


def needed(joiner: BoundJoiner, whole: Kept) -> Kept | str:
    """Find what the joiner needs of the rows; or say why it needs all of them."""
    if joiner.both_rows:
        return "the rows themselves are wanted"
    if joiner.bound is None:
        return "the joiner is a function, and may read any column"
    read: dict[str, list[Path]] = {"left": [], "right": []}
    for expression in joiner.bound:
        for side, *path in expression.paths:
            if side in read:
                read[side].append(tuple(path))
    less = Kept(narrow(whole.left, read["left"]), narrow(whole.right, read["right"]))
    return less if less != whole else "the joiner reads every column"


def narrow(schema: pa.Schema, paths: Iterable[Path]) -> pa.Schema:
    """The fields at the paths, in the schema's order.

    There is one at least, so that a row can be told from none.
    """
    wanted = list(paths)
    if () in wanted:
        return schema
    fields = []
    for column in schema:
        below = [path[1:] for path in wanted if path[0] == column.name]
        if below and pa.types.is_struct(column.type):
            inner = narrow(pa.schema(list(column.type)), below)
            fields.append(pa.field(column.name, pa.struct(list(inner))))
        elif below:
            fields.append(column)
    return pa.schema(fields or [min(schema, key=_size)])


def _size(field: pa.Field) -> int:
    """The room that a field takes."""
    try:
        return int(field.type.bit_width)
    except ValueError:  # as large as what is in it
        return 1 << 30


def evaluated(joiner: BoundJoiner) -> Columns | str | None:
    """The joiner for workers, or why Spark has to evaluate it; None without one."""
    if joiner.both_rows:
        return None
    if joiner.bound is None:
        return "the joiner is a function"
    kinds = schema_of(joiner.bound)
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        return "its one column is a struct, and may be null"
    columns = dict(zip(kinds.names, joiner.bound, strict=True))
    return for_workers(columns, f"joiner of {joiner.name}") or "the joiner is left to Spark"


@dataclass(frozen=True, eq=False)
class JoinedTables(Generic[J]):
    """A join of two tables: what is kept of their rows, and the rows that the joiner makes."""

    planned: Planned
    node: J
    """With the rules that have fired in its inputs, and its own so far."""

    @cached_property
    def kept(self) -> Kept:
        """Columns that are kept of both rows."""
        return self._needed[1]

    def joined(self, answers: Physical, unpack: UnpackAnswers) -> Physical:
        """Answers with the joiner's struct ``row``, or one of both rows; null without a result.

        With a ``problem`` where the joiner throws, and, of answers that have their keys' columns, a
        ``letter``: why it does.  ``on_error="fail"`` needs these columns.
        """
        named = unpack.named is not None
        unpacked = InWorkers(answers, unpack, spark_schema(unpack.schema))
        return by_spark(lambda frame: self._with_rows(frame, named=named), unpacked)

    def letters(self, answers: Physical) -> tuple[Physical, ...]:
        """The rows that dead letters come from, of answers on which the joiner throws."""
        if self.bound.joiner.tried.reason is None:
            return ()
        return (by_spark(self._letters, self.joined(answers, self._unpack(self._key))),)

    @property
    def bound(self) -> Any:
        """Needs of lowering the join."""
        return self.planned.bound

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.planned.inputs[0].key_type)

    @cached_property
    def _needed(self) -> tuple[J, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        left, right = (table.row_type for table in self.planned.inputs)
        whole = Kept(arrow_schema("left", left), arrow_schema("right", right))
        less = needed(self.bound.joiner, whole)
        obstacle = less if isinstance(less, str) else None
        node = join_keeps_what_it_needs(self.node, self.bound.settings.off, obstacle)
        if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS):
            return node, less
        return node, whole

    def _state_of(
        self,
        kind: type[StageSpec],
        columns: Kept,
        *,
        about: Mapping[str, Any],
        spread: int = 1,
        **facts: Any,
    ) -> StateSpec:
        """The words of a stage about its state, with these columns of both rows."""
        node = self.node
        bound_to = {
            "how": node.how,
            "joiner": node.joiner,
            "key": column_texts(self._key),
            "left": column_texts(columns.left),
            "right": column_texts(columns.right),
            **facts,
        }
        types = {"left": spark_schema(columns.left), "right": spark_schema(columns.right)}
        return state_spec(
            self.bound.settings,
            kind,
            self.planned.node,
            bound_to=bound_to,
            about={**about, **types},
            spread=spread,
        )

    def _unpack(self, named: pa.Schema | None) -> UnpackAnswers:
        return UnpackAnswers(self.kept.left, self.kept.right, self.node.how, named)

    def _with_rows(self, answers: DataFrame, *, named: bool) -> DataFrame:
        joiner, tried = self.bound.joiner, self.bound.joiner.tried
        columns: list[str] = ["key", "version", "ts", "gone"]
        if named:
            columns = ["named", "left", "right", *columns]
        problem = F.lit(None).cast("string") if tried.problem is None else tried.problem
        letter = []
        if named and tried.reason is not None:
            letter = [tried.reason.alias("letter")]
        row = F.when(F.col("matched"), joiner.row).alias("row")
        rows = joiner.on(answers)
        return rows.select(*columns, row, problem.alias("problem"), *letter, "counter", "count")

    def _letters(self, joined: DataFrame) -> DataFrame:
        rows = joined.select(F.col("named").alias(KEY), "left", "right", "letter")
        return letters(rows, F.col("letter"), self.node.name, F.struct("left", "right"))


def _as_frame(joined: DataFrame) -> DataFrame:
    packed = F.col("key").alias(PACKED_KEY), F.col("gone").alias(LEFT_GONE)
    return framed(joined, "named", F.col("row").isNull(), F.col("problem"), *packed)


ALL_READ = "every column is read"


class Answers(NamedTuple):
    """A join's answers before resolve, for one reader."""

    counted: Physical
    """The answers alone; counters are summed up."""
    fields: Fields


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
class JoinAnswers(JoinedTables[Join], ABC):
    """A join of two tables, as operators read it; its parts are made when they are asked for."""

    _read: dict[str, Answers] = field(default_factory=dict, init=False, repr=False)
    """Whole answers, by their readers."""

    @property
    def is_staged(self) -> bool:
        return self.bound.topics is not None

    @property
    def whole(self) -> Fields:
        """The fields of answers with all that is kept."""
        return self._fields(self.kept)

    def answers(self, reader: str | None = None, columns: Kept | None = None) -> Answers:
        """The answers for a reader.

        ``columns``: all that they have of both rows; None: all that is kept.  Each reader runs the
        join, and Spark counts by name.
        """
        # The join's name belongs to the counters of what resolve emits.
        name = f"{self.node.name}-answers"
        if reader is not None:
            name = f"{name}-for-{reader}"
        if columns is None and name in self._read:
            return self._read[name]
        counted = MessagesOnly(Counted(self._envelopes(columns), name, self._before))
        answers = Answers(counted, self._fields(columns or self.kept))
        if columns is None:
            self._read[name] = answers
        return answers

    def places_of(self, expressions: Iterable[Any], columns: pa.Schema) -> list[Place | None]:
        """Places of expressions over the columns of a joined row; None for more than a field."""
        return [self._place(plain_path(expression, columns)) for expression in expressions]

    def _place(self, path: Path | None) -> Place | None:
        """The place of a field of a joined row; None if there is no such field."""
        fields = self.bound.fields or {}
        if path is None or path[0] not in fields:
            return None
        side, above = fields[path[0]]
        inner = (*above, *path[1:])
        # An empty path is a whole row, which is more than a field.
        return (side, inner) if inner else None

    def places(self, paths: Sequence[Path] | None) -> list[Place] | None:
        """Places that the answers must have for paths of the rows; None: everything.

        Without a joiner rows are both rows, and a path in them one of left or right.
        """
        if not self.bound.joiner.both_rows or paths is None:
            return None
        return [(self.bound.fields[path[0]][0], path[1:]) for path in paths]

    @abstractmethod
    def keeping(self, condition: Bound) -> JoinAnswers | str:
        """The join, without rows of a table that a condition of its rows rules out; or why not."""

    def before_resolve(self, answers: Answers) -> Physical:
        """The rows before resolve, by Spark: with ``PACKED_KEY`` and ``LEFT_GONE``."""
        unpack = UnpackAnswers(answers.fields.left, answers.fields.right, self.node.how, self._key)
        return by_spark(_as_frame, self.joined(answers.counted, unpack))

    @cached_property
    def maker(self) -> RowMaker | str:
        """The way in which workers make rows of answers, or why Spark has to."""
        why = self.bound.settings.off.get(RESOLVE_MAKES_ROWS)
        if why is not None:
            return why
        columns = evaluated(self.bound.joiner)
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

    def _fields(self, columns: Kept) -> Fields:
        return Fields(self._key, columns.left, columns.right, self.node.how)

    @property
    def _before(self) -> tuple[str, ...]:
        """The stages whose counters come with the answers: they are within the query."""
        return () if self.is_staged else ("rekey", "subscription")
