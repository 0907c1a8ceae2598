"""A job's queries and its sinks, and which sinks are one query, because they are of one table."""

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
from fkjoin.jobs.job_kinds import JobError, Section, located
from fkjoin.jobs.job_sections import FormatSection, SinkSection
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
    """A query of the job that ends in one sink or several, all of one table."""

    name: str
    """Name of its checkpoint: ``sink-NAME``, or ``sinks-TABLE``."""
    checkpoint: str
    table: str
    sinks: Mapping[str, Sink | None]
    """By their names; None where Spark's own sink writes, which is alone."""
    rules: Mapping[str, Verdict]
    """By sink, what became of the rule; nothing where a table has one sink only."""

    @property
    def shared(self) -> bool:
        return self.name.startswith("sinks-")

    @property
    def own_sinks(self) -> list[Sink]:
        """The sinks that are not Spark's."""
        return [sink for sink in self.sinks.values() if sink is not None]

    @property
    def remembering(self) -> dict[str, Sink]:
        """These sinks, by what is added to the query's id where they remember its batches."""
        suffix = " {}" if self.shared else ""
        return {suffix.format(sink.place): sink for sink in self.own_sinks}


def arguments_at(where: str, section: Section, function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a topic's table or sink, with the formats of its records."""
    arguments = section.arguments(function)
    for part in ("key", "value"):
        written = arguments[part]
        if isinstance(written, list):
            forms = '"string", "bytes" or {format = …, schema = …}'
            raise JobError(f"{part}: a topic's key has a format: {forms}")
        if isinstance(written, FormatSection):
            with located(f"{where}.{part}", written):
                arguments[part] = written.build(part)
    return arguments


def sink_of(spec: SinkSection) -> Sink | None:
    """Make the sink of a section that names no topic; None where Spark's own sink writes."""
    if spec.kind is not None:
        return installed.sink_of(spec.kind, spec.settings)
    for call in spec.of_kind.calls:
        # The method ``to_delta`` and the class ``Delta`` have these arguments in common.
        make = getattr(kinds, call.function.__name__.removeprefix("to_").title())
        arguments = spec.arguments(call.function)
        if "options" in arguments:
            arguments["options"] = {name: str(value) for name, value in spec.options.items()}
        sink: Sink = make(**arguments)
        return sink
    return None


def sink_queries(
    spark: SparkSession, checkpoint: str, sinks: Mapping[str, tuple[str, Sink | None]], *, run: bool
) -> list[SinkQuery]:
    """The queries that ``sinks`` are.

    Each comes with its table and, where it can share a query, as a sink.  A sink stays where it was
    begun: in a query of its own, or in the shared one.  A sink that came later is a query of its
    own, which reads everything from the start.  ``run``: they are to run, so that a shared query
    cannot be left out (``JobError``).
    """
    queries = []
    for table in dict.fromkeys(table for table, _ in sinks.values()):
        of_table = {name: sink for name, (other, sink) in sinks.items() if other == table}
        queries += _of_table(spark, checkpoint, table, of_table, run=run)
    return queries


def _of_table(
    spark: SparkSession, checkpoint: str, table: str, sinks: Mapping[str, Sink | None], *, run: bool
) -> list[SinkQuery]:
    shared = f"sinks-{table}"
    known = Begun.of(spark, f"{checkpoint}/{shared}").sinks
    if known is None and len(sinks) == 1:
        return [
            SinkQuery(f"sink-{name}", f"{checkpoint}/sink-{name}", table, sinks, {})
            for name in sinks
        ]
    off = switched_off(spark).get(SINKS_SHARE_A_QUERY)
    if off is not None and known is not None and run:
        raise JobError(
            f"sinks: the sinks of {table} are one query in {checkpoint}/{shared}, and {off}: leave "
            f"the rule {SINKS_SHARE_A_QUERY} on, or give the job a new checkpoint and empty targets"
        )
    places: set[str] = set()

    def why_alone(name: str, sink: Sink | None) -> str | None:
        if off is not None:
            return off
        if sink is None:
            return "its format is written by Spark's own sink"
        if has_begun(spark, f"{checkpoint}/sink-{name}"):
            return "it was begun as a query of its own"
        if known is not None and sink.place not in known:
            return f"{shared} was begun without it"
        if sink.place in places:
            return f"another sink is {sink.place}, too"
        places.add(sink.place)
        return None

    why = {name: why_alone(name, sink) for name, sink in sinks.items()}
    together = [name for name, reason in why.items() if reason is None]
    if known is None and len(together) == 1:
        why[together.pop()] = f"no other sink of {table} can"
    names = {shared: together} if together else {}
    names |= {f"sink-{name}": [name] for name in sinks if name not in together}
    rules = {name: Verdict(SINKS_SHARE_A_QUERY, reason) for name, reason in why.items()}
    queries = []
    for query, ends in names.items():
        own_sinks = {name: sinks[name] for name in ends}
        own_rules = {name: rules[name] for name in ends}
        queries.append(SinkQuery(query, f"{checkpoint}/{query}", table, own_sinks, own_rules))
    return queries
