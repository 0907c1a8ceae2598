"""When a table's changes are sent: as they come, or once an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fkjoin.errors import TopologyError
from fkjoin.lowering.stage import counted, stage, state_spec
from fkjoin.plan.nodes import PERIODIC
from fkjoin.sessions.settings import bucket_count
from fkjoin.spark.buckets import bucket_ids
from fkjoin.spark.clock import ticks
from fkjoin.spark.operator import TICK
from fkjoin.spark.specs import PaceSpec

Emit: TypeAlias = str
"""``"on-change"``: a result that differs from what was sent last.  ``"on-update"``: one whenever what it is made of was
updated.  ``"periodic 10 seconds"``, or ``"periodic"`` (1 minute): a row's last result once in that time, if it differs."""

_INTERVAL = "1 minute"
_SHORTEST_MS = 100


@dataclass(frozen=True)
class Emission:
    """An ``Emit``, understood."""

    every: bool = False
    """Also results that are as they were."""
    interval_ms: int | None = None

    @staticmethod
    def of(given: Emit) -> Emission:
        """Raises ``TopologyError``."""
        how, _, interval = str(given).partition(" ")
        if how == PERIODIC:
            return Emission(interval_ms=_milliseconds(interval or _INTERVAL))
        if given not in ("on-change", "on-update"):
            raise TopologyError(
                f'emit: {given!r} is not one of "on-change", "on-update", "periodic" or, for instance, "periodic 10 seconds"'
            )
        return Emission(every=given == "on-update")


def paced(
    results: DataFrame, operator: str, emission: Emission, about: Mapping[str, Any], checked: bool, **bound_to: Any
) -> DataFrame:
    """The operator's results, held back until an interval is over; as they are, if they are sent as they come.

    ``about``: the types of key and result, and the names of versions, for whoever reads the state; ``bound_to``: see
    ``state_spec``.
    """
    if emission.interval_ms is None:
        return results
    spark = results.sparkSession
    spec = PaceSpec(state_spec(spark, PaceSpec, operator, bound_to, about, validate=checked))
    wake = F.explode(F.lit(list(bucket_ids(bucket_count(spark))))).alias("bucket")
    over = ticks(spark, emission.interval_ms).select(wake, F.lit(None).cast("binary"), F.lit(TICK), F.col("tick"))
    return counted(stage(results.where("counter is null").unionAll(over), spec), f"{operator}-pace", "pace")


def _milliseconds(interval: str) -> int:
    try:
        found = int(pd.Timedelta(interval) / pd.Timedelta(milliseconds=1))
    except ValueError as error:
        raise TopologyError(f'emit: {interval!r} is no interval such as "10 seconds" or "1 minute"') from error
    if found < _SHORTEST_MS:
        raise TopologyError(f'emit: {interval} is too short, {_SHORTEST_MS} ms is the least; "on-change" does not wait at all')
    return found
