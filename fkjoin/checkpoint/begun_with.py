"""The operators and the time zone that a query's checkpoint was begun with, compared when it starts again.

Each bucket's store says the same of its operator, but only once there is data, and in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.damage import NEW_OR_BACK
from fkjoin.errors import FkJoinError
from fkjoin.sessions.settings import TIME_ZONE, time_zone
from fkjoin.spark.identity import difference
from fkjoin.spark.specs import StageSpec


def require_begun_with(
    begun: Begun,
    spark: SparkSession,
    checkpoint: str,
    specs: Sequence[StageSpec],
    written: Callable[[], str | None] = lambda: None,
) -> None:
    """Raise ``FkJoinError`` if the checkpoint has batches of other operators or of another zone.

    ``specs``: of the operators.  Before its first batch is done, the checkpoint is bound to neither,
    and both are noted in ``begun``; unless a sink has that batch: ``written`` names it.  The sink
    would leave out the rows that the batch has by the plan.
    """
    zone, bound = time_zone(spark), BatchLog(spark, checkpoint.rstrip("/")).done >= 0
    holder = None if bound or begun.zone is None else written()
    if begun.zone is not None and (bound or holder is not None):
        first = "" if holder is None else f", and {holder} has a batch of that one"
        changed = _changed(begun.operators or [], specs)
        if changed is not None:
            raise FkJoinError(f"checkpoint: {checkpoint} was made by another job: {changed}{first}; {NEW_OR_BACK}")
        if not _same_clocks(spark, begun.zone, zone):
            raise FkJoinError(
                f"checkpoint: {checkpoint} was begun in the time zone {begun.zone}, and this session has {zone}: a time "
                f"without a zone would be another instant{first}; set {TIME_ZONE} to {begun.zone}, or start with a new "
                "checkpoint and an empty target"
            )
    if not bound:
        begun.zone = zone
        begun.operators = [(spec.name, spec.state.identity) for spec in specs]


def _same_clocks(spark: SparkSession, zone: str, other: str) -> bool:
    """Tell whether two time zones are one under two names, such as UTC and Etc/UTC: Spark compares them day by day."""
    if zone == other:
        return True
    days = "sequence(timestamp'1800-01-01', timestamp'2100-01-01', interval 1 day)"
    differs = f"day -> to_utc_timestamp(day, '{zone}') != to_utc_timestamp(day, '{other}')"
    row = spark.sql(f"SELECT exists({days}, {differs})").head()
    assert row is not None
    return not row[0]


def _changed(was: Sequence[tuple[str, str]], specs: Sequence[StageSpec]) -> str | None:
    """Say what is other than it was; None if nothing is."""
    if len(was) != len(specs):
        before = ", ".join(name for name, _ in was) or "none"
        after = ", ".join(spec.name for spec in specs) or "none"
        rules = "spark.fkjoin.optimize, spark.fkjoin.optimizer.excludedRules"
        return f"its operators were {before} and are now {after}, perhaps by other rules of the optimizer ({rules})"
    for (_, identity), spec in zip(was, specs, strict=True):
        changed = difference(identity.encode(), spec.state.identity.encode(), spec.state.tables)
        if changed is not None:
            return changed
    return None
