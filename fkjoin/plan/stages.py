"""The stages that run: the stateful operators of queries, as data."""

from __future__ import annotations

from dataclasses import dataclass


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
