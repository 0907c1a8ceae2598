"""The foreign keys of a table's rows: as a user gives them, checked, and packed with the rows' changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.analysis.attempt import attempt, every_row, letters
from fkjoin.analysis.columns import resolve_column
from fkjoin.analysis.vectorize import vectors
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Columns
from fkjoin.errors import AS_BEGUN, FkJoinError, TopologyError
from fkjoin.lowering.joiner import is_function
from fkjoin.lowering.pruning import narrowed, narrowed_rows
from fkjoin.lowering.stage import once, packing_columns
from fkjoin.lowering.workers import packed_by_workers
from fkjoin.plan.nodes import fired, starts_over
from fkjoin.plan.optimizer import N, Off, join_reads_answers
from fkjoin.plan.rules import JOIN_READS_ANSWERS, WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import switched_off
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.json_lines import plain_paths
from fkjoin.spark.names import quoted
from fkjoin.spark.operator import ENVELOPE
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.returned import as_type
from fkjoin.spark.schemas import Expression, arrow_schema, listed, text
from fkjoin.stages.answer_rows import AnswerRows, CarryRows, thrown_text
from fkjoin.stages.contribute import Carry, leaves
from fkjoin.table import Extractor, Joiner, Table

THROWN = "__fkjoin_thrown"


def require_table(argument: str, table: Any) -> None:
    """``TopologyError`` with the way out if it is no table."""
    if not isinstance(table, Table):
        hint = "wrap it with Table.from_stream(df, key=…, version=…)" if isinstance(table, DataFrame) else "see Table"
        raise TopologyError(f"{argument}: a Table is needed, this is a {type(table).__name__}; {hint}")


def require_same_timestamps(left: Table, right: Table) -> None:
    if left.timestamps and right.timestamps and left.timestamps != right.timestamps:
        raise TopologyError(
            f"right: timestamps are {right.timestamps} here and {left.timestamps} in left; make both the same type"
        )


def dead_frames(left: Table, right: Table, rows: DataFrame, extractor: Extractor) -> tuple[DataFrame, ...]:
    """The frames that dead letters of both tables come from, and of an extractor that throws on ``rows``."""
    dead = once((*left.dead, *right.dead))
    if left.on_error == "dead-letter" and THROWN in rows.columns:
        rows = with_foreign_key(left, right, extractor, every_row(left))
        dead += (letters(rows, F.col(THROWN), left.name),)
    return dead


@dataclass(frozen=True)
class Sides(Generic[N]):
    """Both tables' changes, packed."""

    node: N
    """After the rules that are for what reads a join's rows as left rows."""
    left: DataFrame
    right: DataFrame
    from_answers: Carry | CarryRows | None = None
    """What makes changes of answers, where ``left`` is those as they are."""


def packed_sides(
    node: N,
    off: Off,
    left: Table,
    right: Table,
    rows: DataFrame,
    extractor: Extractor,
    schemas: tuple[pa.Schema, pa.Schema, pa.Schema, pa.Schema],
    buckets: int,
    *,
    validate: bool,
) -> Sides[N]:
    """What ``node`` reads.  ``rows``: ``with_foreign_key``'s; ``schemas``: of both keys, then of both rows."""
    key, foreign_key, left_row, right_row = schemas
    without = right.frame.withColumn("foreign_key", F.lit(None))
    pack = PackChanges(foreign_key, None, right_row, buckets, validate, start_over=starts_over(right.node))
    packed_right = packed(right, without, None, pack)
    carry = _carry(left, extractor, foreign_key, left_row)
    node = join_reads_answers(node, off, carry if isinstance(carry, str) else None)
    if fired(node, JOIN_READS_ANSWERS) and left.answers is not None and isinstance(carry, Carry):
        node, answers = narrowed(node, off, left.answers, carry.places)
        return Sides(node, answers.counted, packed_right, replace(carry, fields=answers.of))
    if fired(node, JOIN_READS_ANSWERS):
        assert left.early is not None
        node, answers = narrowed(node, off, left.early.answers, left.early.places(_read(left, extractor, left_row)))
        if not isinstance(left.early.made, str) and (by := _foreign_key(left, extractor)) is not None:
            carried = CarryRows(AnswerRows(answers.of, left.early.made, left.on_error == "fail"), by, left_row)
            return Sides(node, answers.counted, packed_right, carried)
        rows = with_foreign_key(left, right, extractor, left.early.frame(answers))
    elif left.narrow is not None:
        node, fewer = narrowed_rows(node, off, left.narrow, _read(left, extractor, left_row))
        rows = with_foreign_key(left, right, extractor, fewer)
    pack = PackChanges(key, foreign_key, left_row, buckets, validate, start_over=starts_over(left.node))
    packed_left = packed(left, rows, extractor, pack)
    return Sides(node, packed_left, packed_right)


def _read(left: Table, extractor: Extractor, row: pa.Schema) -> list[Path] | None:
    """The paths of what is read of left rows, of which so much is kept; None: everything."""
    return None if is_function(extractor) else [*left.reads(listed(extractor)), *leaves(row)]


def _foreign_key(left: Table, extractor: Extractor) -> Columns | None:
    """The foreign key for workers; None if Spark has to evaluate it."""
    rows, names, given = left.visible(), [*left.row_type.names, *left.key], listed(extractor)
    if any(map(is_function, given)):
        return None
    if plain_paths(given, left.visible_schema) is None and WORKERS_EVALUATE_STEPS in switched_off(rows.sparkSession):
        return None
    found = [resolve_column("extractor", item, rows, names, f"left table {left.name}") for item in given]
    return vectors({f"k{place}": column for place, column in enumerate(found)}, rows, names, f"extractor of {left.name}")


