"""A user's expressions, analyzed once: the engine reads from that all it wants to know of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from fkjoin.analysis import vectorize
from fkjoin.analysis.columns import column_of, resolve_column, said_once, without_stars
from fkjoin.codec.expressions import Part
from fkjoin.codec.rows import Path
from fkjoin.codec.vectors import Columns
from fkjoin.errors import ColumnTypeError, TopologyError, plain_line
from fkjoin.sessions.access import Access, access
from fkjoin.sessions.settings import require_running
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.names import named, require_apart
from fkjoin.spark.schemas import Expression, Expressions, spark_schema, text
from fkjoin.spark.spark_api import listed


@dataclass(frozen=True, eq=False)
class Scope:
    """The columns that expressions may name: an empty frame that has them, perhaps among others."""

    frame: DataFrame
    names: tuple[str, ...]
    """These columns; empty where only structs are named."""
    table: str
    """The name of the table in errors."""
    schema: pa.Schema
    """The types of the columns."""


@dataclass(frozen=True, eq=False)
class Bound:
    """An expression over the columns of a scope."""

    expression: Expression
    """The user's own text or column."""
    column: Column
    field: StructField
    """Its name and type."""
    node: Any
    """The expression in Spark's analyzed plan; None where the session cannot be asked for it."""
    scope: Scope

    @property
    def _access(self) -> Access:
        return access(self.scope.frame.sparkSession)

    @property
    def text(self) -> str:
        """Its text in ``describe()``."""
        return text(self.expression)

    @cached_property
    def path(self) -> Path | None:
        """The column that it is, or the field in one; None if it is more, or not known."""
        if (plain := plain_path(self.expression, self.scope.schema)) is not None:
            return plain
        if self.node is not None:
            return field_of(unnamed(self.node), self.scope.schema)
        name = None if isinstance(self.expression, str) else self._access.named(self.expression)
        # A Column "a.b" is the field b of a, even if a column is called "a.b".
        if name in self.scope.schema.names and "." in str(name):
            return None
        return plain_path(name, self.scope.schema)

    @cached_property
    def paths(self) -> list[Path]:
        """Paths that it reads, or may read."""
        if self.path is not None:
            return [self.path]
        if self.node is not None:
            return list(paths_in(self.node, self.scope.schema))
        if isinstance(self.expression, str):
            return paths_named(without_strings(self.expression), self.scope.schema)
        # Names in the text may have quotes.
        return paths_named(self._access.text(self.expression), self.scope.schema)

    @cached_property
    def vector(self) -> Part | None:
        """Form for workers; None if Spark has to evaluate it."""
        if self.node is None:
            return None if self.path is None else vectorize.at(self.path, self.scope.schema)
        return vectorize.vector_of(
            self.node, self.scope.schema.names, self.scope.frame.sparkSession
        )

    @cached_property
    def can_throw(self) -> bool:
        """Tell whether it may throw on a row, as far as is known."""
        return self.path is None if self.node is None else can_throw(self.node)


def bind(argument: str, expressions: Sequence[Expression], scope: Scope) -> tuple[Bound, ...]:
    """Expressions over the columns of a scope.

    Raises ``TopologyError`` that says which ``argument`` is wrong, and what the table has instead.
    """
    require_running(scope.frame.sparkSession)
    why = None
    try:
        with said_once():
            columns = [column_of(argument, item, scope.names) for item in expressions]
            if (bound := _bound(expressions, columns, scope)) is not None:
                return bound
    except AnalysisException as error:
        why = error
    for item in expressions:  # one by one: which is it?
        resolve_column(argument, item, scope.frame, scope.names, scope.table)
    assert why is not None, "one of several columns is named above"
    texts = ", ".join(map(text, expressions))
    raise TopologyError(
        f"{argument}: Spark cannot evaluate {texts} together: {plain_line(why)}"
    ) from why


def bound_condition(argument: str, condition: Expression, scope: Scope) -> Bound:
    """A condition over the columns of a scope; ``TopologyError`` if it is not a boolean."""
    (bound,) = bind(argument, [condition], scope)
    if (kind := bound.field.dataType.simpleString()) != "boolean":
        raise ColumnTypeError(
            f"{argument}: {text(condition)} is {kind}, a boolean is needed: write a comparison"
        )
    return bound


