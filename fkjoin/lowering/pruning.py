"""Fields of both rows of a join that are read, so that the others need not travel nor be kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from fkjoin.analysis.joiner import BoundJoiner
from fkjoin.codec.rows import Path
from fkjoin.plan.nodes import fired
from fkjoin.plan.optimizer import J, Off, join_keeps_what_it_needs
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS


class Kept(NamedTuple):
    """Columns that are kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


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
