"""The nodes of events: streams whose rows are sent once, in contrast to tables, whose rows change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fkjoin.stages.join_rows import How

if TYPE_CHECKING:
    from fkjoin.plan.nodes import Node


class _Once:
    """The common part: there is no key, and no version."""

    __slots__ = ()

    emit = "once"
    key = ()
    log = None
    parts = 0
    rules = ()
    versions = ()


@dataclass(frozen=True, slots=True)
class Events(_Once):
    """A stream of events that is read: rows that are appended."""

    name: str
    columns: tuple[str, ...]
    origin: str

    inputs = ()


@dataclass(frozen=True, slots=True)
class Enrich(_Once):
    """Events, each joined once with the table's row as it is when the event is processed."""

    name: str
    table: Node
    events: Events | Enrich
    how: How
    on: tuple[str, ...]
    """Expressions over an event that give the table's key."""
    added: tuple[str, ...]
    """Columns of the table that events get."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.table, self.events
