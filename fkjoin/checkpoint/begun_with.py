"""The sources, operators and time zone that a query was begun with, compared when it starts again.

Each bucket's store says the same of its operator, but only once there is data, and in a worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import MISSHAPEN, Begun, unusable
from fkjoin.checkpoint.damage import NEW_OR_BACK
from fkjoin.checkpoint.files import without_escapes
from fkjoin.errors import FkJoinError, masked
from fkjoin.plan.physical import Physical, Read, reads, stages
from fkjoin.sessions.settings import EXCLUDED, OPTIMIZE, TIME_ZONE, time_zone
from fkjoin.spark.identity import difference, identity_text

_RULES = f"other rules of the optimizer ({OPTIMIZE}, {EXCLUDED})"


def require_begun_with(
    begun: Begun,
    spark: SparkSession,
    checkpoint: str,
    plan: Physical,
    *,
    written: Callable[[], str | None] = lambda: None,
    tables: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Raise ``FkJoinError`` if the checkpoint has batches of another plan or of another zone.

    Before its first batch is done, the checkpoint is bound to no plan and no zone, and both are
    noted in ``begun``.  It is bound if a sink has that batch, which ``written`` names.  The sink
    would leave out the rows that the batch has by the plan.  If the batch has begun, the sources
    must be the same: Spark repeats it with the files and offsets that it has logged for each, by
    number.  ``tables``: facts that no store of the plan is bound to.
    """
    log = BatchLog(spark, checkpoint.rstrip("/"))
    zone, bound = time_zone(spark), log.done >= 0
    holder = None if bound or begun.zone is None else written()
    if begun.zone is not None and (bound or holder is not None):
        first = "" if holder is None else f", and {holder} already contains a batch of that job"
        changed = _changed(begun, plan, tables, checkpoint)
        if changed is not None:
            raise FkJoinError(
                f"checkpoint: {checkpoint} was made by another job: {changed}{first}; {NEW_OR_BACK}"
            )
        if not _same_clocks(spark, begun.zone, zone, checkpoint):
            raise FkJoinError(
                f"checkpoint: {checkpoint} was started in the time zone {begun.zone}, and this "
                f"session has {zone}, in which a time without a zone is another instant{first}; "
                f"set {TIME_ZONE} to {begun.zone}, or start with a new checkpoint and an empty "
                "target"
            )
    places = [_place_of(source) for source in reads(plan)]
    if not bound and log.last >= 0 and begun.sources not in (None, places):
        was = _listed(begun.sources or [])
        raise FkJoinError(
            f"checkpoint: {checkpoint} has begun a batch that reads {was}, and the query now reads "
            f"{_listed(places)}; {NEW_OR_BACK}"
        )
    if not bound:
        begun.zone = zone
        begun.operators = [(spec.name, json.loads(spec.state.identity)) for spec in stages(plan)]
        begun.sources = places
        begun.tables = dict(tables)


def _same_clocks(spark: SparkSession, zone: str, other: str, checkpoint: str) -> bool:
    """Tell whether two time zones are one under two names, such as UTC and Etc/UTC.

    Spark compares them day by day.
    """
    if zone == other:
        return True
    days = "sequence(timestamp'1800-01-01', timestamp'2100-01-01', interval 1 day)"
    differs = "day -> to_utc_timestamp(day, :zone) != to_utc_timestamp(day, :other)"
    zones = {"zone": zone, "other": other}
    try:
        (row,) = spark.sql(f"SELECT exists({days}, {differs})", zones).collect()
    except PySparkException as error:
        raise unusable(checkpoint, f"has a zone that Spark does not know, {zone!r}") from error
    return not row[0]


def _changed(
    begun: Begun, plan: Physical, tables: Mapping[str, Any], checkpoint: str
) -> str | None:
    """Say what is other than it was; None if nothing is."""
    before, specs = begun.operators or [], stages(plan)
    if len(before) != len(specs):
        was, now = _listed(name for name, _ in before), _listed(spec.name for spec in specs)
        return f"its operators were {was} and are now {now}, perhaps by {_RULES}"
    sources, read = len(reads(plan)), len(begun.sources or [])
    if read != sources:
        return (
            f"it read {read} sources and snapshots and now reads {sources}, perhaps since a "
            "snapshot was added or left out, or since a table that is used twice was read once "
            f"and is read twice, or by {_RULES}"
        )
    try:
        for (_, identity), spec in zip(before, specs, strict=True):
            known = json.dumps(identity).encode()
            changed = difference(known, spec.state.identity.encode())
            if changed is not None:
                return changed
    except MISSHAPEN as error:
        raise unusable(checkpoint, f"has operators of another shape ({error})") from error
    facts = [identity_text({"tables": read}, {}).encode() for read in (begun.tables, dict(tables))]
    return difference(*facts)


def _place_of(source: Physical) -> str:
    """Name it by what the user gave: how files are read depends on options and folders there."""
    if not isinstance(source, Read):
        return type(source).__name__.lower()
    if source.path is None:
        return f"topic {source.options.get('subscribe')}"
    return masked(without_escapes(source.path))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
