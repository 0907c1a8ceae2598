"""Fields of both rows of a join that are read, so that the others need not travel nor be kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from fkjoin.analysis.joiner import BoundJoiner
from fkjoin.codec.rows import Path
from fkjoin.lowering.lowered import Answers, Kept, Narrow
from fkjoin.plan.nodes import fired
from fkjoin.plan.optimizer import N, Off, answers_keep_what_is_read
from fkjoin.plan.rules import ANSWERS_KEEP_WHAT_IS_READ
from fkjoin.stages.contribute import Place

_ALL_READ = "every column is read"


def narrowed(node: N, off: Off, answers: Answers, places: Iterable[Place] | None) -> tuple[N, Answers]:
    """An operator, and the answers with no more than what it reads of them (None: everything) if the rule allows it."""
    whole = answers.read_by(node.name)
    if answers.less is None or places is None:
        return node, whole
    wanted, of = list(places), answers.of
    left, right = ([path for side, path in wanted if side == name] for name in ("left", "right"))
    kept = Kept(narrow(of.left, left), narrow(of.right, right))
    node = answers_keep_what_is_read(node, off, _ALL_READ if kept == (of.left, of.right) else None)
    return node, answers.less(kept, node.name) if fired(node, ANSWERS_KEEP_WHAT_IS_READ) else whole


def narrowed_rows(node: N, off: Off, rows: Narrow, paths: Sequence[Path] | None) -> tuple[N, DataFrame | None]:
    """Narrow the rows of joins that are one; no frame if it is to be the table's own."""
    less = paths is not None and rows.possible(paths)
    node = answers_keep_what_is_read(node, off, None if less else _ALL_READ)
    if paths is None or not fired(node, ANSWERS_KEEP_WHAT_IS_READ):
        return node, None
    return node, rows.frame(paths, node.name)


def needed(joiner: BoundJoiner, whole: Kept) -> Kept | str:
    """Find what the joiner needs of the rows; or say why it needs all of them."""
    if joiner.bound is None:
        return "the rows themselves are wanted" if joiner.both_rows else "the joiner is a function, and may read any column"
    paths = [path for one in joiner.bound for path in one.paths]
    of_left, of_right = ([path[1:] for path in paths if path[0] == side] for side in ("left", "right"))
    less = Kept(narrow(whole.left, of_left), narrow(whole.right, of_right))
    return less if less != whole else "the joiner reads every column"


def narrow(schema: pa.Schema, paths: Iterable[Path]) -> pa.Schema:
    """The fields at the paths, in the schema's order; one at least, so that a row that is there can be told from none."""
    wanted = list(paths)
    if () in wanted:
        return schema
    fields = []
    for field in schema:
        below = [path[1:] for path in wanted if path[0] == field.name]
        if below and pa.types.is_struct(field.type):
            fields.append(pa.field(field.name, pa.struct(list(narrow(pa.schema(list(field.type)), below)))))
        elif below:
            fields.append(field)
    return pa.schema(fields or [_smallest(schema)])


def _smallest(schema: pa.Schema) -> pa.Field:
    """A field that takes little room."""

    def size(field: pa.Field) -> int:
        try:
            return int(field.type.bit_width)
        except ValueError:  # as large as what is in it
            return 1 << 30

    return min(schema, key=size)
