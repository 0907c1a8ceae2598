"""Fields of both rows of a join that are read, so that the others need not travel nor be kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from fkjoin.analysis.joiner import BoundJoiner
from fkjoin.codec.rows import Path
from fkjoin.plan.nodes import fired
from fkjoin.plan.optimizer import J, N, Off, answers_keep_what_is_read, join_keeps_what_it_needs
from fkjoin.plan.physical import Physical
from fkjoin.plan.rules import ANSWERS_KEEP_WHAT_IS_READ, JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.stages.contribute import Place

if TYPE_CHECKING:
    from fkjoin.lowering.joins import Answers, JoinPlan
    from fkjoin.lowering.multi_join import MultiJoinPlan

_ALL_READ = "every column is read"


class Kept(NamedTuple):
    """Columns that are kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


def narrowed(
    node: N, off: Off, join: JoinPlan, places: Iterable[Place] | None
) -> tuple[N, Answers]:
    """An operator, and the answers with no more than it reads of them, if the rule allows it.

    ``places``: what it reads; None: everything.
    """
    if join.is_staged or places is None:
        return node, join.answers(node.name)
    read: dict[str, list[Path]] = {"left": [], "right": [], "key": []}
    for side, path in places:
        read[side].append(path)
    whole = join.kept
    less = Kept(narrow(whole.left, read["left"]), narrow(whole.right, read["right"]))
    node = answers_keep_what_is_read(node, off, _ALL_READ if less == whole else None)
    columns = less if fired(node, ANSWERS_KEEP_WHAT_IS_READ) else None
    return node, join.answers(node.name, columns)


def narrowed_rows(
    node: N, off: Off, joins: MultiJoinPlan, paths: Sequence[Path] | None
) -> tuple[N, Physical | None]:
    """Narrow the rows of joins that are one; no rows if they are to be the table's own."""
    less = paths is not None and joins.can_be_less(paths)
    node = answers_keep_what_is_read(node, off, None if less else _ALL_READ)
    if paths is None or not fired(node, ANSWERS_KEEP_WHAT_IS_READ):
        return node, None
    return node, joins.rows_with(paths, node.name)


def with_needed(node: J, off: Off, joiner: BoundJoiner, whole: Kept) -> tuple[J, Kept]:
    """A join after the rule for what its joiner reads, and what is kept of both rows."""
    less = needed(joiner, whole)
    obstacle = less if isinstance(less, str) else None
    node = join_keeps_what_it_needs(node, off, obstacle)
    if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS):
        return node, less
    return node, whole


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
    for field in schema:
        below = [path[1:] for path in wanted if path[0] == field.name]
        if below and pa.types.is_struct(field.type):
            inner = narrow(pa.schema(list(field.type)), below)
            fields.append(pa.field(field.name, pa.struct(list(inner))))
        elif below:
            fields.append(field)
    return pa.schema(fields or [min(schema, key=_size)])


def _size(field: pa.Field) -> int:
    """The room that a field takes."""
    try:
        return int(field.type.bit_width)
    except ValueError:  # as large as what is in it
        return 1 << 30