def bound_columns(
    expressions: Sequence[Expression], columns: Sequence[Column], scope: Scope
) -> tuple[Bound, ...]:
    """Columns of which it is known that Spark can evaluate them, and that each is one."""
    bound = _bound(expressions, columns, scope)
    assert bound is not None
    return bound


def _bound(
    expressions: Sequence[Expression], columns: Sequence[Column], scope: Scope
) -> tuple[Bound, ...] | None:
    """Columns, all analyzed in one go; None where one of them is several, such as ``left.*``."""
    if not columns:
        return ()
    chosen = scope.frame.select(*columns)
    if len(chosen.columns) != len(columns):
        return None
    nodes = access(chosen.sparkSession).analyzed(chosen) or [None] * len(columns)
    parts = zip(expressions, columns, chosen.schema, nodes, strict=True)
    return tuple(Bound(item, column, field, node, scope) for item, column, field, node in parts)


def for_workers(bound: Mapping[str, Bound], operator: str = "") -> Columns | None:
    """Columns of the ``operator``, for workers; None if Spark has to evaluate one of them."""
    vectors = tuple((name, expression.vector) for name, expression in bound.items())
    evaluated = tuple((name, vector) for name, vector in vectors if vector is not None)
    return Columns(evaluated, operator) if len(evaluated) == len(vectors) else None


def schema_of(bound: Sequence[Bound]) -> StructType:
    """The names and types of expressions side by side."""
    return StructType([expression.field for expression in bound])


def texts_of(expression: Any, row: pa.Schema, spark: SparkSession) -> tuple[str | Path, ...] | None:
    """The texts, and fields of text, that an expression has one after the other (``concat``).

    None if it is more than that.
    """
    column = F.expr(expression) if isinstance(expression, str) else expression
    try:
        empty = spark.createDataFrame([], spark_schema(row))
        analyzed = access(spark).analyzed(empty.select(column))
    except AnalysisException:  # evaluation says what is wrong
        return None
    if analyzed is None:
        return None
    texts: list[str | Path] = []
    for node in _concatenated(unnamed(analyzed[0])):
        path = field_of(node, row)
        if node.dataType().typeName() != "string" or (
            path is None and node.getClass().getSimpleName() != "Literal"
        ):
            return None
        texts.append(node.value().toString() if path is None else path)
    return tuple(texts)


def _concatenated(node: Any) -> Iterator[Any]:
    if node.getClass().getSimpleName() != "Concat":
        yield node
        return
    for part in listed(node.children()):
        yield from _concatenated(part)


def unnamed(expression: Any) -> Any:
    """An analyzed expression without its alias."""
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def field_of(node: Any, row: pa.Schema) -> Path | None:
    """The path of the column of ``row`` that an analyzed expression is, or of the field in one.

    None if it is more than that.
    """
    below: list[str] = []
    while node.getClass().getSimpleName() == "GetStructField":
        below.insert(0, node.child().dataType().apply(node.ordinal()).name())
        node = node.child()
    if node.getClass().getSimpleName() != "AttributeReference":
        return None
    # Spark calls columns as the user has written them.
    named = {name.lower(): name for name in row.names}
    name = named.get(node.name().lower())
    return None if name is None else (name, *below)


def paths_in(node: Any, row: pa.Schema) -> Iterator[Path]:
    """Find what an analyzed expression reads of the columns of ``row``."""
    if (path := field_of(node, row)) is not None:
        yield path
        return
    for child in listed(node.children()):
        yield from paths_in(child, row)


