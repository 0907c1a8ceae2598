"""Which fields of both rows a joiner reads, so that the others need not travel nor be kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.columns import listed, spark_schema
from fkjoin.joiner import is_function
from fkjoin.optimizer import allowed
from fkjoin.rows import Path
from fkjoin.rules import ANSWERS_KEEP_WHAT_IS_READ, JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.spark.json_lines import plain_path, plain_paths
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


def paths_of(given: Iterable[Any], row: pa.Schema, spark: SparkSession) -> list[Path]:
    """The paths of what is read by expressions over the columns of ``row``; Spark finds them in what is more than a name."""
    expressions, found = [], []
    for item in given:
        path = plain_path(item, row)
        if path is None:
            expressions.append(item)
        else:
            found.append(path)
    if not expressions:
        return found
    analyzed = _analyzed(expressions, row, spark)
    if analyzed is None:
        return [(name,) for name in row.names]
    named = {name.lower(): name for name in row.names}  # Spark calls columns as the user has written them
    for expression in analyzed:
        found += [(named[path[0].lower()], *path[1:]) for path in _paths(expression)]
    return found


def named_fields(given: Iterable[Any], row: pa.Schema, spark: SparkSession) -> list[tuple[str, Path]] | None:
    """What expressions over the columns of ``row`` are called, and the paths that they are; None if one is more than that."""
    chosen = list(given)
    if (plain := plain_paths(chosen, row)) is not None:
        return [(path[-1], path) for path in plain]
    analyzed = _analyzed(chosen, row, spark)
    named, found = {name.lower(): name for name in row.names}, []
    for expression in analyzed or ():
        path = _field(expression.child() if expression.getClass().getSimpleName() == "Alias" else expression)
        if path is None:
            return None
        found.append((str(expression.name()), (named[path[0].lower()], *path[1:])))
    return found or None


def _analyzed(given: list[Any], row: pa.Schema, spark: SparkSession) -> list[Any] | None:
    """The expressions as Spark understands them; None if it does not: whoever evaluates them says what is wrong."""
    expressions = [F.expr(item) if isinstance(item, str) else item for item in given]
    try:
        analyzed = spark.createDataFrame([], spark_schema(row)).select(*expressions)._jdf.queryExecution().analyzed()
    except AnalysisException:
        return None
    parts = analyzed.expressions()
    return [parts.apply(place) for place in range(parts.size())]


def _field(node: Any) -> Path | None:
    """The path of the column, or of the field in one, that an analyzed expression is; None if it is more."""
    below: list[str] = []
    while node.getClass().getSimpleName() == "GetStructField":
        below.insert(0, node.child().dataType().apply(node.ordinal()).name())
        node = node.child()
    return (node.name(), *below) if node.getClass().getSimpleName() == "AttributeReference" else None


def _paths(node: Any) -> Iterator[Path]:
    """What an analyzed expression reads of its input's columns."""
    if (path := _field(node)) is not None:
        yield path
        return
    children = node.children()
    for place in range(children.size()):
        yield from _paths(children.apply(place))
