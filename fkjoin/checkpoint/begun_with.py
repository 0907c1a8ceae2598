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
    would leave out the rows that the batch has by the plan.  It is bound to its sources as soon as
    the batch has begun: Spark repeats it with the files and offsets that it has logged.
    ``tables``: facts that no store of the plan is bound to.
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
    if begun.sources is not None and log.last > log.done:
        changed = _other_sources(begun.sources, plan)
        if changed is not None:
            raise FkJoinError(
                f"checkpoint: {checkpoint} has begun batch {log.last} with other sources: "
                f"{changed}; {NEW_OR_BACK}"
            )
    if not bound:
        begun.zone = zone
        begun.operators = [(spec.name, json.loads(spec.state.identity)) for spec in stages(plan)]
        begun.sources = _places(plan)
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
    sources = _other_sources(begun.sources or [], plan)
    if sources is not None:
        return sources
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


def _other_sources(before: list[str], plan: Physical) -> str | None:
    """Say how the sources are other than they were; None if they are not."""
    places = _places(plan)
    if len(before) != len(places):
        return (
            f"it read {len(before)} sources and snapshots and now reads {len(places)}, perhaps "
            "since a snapshot was added or left out, or since a table that is used twice was read "
            f"once and is read twice, or by {_RULES}"
        )
    for was, now in zip(before, places, strict=True):
        if was != now:
            return f"it read {was} and now reads {now} in its place"
    return None


def _places(plan: Physical) -> list[str]:
    """The paths and topics that a plan reads, in the order in which Spark counts them."""
    return [_place_of(source) for source in reads(plan)]


def _place_of(source: Physical) -> str:
    if isinstance(source, Read):
        return f"{source.format} {masked(source.path or source.options.get('subscribe', ''))}"
    return type(source).__name__.lower()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