@dataclass(frozen=True, eq=False)
class Projection:
    """Expressions side by side."""

    bound: tuple[Bound, ...]
    schema: StructType
    """Their names in the row that they make, and their types."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(expression.text for expression in self.bound)

    @property
    def named(self) -> dict[str, Column]:
        by_name = zip(self.schema.names, self.bound, strict=True)
        return {name: expression.column for name, expression in by_name}

    def struct_of(self, columns: Sequence[Column]) -> Column:
        """The row that they make; ``columns``: as an ``Attempt`` has them."""
        return F.struct(
            *(column.alias(name) for name, column in zip(self.schema.names, columns, strict=True))
        )

    def for_workers(self, operator: str) -> Columns | None:
        """Return the forms for workers; None if Spark has to evaluate one of them."""
        return for_workers(dict(zip(self.schema.names, self.bound, strict=True)), operator)

    def renamed(self, names: Sequence[str]) -> Projection:
        """Return the same expressions under other names."""
        fields = [
            StructField(name, field.dataType, field.nullable)
            for name, field in zip(names, self.schema, strict=True)
        ]
        return Projection(self.bound, StructType(fields))

    @classmethod
    def of(cls, argument: str, expressions: Expressions, scope: Scope) -> Projection:
        """Bind expressions to the columns of a scope.

        Raises ``TopologyError`` that says which ``argument`` is wrong, and why.
        """
        chosen = without_stars(expressions, scope.frame, scope.names)
        if not chosen:
            raise TopologyError(f"{argument}: name at least one column or expression")
        bound = bind(argument, chosen, scope)
        schema = schema_of(bound)
        require_apart(argument, schema.names)
        return cls(bound, schema)

    def among(self, argument: str, name: object) -> Bound:
        """One of the expressions, by the plain name of its column."""
        column = named(name, self.schema.names)
        if column is None:
            raise TopologyError(
                f"{argument}: {name} is not the plain name of a column of the value "
                f"({', '.join(self.schema.names)}); put expressions into group_by(value=…)"
            )
        return self.bound[self.schema.names.index(column)]


Tried: TypeAlias = Callable[[Column], Column]

_NEVER = {
    *(
        "Alias",
        "ExprAlias",
        "AttributeReference",
        "Literal",
        "GetStructField",
        "CreateNamedStruct",
        "CreateArray",
    ),
    *(
        "And",
        "Or",
        "Not",
        "IsNull",
        "IsNotNull",
        "IsNaN",
        "Coalesce",
        "Nvl",
        "Nvl2",
        "If",
        "CaseWhen",
        "In",
        "InSet",
    ),
    *(
        "EqualTo",
        "EqualNullSafe",
        "LessThan",
        "LessThanOrEqual",
        "GreaterThan",
        "GreaterThanOrEqual",
        "Between",
    ),
    *("With", "CommonExpressionDef", "CommonExpressionRef"),
    *(
        "Concat",
        "Upper",
        "Lower",
        "StringTrim",
        "StringTrimLeft",
        "StringTrimRight",
        "Length",
        "Substring",
    ),
    *("StartsWith", "EndsWith", "Contains", "UnixMicros"),
}
"""Kinds of parts that never do."""

_WORDS = {
    **dict.fromkeys(
        ("Divide", "IntegralDivide", "Remainder", "Pmod"),
        "division by zero, or a result that does not fit",
    ),
    **dict.fromkeys(
        ("Add", "Subtract", "Multiply", "UnaryMinus", "Abs"), "a result that does not fit"
    ),
    "Cast": "a value that cannot be cast",
    **dict.fromkeys(("GetArrayItem", "ElementAt", "Elt"), "no such element"),
}
"""Problems, by kind of the part that throws where nothing in it does."""


def cause(columns: Sequence[Column], nodes: Sequence[Any], rows: DataFrame) -> Column:
    """The smallest part of the columns that throws, and why; null where it cannot be told.

    ``nodes``: what Spark's analyzer made of the columns over ``rows``.  A session makes null of
    what throws: see ``Access.tried``.

    It stands in a lambda, where Spark makes no code of it: it is seldom evaluated, and may be long.
    """
    # Lambdas cannot contain these.
    if any(node is None or "PythonUDF" in _kinds(node) for node in nodes):
        return F.lit(None).cast("string")
    tried = access(rows.sparkSession).tried
    reason = _first(
        tried, ((column, _why(tried, node)) for column, node in zip(columns, nodes, strict=True))
    )
    called = F.transform(F.array(F.lit(0)), lambda _: reason).getItem(0)
    try:
        with said_once():
            rows.select(called).schema  # noqa: B018  (analysis happens here)
    except (AnalysisException, ParseException):
        return F.lit(None).cast("string")
    return called


def can_throw(node: Any) -> bool:
    """Tell whether an analyzed expression may throw on a row."""
    children = list(listed(node.children()))
    if _kind(node) == "Cast" and not node.canUpCast(children[0].dataType(), node.dataType()):
        return True
    return _kind(node) not in {*_NEVER, "Cast"} or any(map(can_throw, children))


def _why(tried: Tried, node: Any) -> Column:
    """Find the smallest part that throws, in Spark's SQL, and why."""
    if _kind(node) in ("Alias", "ExprAlias"):
        return _why(tried, node.child())
    here = F.lit(f"{node.sql()}: {_WORDS.get(_kind(node), 'it throws')}")
    risky = [child for child in listed(node.children()) if can_throw(child)]
    below = _first(tried, ((F.expr(child.sql()), _why(tried, child)) for child in risky))
    return F.coalesce(below, here)


