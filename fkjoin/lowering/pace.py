"""Results that are held back until an interval is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.analysis.emission import Emission
from fkjoin.analysis.planned import Settings
from fkjoin.lowering.stage import counted, stage, state_spec
from fkjoin.spark.buckets import bucket_ids
from fkjoin.spark.clock import ticks
from fkjoin.spark.operator import TICK
from fkjoin.spark.specs import PaceSpec


def paced(
    results: DataFrame, operator: str, emission: Emission, about: Mapping[str, Any], settings: Settings, **bound_to: Any
) -> DataFrame:
    """The operator's results, held back until an interval is over; as they are, if they are sent as they come.

    ``about``: the types of key and result, and the names of versions, for tools that read the state; ``bound_to``: see
    ``state_spec``.
    """
    if emission.interval_ms is None:
        return results
    spec = PaceSpec(state_spec(settings, PaceSpec, operator, bound_to=bound_to, about=about, tables={}))
    over = ticks_for(results.sparkSession, emission.interval_ms, settings.buckets)
    return counted(stage(results.where("counter is null").unionAll(over), spec), f"{operator}-pace", "pace")


def ticks_for(spark: SparkSession, interval_ms: int, buckets: int) -> DataFrame:
    """Envelopes that tell each bucket when an interval is over."""
    wake = F.explode(F.lit(list(bucket_ids(buckets)))).alias("bucket")
    return ticks(spark, interval_ms).select(wake, F.lit(None).cast("binary"), F.lit(TICK), F.col("tick"))
