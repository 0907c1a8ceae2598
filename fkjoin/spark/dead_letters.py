"""Records and rows that cannot be used: what becomes of them, and those of several tables as one frame."""

from __future__ import annotations

import functools
from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.errors import TopologyError
from fkjoin.spark.frame import PROBLEM, RAW

OnError = Literal["fail", "dead-letter", "skip"]


def require_on_error(given: str) -> None:
    """``TopologyError`` if it is no ``OnError``."""
    if given not in get_args(OnError):
        raise TopologyError(f"on_error: {given!r} is not one of {', '.join(get_args(OnError))}")


_ABOUT = ("table", "topic", "partition", "offset", "file", "reason")
_FIRST, _LAST = "table", "reason"


def union(*frames: DataFrame, table: str) -> DataFrame:
    """Collect what ``RAW`` and ``PROBLEM`` say, where there is a problem; columns that a frame lacks are null.

    ``table``: the table of letters whose ``RAW`` names none.
    """
    letters = [_letters(frame, table) for frame in frames]
    whole = functools.reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), letters
    )
    between = [name for name in whole.columns if name not in (_FIRST, _LAST)]
    return whole.select(_FIRST, *between, _LAST)


def as_records(letters: DataFrame) -> DataFrame:
    """Dead letters as ``key``, ``value`` and ``headers`` of a topic's records; what else is known of one is in its headers."""
    there = letters.columns
    about = [name for name in _ABOUT if name in there]
    said = ", ".join(
        f"named_struct('key', 'fkjoin.{name}', 'value', cast(cast({name} as string) as binary))"
        for name in about
    )
    headers = f"filter(array({said}), item -> item.value is not null)"
    if "headers" in there:
        headers = f"concat(coalesce(headers, cast(array() as array<struct<key: string, value: binary>>)), {headers})"
    return letters.selectExpr(
        "key" if "key" in there else "cast(null as binary) as key", "value", f"{headers} as headers"
    )


def _letters(frame: DataFrame, table: str) -> DataFrame:
    found = frame.where(F.col(PROBLEM).isNotNull()).select(f"{RAW}.*", F.col(PROBLEM).alias(_LAST))
    return found if _FIRST in found.columns else found.withColumn(_FIRST, F.lit(table))
