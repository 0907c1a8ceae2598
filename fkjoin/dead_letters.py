"""The records of several tables that cannot be used, as one frame."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.frame import PROBLEM, RAW

_FIRST, _LAST = "table", "reason"


def union(frames: Sequence[DataFrame], table: str) -> DataFrame | None:
    """What ``RAW`` and ``PROBLEM`` say, where there is a problem; columns that a frame lacks are null.

    ``table``: whose letters they are where ``RAW`` does not name a table.
    """
    letters = [_letters(frame, table) for frame in frames]
    if not letters:
        return None
    whole = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), letters)
    between = [name for name in whole.columns if name not in (_FIRST, _LAST)]
    return whole.select(_FIRST, *between, _LAST)


def _letters(frame: DataFrame, table: str) -> DataFrame:
    found = frame.where(F.col(PROBLEM).isNotNull()).select(f"{RAW}.*", F.col(PROBLEM).alias(_LAST))
    return found if _FIRST in found.columns else found.withColumn(_FIRST, F.lit(table))