def _carry(left: Table, extractor: Extractor, foreign_key: pa.Schema, row: pa.Schema) -> Carry | str:
    """How to take the rows of the join that ``left`` is from its answers; or why they cannot be taken from there."""
    answers = left.answers
    if answers is None:
        return "its rows are more than fields of both rows"
    whole = arrow_schema("left", left.row_type)
    found = [None] if is_function(extractor) else answers.places(listed(extractor), whole)
    places = tuple(place for place in found if place is not None)
    if len(places) < len(found):
        return "the foreign key is more than a field"
    return Carry(answers.of, places, tuple(answers.fields[name] for name in row.names), foreign_key, row)


def packed(table: Table, rows: DataFrame, extractor: Extractor | None, pack: PackChanges) -> DataFrame:
    """The table's changes, with foreign keys if there is an extractor, packed; ``rows`` is the frame that has them."""
    if table.unread is not None:
        by = None if extractor is None else _foreign_key(table, extractor)
        if extractor is None or by is not None:
            return packed_by_workers(table, pack, by)
    return rows.select(*packing_columns(), "foreign_key").mapInArrow(pack, ENVELOPE)


def with_foreign_key(left: Table, right: Table, extractor: Extractor, frame: DataFrame | None = None) -> DataFrame:
    """The left frame, or another one of its rows, with a struct ``foreign_key``, null in deletes, of the right key's types;
    problems old and new, and, where the extractor can throw, ``THROWN``, why it did.
    """
    wanted = right.key_type
    row = left.row_type.names
    names = [*row, *(name for name in left.key if name not in row)]
    visible = left.visible(frame)
    rows = visible
    problem, reason = F.col(PROBLEM), None
    if is_function(extractor):
        value = F.col(quoted(KEY, left.key[0])) if len(left.key) == 1 else F.col(KEY)
        members = StructType([StructField(f"k{at}", field.dataType) for at, field in enumerate(wanted)])
        kind = StructType([*members, StructField("problem", StringType())])
        function = _extracting(extractor, members, left.name, fail=left.on_error == "fail")
        called = F.udf(function, kind)(problem, value, F.col(ROW))
        found = [called.getField(member.name) for member in members]
        reason = called.getField("problem")
        problem = F.coalesce(problem, reason)
    else:
        given = listed(extractor)
        found = [resolve_column("extractor", item, visible, names, f"left table {left.name}") for item in given]
        _check_types(visible, given, found, left, right)
        tried = attempt("extractor", left.name, given, found, visible, left.on_error)
        found, rows, problem, reason = list(tried.columns), tried.on(visible), tried.problems, tried.reason
    foreign_key = F.when(~F.col(DELETED), F.struct(*[column.alias(f"k{at}") for at, column in enumerate(found)]))
    raw = [RAW] if RAW in left.frame.columns else []
    thrown = [] if reason is None else [reason.alias(THROWN)]
    return rows.select(
        *(KEY, ROW, DELETED, VERSION, SOURCE, TS),
        problem.alias(PROBLEM),
        *thrown,
        *raw,
        foreign_key.alias("foreign_key"),
    )


def _check_types(visible: DataFrame, given: list[Expression], found: list[Column], left: Table, right: Table) -> None:
    wanted = right.key_type
    if len(found) != len(wanted):
        raise TopologyError(
            f"extractor: {len(found)} column{'s' * (len(found) != 1)} given, but the key of right table {right.name} has "
            f"{len(wanted)} ({', '.join(wanted.names)}); give one for each, in that order"
        )
    types = [field.dataType for field in visible.select(*[c.alias(f"k{i}") for i, c in enumerate(found)]).schema]
    for item, kind, field in zip(given, types, wanted, strict=True):
        if kind.simpleString() != field.dataType.simpleString():
            raise TopologyError(
                f"extractor: {text(item)} of left table {left.name} is {kind.simpleString()}, but key column {field.name} of "
                f"right table {right.name} is {field.dataType.simpleString()}; cast one of them, for instance "
                f'extractor="cast({text(item)} as {field.dataType.simpleString()})"{AS_BEGUN}'
            )


def _extracting(
    extractor: Callable[[Any, Any], Any], kind: StructType, table: str, *, fail: bool
) -> Callable[[Any, Any, Any], Any]:
    """The extractor, called for usable rows only; returns its columns and, unless it is to ``fail``, what it threw instead.

    What is not of its ``kind`` counts as thrown.
    """
    columns = len(kind)

    def extract(problem: Any, key: Any, row: Any) -> Any:
        if problem is not None or row is None:
            return None
        try:
            found = extractor(key, row)
            if columns > 1 and not isinstance(found, list | tuple | None):
                raise TypeError(f"{found!r:.200} is no tuple of {columns}")
            values = (None,) * columns if found is None else tuple(found) if columns > 1 else (found,)
            values = as_type(values, kind)
        except Exception as error:
            if fail:
                raise FkJoinError(thrown_text(f"extractor of {table}", key, error)) from error
            return (None,) * columns + (f"extractor: {type(error).__name__}: {error}",)
        return (*values, None)

    return extract


def described(given: Extractor | Joiner, *arguments: str) -> str:
    """How an extractor or joiner reads in ``describe()``."""
    if is_function(given):
        return f"{getattr(given, '__name__', type(given).__name__)}({', '.join(arguments)})"
    return ", ".join(text(item) for item in listed(given))