def _first(tried: Tried, reasons: Iterable[tuple[Column, Column]]) -> Column:
    """The reason of the first that throws, else null."""
    texts = (F.when(tried(F.struct(column.alias("it"))).isNull(), why) for column, why in reasons)
    return F.coalesce(*texts, F.lit(None).cast("string"))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _kinds(node: Any) -> set[str]:
    return {_kind(node)}.union(*map(_kinds, listed(node.children())))


_FIELD = re.compile(r"`?\s*\.\s*(?:`((?:[^`]|``)*)`|(\w+))")
"""Pattern of what follows a struct's name where a field of it is meant."""
_STAR = re.compile(r"(?:^|[^\w`)\]'\"\s.])\s*\*")
"""A ``*`` that multiplies nothing."""
_MADE = re.compile(r"(?<!\w)identifier\s*(?:\(|--|/\*)", re.IGNORECASE)
"""A function that makes a name of a string."""
_STRING = re.compile(
    r"(`(?:[^`]|``)*`)|(?<!\w)r'[^']*'|'(?:[^'\\]|\\.)*'", re.IGNORECASE | re.DOTALL
)
"""A name in backticks, which may have quotes in it, or a string, as Spark's lexer has them."""
_OTHER_QUOTES = re.compile(r"\"|--|/\*|\$")
"""Beginnings of what may hold a lone quote.

These are comments, and strings of other kinds, of which some may be names.
"""


def paths_named(text: str | None, columns: pa.Schema) -> list[Path]:
    """The columns that the text may read, and fields where no more of a struct is named.

    Without a text (None), all columns.  *Law*: all that an expression reads is found.  Its text
    names each column that it reads, has a ``*``, or makes a name with ``identifier``.  This is for
    expressions of which Spark's analyzer cannot be asked.
    """
    if text is None or _STAR.search(text) or _MADE.search(text):
        return [(name,) for name in columns.names]
    return list(itertools.chain.from_iterable(_paths(field, text) for field in columns))


def without_strings(text: str) -> str:
    """The text of SQL with empty strings.

    It is unchanged where it is unknown which of its quotes begin a string.
    """
    if _OTHER_QUOTES.search(text):
        return text
    return _STRING.sub(lambda match: match[1] or "''", text)


def _paths(field: pa.Field, text: str) -> Iterator[Path]:
    if not field.name.isascii():  # which letters are one to Spark is its affair
        yield (field.name,)
        return
    name = re.escape(field.name.replace("`", "``"))
    # a function that is called like the column has a parenthesis next
    bounds = (r"(?<!\w)", r"(?!\w)(?!\s*\()") if re.fullmatch(r"\w+", field.name) else ("", "")
    uses = list(re.finditer(f"{bounds[0]}{name}{bounds[1]}", text, re.IGNORECASE))
    if not uses:
        return
    if not pa.types.is_struct(field.type):
        yield (field.name,)
        return
    matches = [_FIELD.match(text[use.end() :]) for use in uses]
    meant = {_inner_name(match).lower() for match in matches if match is not None}
    fields = [part.name for part in field.type if part.name.lower() in meant]
    if None in matches or len({item.lower() for item in fields}) < len(meant):
        yield (field.name,)
    else:
        yield from ((field.name, item) for item in fields)


def _inner_name(match: re.Match[str]) -> str:
    return match[2] if match[1] is None else match[1].replace("``", "`")
