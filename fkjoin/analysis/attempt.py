"""Expressions of a user's that may throw: Spark evaluates them so that a row on which one does is left out, not the query.

Spark evaluates a part that stands twice in an expression before all else, outside of what would
catch what it throws.  It does not look for such parts behind a condition, unless it can tell that
the condition always holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bound import Bound
from fkjoin.analysis.throwing import cause
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
        """Not null where one threw; None if none of them can.  With ``on_error="fail"`` it throws itself."""
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
    """Expressions, evaluated for ``usable`` rows: where not said, those of a table's frame that are there.

    ``table``: what the ``operator`` reads; ``key``: a struct, by default that of the frame.
    """
    risky = [one for one in bound if one.can_throw]
    if not risky:
        return Attempt(tuple(one.column for one in bound))
    usable_rows = F.col(PROBLEM).isNull() & ~F.col(DELETED) if usable is None else usable
    names = {id(one): f"t{place}" for place, one in enumerate(bound) if one.can_throw}
    values = [
        F.col(_TRIED).getField(names[id(one)]) if id(one) in names else one.column for one in bound
    ]
    threw = usable_rows & F.col(_TRIED).isNull()
    texts = ", ".join(one.text for one in risky)
    columns, rows = [one.column for one in risky], risky[0].scope.frame
    parts = [one.column.alias(names[id(one)]) for one in risky]

    @cache
    def said() -> Column:
        return F.coalesce(cause(columns, [one.node for one in risky], rows), F.lit("it throws"))

    def problem() -> Column:
        if on_error != "fail":
            return F.when(threw, F.lit(f"{operator}: {texts}"))
        whose = F.col(KEY) if key is None else key
        return F.when(
            threw, raising(f"{operator} of {table}", whose, F.concat(F.lit(f"{texts}: "), said()))
        )

    def reason() -> Column:
        return F.when(threw, F.concat(F.lit(f"{operator}: {texts}: "), said()))

    tried = access(rows.sparkSession).tried(F.struct(*parts))
    return Attempt(tuple(values), problem, reason, F.when(_opaque() & usable_rows, tried))


NOTHING = Attempt(())


def raising(what: str, key: Column, said: Column) -> Column:
    """A text that throws, with operator and key, a struct."""
    whole = F.concat(
        F.lit(f"{what}, key "), _key_text(key), F.lit(": "), said, F.lit(set_aside("rows"))
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
    one = F.get(entries, F.lit(0))["value"]
    plain = (F.size(entries) == 1) & ~(one.startswith(NOT_PLAIN[0]) | one.startswith(NOT_PLAIN[1]))
    return F.coalesce(F.when(plain, one), several, written)


def letters(rows: DataFrame, reason: Column, table: str, row: Column | None = None) -> DataFrame:
    """The frame that dead letters of ``rows`` come from: those that have a ``reason``; ``row``: what is the letter's value."""
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
