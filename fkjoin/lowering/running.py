"""The stateful operators of a query, read from the plan that Spark runs: so nothing that is said of them can differ."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from fkjoin.checkpoint.begun_with import spec_of
from fkjoin.lowering.lowered import Lowered
from fkjoin.plan.describe.steps import Running
from fkjoin.sessions.access import Operator, access
from fkjoin.stages.counters import metrics_name

_COUNTERS = metrics_name("")


def running(table: Lowered, end: str | None = None) -> list[Running]:
    """The stateful operators of the queries that keep a sink up to date with the table; ``end``: what the sink is called."""
    last = table.frame if table.encoded is None else table.encoded[0]
    frames = [*(stage.frame for stage in table.stages), last]
    return [one for frame in frames for one in running_in(frame, end or table.name)]


def running_in(frame: DataFrame, end: str) -> Iterator[Running]:
    """The stateful operators of a streaming DataFrame, each after those that it reads."""
    yield from _below(access(frame.sparkSession).plan(frame), "", end, "")


def _below(node: Operator, above: str, reader: str, counted_as: str) -> Iterator[Running]:
    """``above``: the table of the nearest stateful operator above; ``reader``: what reads that table.

    ``counted_as``: the nearest name above under which counters are observed.
    """
    spec = None if node.function is None else spec_of(node.function)
    if spec is None:
        if node.observed is not None and node.observed.startswith(_COUNTERS):
            counted_as = node.observed.removeprefix(_COUNTERS)
        for child in node.children:
            yield from _below(child, above, reader, counted_as)
        return
    operator = spec.state.operator
    of_it = reader if operator == above or not above else above
    for child in node.children:
        yield from _below(child, operator, of_it, counted_as)
    yield Running(operator, spec.stage, of_it, counted_as)
