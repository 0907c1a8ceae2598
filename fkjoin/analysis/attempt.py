"""Expressions of a user's that may throw, evaluated so that the query continues.

Spark leaves out a row on which one throws.  It evaluates a part that stands twice in an expression
before all else, outside of what would catch what it throws.  It does not look for such parts behind
a condition, unless it can tell that the condition always holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bound import Bound, cause
from fkjoin.codec.key_texts import NOT_PLAIN
from fkjoin.errors import set_aside
from fkjoin.sessions.access import access
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, RAW, ROW

_TRIED = "__fkjoin_tried"


@dataclass(frozen=True, eq=False)
class Attempt:
    """Columns over rows, and what becomes of a row on which one of them throws."""

    columns: tuple[Column, ...]
    """Over the frame that ``on`` returns."""
    _problem: Callable[[], Column] | None = None
    """None if none of them can throw."""
    _reason: Callable[[], Column] | None = None
    _tried: Column | None = None

    @cached_property
    def problem(self) -> Column | None:
        """Not null where one threw; None if none of them can.

        With ``on_error="fail"`` it throws itself.
        """
        return None if self._problem is None else self._problem()

    @cached_property
    def reason(self) -> Column | None:
        """Make ``problem`` with the cause, for which Spark analyzes it; it never throws."""
        return None if self._reason is None else self._reason()

    def on(self, rows: DataFrame) -> DataFrame:
        """``rows`` and the values that ``columns`` and ``problem`` read."""
        return rows if self._tried is None else rows.withColumn(_TRIED, self._tried)

    @property
    def problems(self) -> Column:
        """The reasons why rows of a table's frame cannot be used: these, or earlier ones."""
        return F.col(PROBLEM) if self.problem is None else F.coalesce(F.col(PROBLEM), self.problem)


def attempt(
    operator: str,
    table: str,
    bound: Sequence[Bound],
    on_error: OnError,
    *,
    usable: Column | None = None,
    key: Column | None = None,
) -> Attempt:
    """Expressions, evaluated for ``usable`` rows.

    By default these are the rows of a table's frame that are there.  ``table``: what the
    ``operator`` reads; ``key``: a struct, by default the frame's rows.
    """
    risky = [expression for expression in bound if expression.can_throw]
    if not risky:
        return Attempt(tuple(expression.column for expression in bound))
    usable_rows = F.col(PROBLEM).isNull() & ~F.col(DELETED) if usable is None else usable
    names = {
        id(expression): f"t{index}"
        for index, expression in enumerate(bound)
        if expression.can_throw
    }

    def value(expression: Bound) -> Column:
        name = names.get(id(expression))
        return expression.column if name is None else F.col(_TRIED).getField(name)

    threw = usable_rows & F.col(_TRIED).isNull()
    texts = ", ".join(expression.text for expression in risky)
    columns, rows = [expression.column for expression in risky], risky[0].scope.frame
    parts = [expression.column.alias(names[id(expression)]) for expression in risky]

    @cache
    def why() -> Column:
        nodes = [expression.node for expression in risky]
        return F.coalesce(cause(columns, nodes, rows), F.lit("it throws"))

    def problem() -> Column:
        if on_error != "fail":
            return F.when(threw, F.lit(f"{operator}: {texts}"))
        whose = F.col(KEY) if key is None else key
        text = F.concat(F.lit(f"{texts}: "), why())
        return F.when(threw, raising(f"{operator} of {table}", whose, text))

    def reason() -> Column:
        return F.when(threw, F.concat(F.lit(f"{operator}: {texts}: "), why()))

    values = tuple(map(value, bound))
    tried = access(rows.sparkSession).tried(F.struct(*parts))
    return Attempt(values, problem, reason, F.when(_opaque() & usable_rows, tried))


NOTHING = Attempt(())


def raising(subject: str, key: Column, reason: Column) -> Column:
    """A text that throws; ``subject``: its operator, ``key``: a struct."""
    whole = F.concat(
        F.lit(f"{subject}, key "), _key_text(key), F.lit(": "), reason, F.lit(set_aside("rows"))
    )
    return F.raise_error(whole).cast("string")


def _key_text(key: Column) -> Column:
    """Write a key, a struct, as ``key_text`` does."""
    written = F.to_json(key)

    def part(entry: Column) -> Column:
        value, text = entry["value"], F.to_json(F.array(entry["value"]))
        is_text = F.contains(written, F.concat(F.lit('"'), entry["key"], F.lit('":"')))
        return F.when(is_text, F.substring(text, F.lit(2), F.length(text) - 2)).otherwise(value)

    entries = F.map_entries(F.from_json(written, "map<string,string>"))
    several = F.concat(F.lit("["), F.array_join(F.transform(entries, part), ", "), F.lit("]"))
    first = F.get(entries, F.lit(0))["value"]
    plain = (F.size(entries) == 1) & ~(
        first.startswith(NOT_PLAIN[0]) | first.startswith(NOT_PLAIN[1])
    )
    return F.coalesce(F.when(plain, first), several, written)


def letters(rows: DataFrame, reason: Column, table: str, row: Column | None = None) -> DataFrame:
    """The frame that dead letters of ``rows`` come from: those that have a ``reason``.

    ``row``: the letter's value, by default the row of a table's frame.
    """
    return rows.select(raw(rows, table, row).alias(RAW), reason.alias(PROBLEM))


def raw(rows: DataFrame, table: str, row: Column | None = None) -> Column:
    """The content of the dead letter that each row would be: see ``letters``."""
    if RAW in rows.columns:
        return F.col(RAW).withField("table", F.lit(table))
    parts = (("key", F.col(KEY)), ("value", F.col(ROW) if row is None else row))
    return F.struct(
        F.lit(table).alias("table"), *(as_json(part).alias(name) for name, part in parts)
    )


def as_json(struct: Column) -> Column:
    """A key or row as a dead letter has it: JSON, nulls included."""
    return F.to_json(struct, {"ignoreNullFields": "false"}).cast("binary")


def _opaque() -> Column:
    """A condition that always holds, which Spark cannot tell."""
    return F.spark_partition_id() >= 0
