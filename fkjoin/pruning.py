"""Which fields of both rows a joiner reads, so that the others need not travel nor be kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from fkjoin.analyzed import paths_of
from fkjoin.columns import listed
from fkjoin.joiner import is_function
from fkjoin.optimizer import allowed
from fkjoin.rows import Path
from fkjoin.rules import ANSWERS_KEEP_WHAT_IS_READ, JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.stages.contribute import Fields, Place
from fkjoin.table import Joiner
from fkjoin.topology import Verdict


class Kept(NamedTuple):
    """What is kept of both rows."""

    left: pa.Schema
    right: pa.Schema
    rule: Verdict | None
    """Whether that is less than all; None where there is no joiner, and the rows themselves are wanted."""


def read(places: Iterable[Place], whole: Fields, spark: SparkSession) -> tuple[pa.Schema, pa.Schema, Verdict]:
    """What is at places of answers, of both rows; and whether that is less than all."""
    if (why := allowed(spark, ANSWERS_KEEP_WHAT_IS_READ)) is None:
        wanted = list(places)
        left, right = (
            narrow(schema, [path for of, path in wanted if of == side])
            for side, schema in (("left", whole.left), ("right", whole.right))
        )
        if (left, right) != (whole.left, whole.right):
            return left, right, Verdict(ANSWERS_KEEP_WHAT_IS_READ)
        why = "every column is read"
    return whole.left, whole.right, Verdict(ANSWERS_KEEP_WHAT_IS_READ, why)


def needed(joiner: Joiner | None, left: pa.Schema, right: pa.Schema, spark: SparkSession) -> Kept:
    """What the joiner needs of rows with these schemas."""
    if joiner is None:
        return Kept(left, right, None)
    if (why := allowed(spark, JOIN_KEEPS_WHAT_IT_NEEDS)) is None and is_function(joiner):
        why = "the joiner is a function, and may read any column"
    if why is None:
        whole = pa.schema([("left", pa.struct(list(left))), ("right", pa.struct(list(right)))])
        paths = paths_of(listed(joiner), whole, spark)
        of_left, of_right = ([path[1:] for path in paths if path[0] == side] for side in whole.names)
        less = Kept(narrow(left, of_left), narrow(right, of_right), Verdict(JOIN_KEEPS_WHAT_IT_NEEDS))
        if (less.left, less.right) != (left, right):
            return less
        why = "the joiner reads every column"
    return Kept(left, right, Verdict(JOIN_KEEPS_WHAT_IT_NEEDS, why))


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
