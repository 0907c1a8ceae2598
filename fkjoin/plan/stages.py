"""The stages that run: the stateful operators of queries, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fkjoin.plan.physical import Counted, Physical, Stage


@dataclass(frozen=True)
class Running:
    """A stateful operator of a query."""

    operator: str
    """The table that it is a stage of."""
    stage: str
    """The kind of stage."""
    reader: str
    """Readers of its results, through further stages of the same table: other tables, or the end of the query."""
    counted_as: str
    """Name of the counters in the progress that have its own."""

    @property
    def store(self) -> str:
        return f"{self.operator}-{self.stage}"


def running_in(plan: Physical, end: str) -> Iterator[Running]:
    """The stateful operators of a query, each after those that it reads; ``end``: what the query ends in."""
    yield from _below(plan, "", end, "")


def _below(node: Physical, above: str, reader: str, counted_as: str) -> Iterator[Running]:
    """``above``: the table of the nearest stateful operator above; ``reader``: what reads that table.

    ``counted_as``: the nearest name above under which counters are summed up.
    """
    if isinstance(node, Stage):
        operator = node.spec.state.operator
        of_it = reader if operator == above or not above else above
        for one in node.inputs:
            yield from _below(one, operator, of_it, counted_as)
        yield Running(operator, node.spec.stage, of_it, counted_as)
        return
    if isinstance(node, Counted):
        counted_as = node.name
    for one in node.inputs:
        yield from _below(one, above, reader, counted_as)
