"""Both tables of a join, packed for its first stages.

Left rows are changes with their foreign keys, or a join's answers as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic

import pyarrow as pa
from pyspark.sql import functions as F

from fkjoin.analysis.bound import Bound, for_workers
from fkjoin.analysis.joiner import ForeignKey
from fkjoin.analysis.planned import Settings
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.answers import Kept
from fkjoin.lowering.stage import packed
from fkjoin.lowering.table_plan import TablePlan, dead_of_all, pack_changes
from fkjoin.lowering.workers import read_by_workers
from fkjoin.plan.nodes import fired
from fkjoin.plan.optimizer import N, join_reads_answers
from fkjoin.plan.physical import Physical, by_spark
from fkjoin.plan.rules import JOIN_READS_ANSWERS, WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import plain_paths
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.schemas import arrow_schema
from fkjoin.stages.answer_rows import AnswerRows, CarryRows
from fkjoin.stages.contribute import Carry, leaves


@dataclass(frozen=True)
class PackedSides(Generic[N]):
    """Both tables' changes, packed."""

    node: N
    """After the rules that are for what reads a join's rows as left rows."""
    left: Physical
    right: Physical
    from_answers: Carry | CarryRows | None = None
    """Function that makes left rows of answers, where ``left`` is those as they are."""


@dataclass(frozen=True)
class JoinSides:
    """Both tables of a join by a foreign key."""

    left: TablePlan
    right: TablePlan
    foreign_key: ForeignKey
    settings: Settings

    def dead(self, reader: str) -> tuple[Physical, ...]:
        """The rows that dead letters of both tables come from, and of the extractor.

        It may throw on left rows.
        """
        thrown = self.left.dead_of(self.foreign_key.tried, reader)
        return (*dead_of_all(self.left, self.right), *thrown)

    def packed(self, node: N, columns: Kept) -> PackedSides[N]:
        """Pack what ``node`` reads."""
        left, off = self.left, self.settings.off
        pack = pack_changes(self.right, columns.right, self.settings)
        right = packed_right_rows(self.right, pack)
        carry = self._carry(columns)
        node = join_reads_answers(node, off, carry if isinstance(carry, str) else None)
        if not fired(node, JOIN_READS_ANSWERS):
            node, rows = self._narrowed(node, columns)
            return PackedSides(node, self._packed_left(rows, columns), right)
        if left.answers is not None and isinstance(carry, Carry):
            node, answers = left.answers.narrowed(node, off, carry.places)
            return PackedSides(node, answers.counted, right, replace(carry, fields=answers.fields))
        return self._before_resolve(node, columns, right)

    def _narrowed(self, node: N, columns: Kept) -> tuple[N, Physical]:
        """The left rows; of a multi-way join, with no more columns than are read."""
        multi = self.left.multi
        if multi is None:
            return node, self.left.rows
        node, fewer = multi(node, self.settings.off, self._read(columns))
        return node, self.left.rows if fewer is None else fewer

    def _before_resolve(self, node: N, columns: Kept, right: Physical) -> PackedSides[N]:
        """The rows of a join, and of views of it, before its resolve as left rows."""
        left = self.left
        assert left.join is not None
        places = left.join.places(self._read(columns))
        node, answers = left.join.plan.narrowed(node, self.settings.off, places)
        maker = left.join.maker
        by = for_workers_of(left, self.foreign_key.bound, self.settings)
        if isinstance(maker, str) or by is None:
            rows = left.join.rows(answers)
            return PackedSides(node, self._packed_left(rows, columns), right)
        joined = AnswerRows(answers.fields, maker, left.on_error == "fail")
        return PackedSides(node, answers.counted, right, CarryRows(joined, by, columns.left))

    @property
    def _right_key(self) -> pa.Schema:
        return arrow_schema("right", self.right.key_type)

    def _packed_left(self, rows: Physical, columns: Kept) -> Physical:
        pack = pack_changes(self.left, columns.left, self.settings, self._right_key)
        keyed = by_spark(self.foreign_key.on, self.left.visible_in(rows))
        return packed_left_rows(self.left, keyed, self.foreign_key.bound, self.settings, pack)

    def _read(self, columns: Kept) -> list[Path] | None:
        """The paths of what is read of left rows; None: everything."""
        if self.foreign_key.bound is None:
            return None
        paths = chain.from_iterable(expression.paths for expression in self.foreign_key.bound)
        return [*paths, *leaves(columns.left)]

    def _carry(self, columns: Kept) -> Carry | str:
        """The way to take left rows from the answers of the join that the table is.

        A text says why they cannot be taken from there.
        """
        join, bound = self.left.answers, self.foreign_key.bound
        if join is None:
            return "its rows are more than fields of both rows"
        if bound is None:
            return "the foreign key is more than a field"
        keys = join.places_of([key.expression for key in bound], self.left.planned.scope.schema)
        places = tuple(key for key in keys if key is not None)
        if len(places) < len(keys):
            return "the foreign key is more than a field"
        row = tuple(join.bound.fields[name] for name in columns.left.names)
        return Carry(join.whole, places, row, self._right_key, columns.left)


def packed_right_rows(right: TablePlan, pack: PackChanges) -> Physical:
    """The changes of a right table, packed."""
    if right.undecoded is not None:
        return read_by_workers(right.undecoded, pack, failing=right.failing)
    return packed(right.rows, pack, foreign_key=F.lit(None))


def packed_left_rows(
    left: TablePlan,
    rows: Physical,
    bound: Sequence[Bound] | None,
    settings: Settings,
    pack: PackChanges,
) -> Physical:
    """The changes of a left table, packed with their foreign keys; ``rows`` have them.

    ``bound``: the extractor's expressions; None where one is a function.
    """
    if left.undecoded is not None:
        by = for_workers_of(left, bound, settings)
        if by is not None:
            return read_by_workers(left.undecoded, pack, foreign_key=by, failing=left.failing)
    return packed(rows, pack, "foreign_key")


def for_workers_of(
    left: TablePlan, bound: Sequence[Bound] | None, settings: Settings
) -> Columns | None:
    """The foreign key for workers; None if Spark has to evaluate it."""
    if bound is None:
        return None
    plain = plain_paths([key.expression for key in bound], left.planned.scope.schema)
    if plain is None and WORKERS_EVALUATE_STEPS in settings.off:
        return None
    named = {f"k{number}": key for number, key in enumerate(bound)}
    return for_workers(named, f"extractor of {left.name}")
