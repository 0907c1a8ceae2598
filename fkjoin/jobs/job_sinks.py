"""A job's queries and its sinks: what sections make, and which sinks are one query, because they are of one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import sinks as kinds
from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.files import has_begun
from fkjoin.jobs import installed
from fkjoin.jobs.job_kinds import JobError, Strict, located
from fkjoin.jobs.job_sections import FormatSection, SinkSection
from fkjoin.kafka import Format
from fkjoin.plan.rules import SINKS_SHARE_A_QUERY, Verdict
from fkjoin.sessions.settings import switched_off
from fkjoin.sinks import Sink


@dataclass(frozen=True)
class PlannedQuery:
    """A query of the job that has yet to be started."""

    name: str
    checkpoint: str
    target: str
    """The place that it writes to, in words."""
    start: Callable[[], StreamingQuery]


@dataclass(frozen=True)
class SinkQuery:
    """A query of the job that ends in one sink or several."""

    name: str
    """Name of its checkpoint: ``sink-NAME``, or ``sinks-TABLE``."""
    sinks: tuple[str, ...]
    rules: Mapping[str, Verdict]
    """By sink, what became of the rule; nothing where a table has one sink only."""

    @property
    def shared(self) -> bool:
        return self.name.startswith("sinks-")


def format_at(where: str, given: str | list[str] | FormatSection, name: str) -> Format | str:
    """Make the format of the records' key or value of a section; ``name``: which of them."""
    if isinstance(given, list):
        raise JobError(f'{name}: a topic\'s key has a format: "string", "bytes" or {{format = …, schema = …}}')
    if isinstance(given, str):
        return given
    with located(f"{where}.{name}", given):
        return given.build(name)


def arguments_at(where: str, section: Strict, *settings: str) -> dict[str, Any]:
    """The values of settings of a topic's table or sink, and the formats of its records."""
    arguments = section.arguments("key", "value", *settings)
    for part in ("key", "value"):
        if arguments[part] is not None:
            arguments[part] = format_at(where, arguments[part], part)
    return arguments


def sink_of(spec: SinkSection) -> Sink | None:
    """Make the sink of a section that names no topic; None where Spark's own sink writes."""
    options = {name: str(value) for name, value in spec.options.items()}
    if spec.kind is not None:
        return installed.sink_of(spec.kind, spec.settings)
    if spec.postgres is not None:
        assert spec.into is not None
        return kinds.Postgres(spec.into, spec.postgres, spec.on_error, spec.retry_s)
    if spec.iceberg is not None:
        return kinds.Iceberg(spec.iceberg, spec.catalog, options, spec.evolve, spec.retry_s)
    assert spec.path is not None
    if spec.format == "parquet":
        return kinds.Parquet(spec.path, options, spec.retry_s)
    if spec.format != "delta":
        return None
    return kinds.Delta(spec.path, options, spec.retry_s, spec.evolve, spec.partition_by, spec.optimize_every, spec.vacuum_every)


def sink_queries(
    spark: SparkSession, checkpoint: str, sinks: Mapping[str, tuple[str, Sink | None]], *, run: bool
) -> list[SinkQuery]:
    """The queries that ``sinks`` are, each given with its table and, where it can share a query, as a sink.

    A sink stays where it was begun: in a query of its own, or in the shared one; one that came later is a query of its own,
    which reads everything from the start.  ``run``: they are to run, so that a shared query cannot be left out (``JobError``).
    """
    found = []
    for table in dict.fromkeys(table for table, _ in sinks.values()):
        of_table = {name: sink for name, (of, sink) in sinks.items() if of == table}
        found += _of_table(spark, checkpoint, table, of_table, run=run)
    return found


def _of_table(
    spark: SparkSession, checkpoint: str, table: str, sinks: Mapping[str, Sink | None], *, run: bool
) -> list[SinkQuery]:
    shared = f"sinks-{table}"
    known = Begun.of(spark, f"{checkpoint}/{shared}").sinks
    if known is None and len(sinks) == 1:
        return [SinkQuery(f"sink-{name}", (name,), {}) for name in sinks]
    off = switched_off(spark).get(SINKS_SHARE_A_QUERY)
    if off is not None and known is not None and run:
        raise JobError(
            f"sinks: those of {table} are one query in {checkpoint}/{shared}, and {off}: leave the rule {SINKS_SHARE_A_QUERY} "
            "on, or give the job a new checkpoint and empty targets"
        )
    why: dict[str, str | None] = {}
    places: set[str] = set()
    for name, sink in sinks.items():
        why[name] = off
        if off is None and sink is None:
            why[name] = "its format is written by Spark's own sink"
        elif off is None and sink is not None:
            if has_begun(spark, f"{checkpoint}/sink-{name}"):
                why[name] = "it was begun as a query of its own"
            elif known is not None and sink.place not in known:
                why[name] = f"{shared} was begun without it"
            elif sink.place in places:
                why[name] = f"another sink is {sink.place}, too"
            else:
                places.add(sink.place)
    together = [name for name, reason in why.items() if reason is None]
    if known is None and len(together) == 1:
        why[together.pop()] = f"no other sink of {table} can"
    rules = {name: Verdict(SINKS_SHARE_A_QUERY, reason) for name, reason in why.items()}
    alone = [SinkQuery(f"sink-{name}", (name,), {name: rules[name]}) for name in sinks if name not in together]
    if not together:
        return alone
    return [SinkQuery(shared, tuple(together), {name: rules[name] for name in together}), *alone]
