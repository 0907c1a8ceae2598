"""The operators and the time zone that a query's checkpoint was begun with, compared when it starts again.

Each bucket's store says the same of its operator, but only once there is data, and in a worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.damage import NEW_OR_BACK
from fkjoin.checkpoint.files import hadoop, read_file, write_file
from fkjoin.errors import FkJoinError
from fkjoin.sessions.settings import TIME_ZONE, time_zone
from fkjoin.spark.identity import difference
from fkjoin.spark.specs import StageSpec

OPERATORS = "fkjoin-operators.json"
"""The file in a query's checkpoint with the session's time zone, and its operators' stores with what each is bound to."""


def require_begun_with(
    spark: SparkSession,
    specs: Sequence[StageSpec],
    checkpoint: str,
    written: Callable[[], str | None] = lambda: None,
) -> Callable[[], None]:
    """Raise ``FkJoinError`` if the checkpoint has batches of a query with other operators, or of another zone.

    Returns what notes both, to be called when the query is about to start.  A checkpoint without a finished batch is
    bound to nothing yet, unless a sink has the first one: ``written`` names it.  The sink would leave out the rows that the
    batch has by the plan.  ``specs``: the query's stages.
    """
    place = checkpoint.rstrip("/")
    operators = [[spec.name, spec.state.identity] for spec in specs]
    zone = time_zone(spark)
    path, files = hadoop(spark, f"{place}/{OPERATORS}")
    bound = BatchLog(spark, place).done >= 0
    if files.exists(path):
        holder = None if bound else written()
        if bound or holder is not None:
            first = "" if holder is None else f", and {holder} has a batch of that one"
            was = json.loads(read_file(path, files))
            if isinstance(was, list):
                raise FkJoinError(
                    f"checkpoint: {checkpoint} was begun before release 0.1.0, with other versions of rows: start with a new "
                    "checkpoint and an empty target"
                )
            _require_operators(was["operators"], specs, checkpoint, first)
            _require_zone(spark, was["zone"], zone, checkpoint, first)
    note = json.dumps({"zone": zone, "operators": operators}, indent=1).encode()
    return (lambda: None) if bound else (lambda: write_file(path, files, note))


def _require_operators(was: list[list[str]], specs: Sequence[StageSpec], checkpoint: str, first: str) -> None:
    changed = _changed(was, specs)
    if changed is not None:
        raise FkJoinError(f"checkpoint: {checkpoint} was made by another job: {changed}{first}; {NEW_OR_BACK}")


def _require_zone(spark: SparkSession, was: str, zone: str, checkpoint: str, first: str) -> None:
    if not _same_clocks(spark, was, zone):
        raise FkJoinError(
            f"checkpoint: {checkpoint} was begun in the time zone {was}, and this session has {zone}: a time without a zone "
            f"would be another instant{first}; set {TIME_ZONE} to {was}, or start with a new checkpoint and an empty target"
        )


def _same_clocks(spark: SparkSession, zone: str, other: str) -> bool:
    """Tell whether two time zones are one under two names, such as UTC and Etc/UTC: Spark compares them day by day."""
    if zone == other:
        return True
    days = "sequence(timestamp'1800-01-01', timestamp'2100-01-01', interval 1 day)"
    differs = f"day -> to_utc_timestamp(day, '{zone}') != to_utc_timestamp(day, '{other}')"
    row = spark.sql(f"SELECT exists({days}, {differs})").head()
    assert row is not None
    return not row[0]


def _changed(was: list[list[str]], specs: Sequence[StageSpec]) -> str | None:
    """Say what is other than it was; None if nothing is."""
    if len(was) != len(specs):
        before, after = _names(name for name, _ in was), _names(spec.name for spec in specs)
        rules = "spark.fkjoin.optimize, spark.fkjoin.optimizer.excludedRules"
        return f"its operators were {before} and are now {after}, perhaps by other rules of the optimizer ({rules})"
    for (_, identity), spec in zip(was, specs, strict=True):
        changed = difference(identity.encode(), spec.state.identity.encode(), spec.state.tables)
        if changed is not None:
            return changed
    return None


def _names(operators: Iterable[str]) -> str:
    return ", ".join(operators) or "none"
