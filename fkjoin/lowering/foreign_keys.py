"""Both tables of a join, packed for its first stages: changes with their foreign keys, or a join's answers as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.attempt import letters
from fkjoin.analysis.bound import Bound, for_workers
from fkjoin.analysis.extractor import THROWN, ForeignKey
from fkjoin.analysis.planned import Settings
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Columns
from fkjoin.lowering.lowered import Lowered, dead_of_all
from fkjoin.lowering.pruning import narrowed, narrowed_rows
from fkjoin.lowering.stage import packing_columns
from fkjoin.lowering.workers import packed_by_workers
from fkjoin.plan.nodes import fired, starts_over
from fkjoin.plan.optimizer import N, join_reads_answers
from fkjoin.plan.rules import JOIN_READS_ANSWERS, WORKERS_EVALUATE_STEPS
from fkjoin.spark.json_lines import plain_paths
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackChanges
from fkjoin.stages.answer_rows import AnswerRows, CarryRows
from fkjoin.stages.contribute import Carry, leaves


@dataclass(frozen=True)
class PackedSides(Generic[N]):
    """Both tables' changes, packed."""

    node: N
    """After the rules that are for what reads a join's rows as left rows."""
    left: DataFrame
    right: DataFrame
    from_answers: Carry | CarryRows | None
    """Function that makes left rows of answers, where ``left`` is those as they are."""


def dead_frames(left: Lowered, right: Lowered, foreign_key: ForeignKey, reader: str) -> tuple[DataFrame, ...]:
    """The frames that dead letters of both tables come from, and of an extractor that throws on left rows."""
    dead = dead_of_all(left, right)
    if left.on_error == "dead-letter" and foreign_key.tried.reason is not None:
        rows = foreign_key.on(left.visible_in(left.every_row(f"{reader}-letters")))
        dead += (letters(rows, F.col(THROWN), left.name),)
    return dead


def packed_sides(
    node: N,
    settings: Settings,
    left: Lowered,
    *,
    right: Lowered,
    foreign_key: ForeignKey,
    schemas: tuple[pa.Schema, pa.Schema, pa.Schema, pa.Schema],
) -> PackedSides[N]:
    """Pack what ``node`` reads; ``schemas``: of both keys, then of both rows."""
    key, right_key, left_row, right_row = schemas
    off, buckets, validate = settings.off, settings.buckets, settings.validate
    pack = PackChanges(right_key, None, right_row, buckets, validate, start_over=starts_over(right.node))
    packed_right = packed_right_rows(right, pack)
    carry = _carry(left, foreign_key, right_key, left_row)
    node = join_reads_answers(node, off, carry if isinstance(carry, str) else None)
    if fired(node, JOIN_READS_ANSWERS) and left.answers is not None and isinstance(carry, Carry):
        node, answers = narrowed(node, off, left.answers, carry.places)
        return PackedSides(node, answers.counted, packed_right, replace(carry, fields=answers.of))
    frame = left.frame
    if fired(node, JOIN_READS_ANSWERS):
        pre_resolve = left.pre_resolve
        assert pre_resolve is not None
        places = pre_resolve.places(_read(foreign_key, left_row))
        node, answers = narrowed(node, off, pre_resolve.answers, places)
        by = None if isinstance(pre_resolve.made, str) else _for_workers(left, foreign_key.bound, settings)
        if not isinstance(pre_resolve.made, str) and by is not None:
            carried = CarryRows(AnswerRows(answers.of, pre_resolve.made, left.on_error == "fail"), by, left_row)
            return PackedSides(node, answers.counted, packed_right, carried)
        frame = pre_resolve.frame(answers)
    elif left.narrow is not None:
        node, fewer = narrowed_rows(node, off, left.narrow, _read(foreign_key, left_row))
        frame = left.frame if fewer is None else fewer
    pack = PackChanges(key, right_key, left_row, buckets, validate, start_over=starts_over(left.node))
    rows = foreign_key.on(left.visible_in(frame))
    return PackedSides(node, packed_left_rows(left, rows, foreign_key.bound, settings, pack), packed_right, None)


def packed_right_rows(right: Lowered, pack: PackChanges) -> DataFrame:
    """The changes of a right table, packed."""
    if right.undecoded is not None:
        return packed_by_workers(right, pack)
    return _packed(right.frame.withColumn("foreign_key", F.lit(None)), pack)


def packed_left_rows(
    left: Lowered, rows: DataFrame, bound: Sequence[Bound] | None, settings: Settings, pack: PackChanges
) -> DataFrame:
    """The changes of a left table, packed with their foreign keys; ``rows`` is the frame that has them.

    ``bound``: the extractor's expressions; None where one is a function.
    """
    if left.undecoded is not None and (by := _for_workers(left, bound, settings)) is not None:
        return packed_by_workers(left, pack, by)
    return _packed(rows, pack)


def _packed(rows: DataFrame, pack: PackChanges) -> DataFrame:
    return rows.select(*packing_columns(), "foreign_key").mapInArrow(pack, ENVELOPE)


def _read(foreign_key: ForeignKey, row: pa.Schema) -> list[Path] | None:
    """The paths of what is read of left rows, of which so much is kept; None: everything."""
    if foreign_key.bound is None:
        return None
    return [*(path for one in foreign_key.bound for path in one.paths), *leaves(row)]


def _for_workers(left: Lowered, bound: Sequence[Bound] | None, settings: Settings) -> Columns | None:
    """The foreign key for workers; None if Spark has to evaluate it."""
    if bound is None:
        return None
    plain = plain_paths([one.given for one in bound], left.planned.scope.schema)
    if plain is None and WORKERS_EVALUATE_STEPS in settings.off:
        return None
    return for_workers({f"k{place}": one for place, one in enumerate(bound)}, f"extractor of {left.name}")


def _carry(left: Lowered, foreign_key: ForeignKey, key: pa.Schema, row: pa.Schema) -> Carry | str:
    """The way to take the rows of the join that ``left`` is from its answers; or why they cannot be taken from there."""
    answers = left.answers
    if answers is None:
        return "its rows are more than fields of both rows"
    bound = foreign_key.bound
    places = [None] if bound is None else answers.places([one.given for one in bound], left.planned.scope.schema)
    fields = tuple(place for place in places if place is not None)
    if len(fields) < len(places):
        return "the foreign key is more than a field"
    return Carry(answers.of, fields, tuple(answers.fields[name] for name in row.names), key, row)
