"""Columns of what a user may give where one is wanted, with errors that help.

A user may give a name, SQL text or a Column.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.errors import ColumnTypeError, TopologyError, plain_line
from fkjoin.spark.names import named, quoted, quoted_if_needed
from fkjoin.spark.schemas import Expression, Expressions, listed, text

_DOTTED = re.compile(r"\w+(\.\w+)+")
_QUOTED = re.compile("`((?:[^`]|``)*)`")
_OF_TYPES = "DATATYPE_MISMATCH", "INVALID_EXTRACT"
_NO_SUCH = (
    "FIELD_NOT_FOUND",
    "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION",
)


def resolve_column(
    argument: str, expression: Expression, frame: DataFrame, names: Iterable[str], table: str
) -> Column:
    """The expression as a Column over ``frame``: a name among ``names``, SQL text, or a Column.

    Raises ``TopologyError`` that says which ``argument`` and what ``table`` has instead.
    """
    known = list(names)
    if named(expression, known) is not None:
        return column_of(argument, expression, known)
    try:
        with said_once():
            column = column_of(argument, expression, known)
            columns = frame.select(column).columns  # analysis happens here
    except AnalysisException as error:
        message = f"{argument}: {_explain(text(expression), error, known, table, frame)}"
        if (error.getCondition() or "").startswith(_OF_TYPES):
            raise ColumnTypeError(message) from error
        raise TopologyError(message) from error
    if len(columns) != 1:
        raise TopologyError(
            f"{argument}: {text(expression)} expands to {len(columns)} columns, and exactly one is "
            "needed: name that column"
        )
    return column


def column_of(argument: str, expression: Expression, names: Iterable[str]) -> Column:
    """The expression as a Column that is not analyzed yet.

    SQL that does not parse raises ``AnalysisException``.
    """
    if (name := named(expression, list(names))) is not None:
        return F.col(quoted(name))
    if not isinstance(expression, str | Column):
        raise TopologyError(
            f"{argument}: a column name, SQL text or Column is needed, {expression!r} is a "
            f"{type(expression).__name__}"
        )
    return F.expr(expression) if isinstance(expression, str) else expression


@contextlib.contextmanager
def said_once() -> Iterator[None]:
    """Keep PySpark from logging an error of its analyzer, which is explained here.

    It would log it with Java's stack.
    """
    kinds = "SQL", "DataFrame"
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in kinds]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def without_stars(
    expressions: Expressions, frame: DataFrame, names: Iterable[str]
) -> list[Expression]:
    """Expressions over ``frame``, each ``*`` written out as the columns ``names``.

    Each ``struct.*`` is written out as the struct's fields.  A column that is called so is meant by
    its name in backticks.
    """
    known, expanded = list(names), list[Expression]()
    for item in listed(expressions):
        written = text(item).strip() if isinstance(item, str | Column) else ""
        written = re.sub(r"(\.\*)+$", ".*", written)  # PySpark writes F.col("left.*") with two
        if written == "*":
            expanded += known
        elif written.endswith(".*") and (fields := _fields_in(written.removesuffix(".*"), frame)):
            struct = written.removesuffix(".*")
            expanded += (f"{struct}.{quoted_if_needed(name)}" for name in fields)
        else:
            expanded.append(item)
    return expanded


def _fields_in(struct: str, frame: DataFrame) -> list[str]:
    """The names of a struct's fields; none if there is no such struct."""
    try:
        kind = frame.select(F.expr(struct)).schema[0].dataType
    except AnalysisException:  # resolve_column says what is wrong
        return []
    return kind.names if isinstance(kind, StructType) else []


def require_names(
    argument: str, expressions: Expressions, names: Iterable[str], table: str
) -> tuple[str, ...]:
    """Column names that must all be there."""
    known = list(names)
    chosen = listed(expressions)
    if not chosen:
        raise TopologyError(
            f"{argument}: name at least one column of {table}; it has {', '.join(known)}"
        )
    for name in chosen:
        if not isinstance(name, str):
            raise TopologyError(
                f"{argument}: a column name is needed, {name!r} is a {type(name).__name__}"
            )
        if named(name, known) is None:
            raise TopologyError(f"{argument}: {_no_column(name, known, table)}")
    return tuple(name for item in chosen if (name := named(item, known)) is not None)


def _no_column(name: str, known: list[str], table: str, within: Sequence[str] = ()) -> str:
    """``within``: fields of columns that are called so."""
    close = [*within, *difflib.get_close_matches(name, known, 1)]
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{table} has no column {name!r}{hint} It has: {', '.join(known)}."


def _within(name: str, fields: list[str]) -> list[str]:
    """Fields that have the name."""
    wanted = name.lower()
    return [field for field in fields if field.rpartition(".")[2].strip("`").lower() == wanted]


def _fields(frame: DataFrame, known: Sequence[str]) -> list[str]:
    """The fields of the known columns that are structs, as expressions name them.

    Without known ones, the fields of all columns.
    """
    structs = {
        field.name: field.dataType.names
        for field in frame.schema
        if isinstance(field.dataType, StructType)
    }
    fields: list[str] = []
    for column in known or structs:
        name = quoted_if_needed(column)
        fields += (f"{name}.{quoted_if_needed(inner)}" for inner in structs.get(column, []))
    return fields


def _explain(
    expression: str, error: AnalysisException, known: list[str], table: str, frame: DataFrame
) -> str:
    fields = _fields(frame, known)
    if expression.isidentifier():
        return _no_column(expression, known or fields, table, _within(expression, fields))
    if error.getCondition() in _NO_SUCH:
        if _DOTTED.fullmatch(expression):
            return _no_column(expression, [*known, *fields], table)
        if (name := _unresolved(error)) is not None:
            close = _within(name, fields)
            choice = known if known and "." not in name else [*known, *fields]
            return f"in {expression!r}, {_no_column(name, choice, table, close)}"
    columns = ", ".join(known or fields)
    return f"{expression!r} cannot be evaluated over {table} ({columns}): {plain_line(error)}"


def _unresolved(error: AnalysisException) -> str | None:
    """The name that Spark does not find; None if it names none."""
    name = (error.getMessageParameters() or {}).get("objectName")
    if name is None:
        return None
    return ".".join(part.replace("``", "`") for part in _QUOTED.findall(name)) or None
