"""Records and rows that cannot be used: how they end, and several tables' letters as one frame."""

from __future__ import annotations

import functools
from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.errors import TopologyError
from fkjoin.spark.frame import PROBLEM, RAW

OnError = Literal["fail", "dead-letter", "skip"]


def require_on_error(action: str) -> None:
    """``TopologyError`` if it is not an ``OnError``."""
    if action not in get_args(OnError):
        raise TopologyError(f"on_error: {action!r} is not one of {', '.join(get_args(OnError))}")


_ABOUT = ("table", "topic", "partition", "offset", "file", "reason")
_FIRST, _LAST = "table", "reason"


def union(*frames: DataFrame, table: str) -> DataFrame:
    """Collect what ``RAW`` and ``PROBLEM`` say, where there is a problem.

    Columns that a frame lacks are null.

    ``table``: the table of letters whose ``RAW`` names none.
    """
    letters = [_letters(frame, table) for frame in frames]
    whole = functools.reduce(
        lambda above, below: above.unionByName(below, allowMissingColumns=True), letters
    )
    between = [name for name in whole.columns if name not in (_FIRST, _LAST)]
    return whole.select(_FIRST, *between, _LAST)


def as_records(letters: DataFrame) -> DataFrame:
    """Dead letters as ``key``, ``value`` and ``headers`` of a topic's records.

    The headers have what else is known of a letter.
    """
    columns = letters.columns
    about = [name for name in _ABOUT if name in columns]
    structs = ", ".join(
        f"named_struct('key', 'fkjoin.{name}', 'value', cast(cast({name} as string) as binary))"
        for name in about
    )
    headers = f"filter(array({structs}), item -> item.value is not null)"
    if "headers" in columns:
        none = "cast(array() as array<struct<key: string, value: binary>>)"
        headers = f"concat(coalesce(headers, {none}), {headers})"
    return letters.selectExpr(
        "key" if "key" in columns else "cast(null as binary) as key",
        "value",
        f"{headers} as headers",
    )


def _letters(frame: DataFrame, table: str) -> DataFrame:
    letters = frame.where(F.col(PROBLEM).isNotNull()).select(
        f"{RAW}.*", F.col(PROBLEM).alias(_LAST)
    )
    return letters if _FIRST in letters.columns else letters.withColumn(_FIRST, F.lit(table))
