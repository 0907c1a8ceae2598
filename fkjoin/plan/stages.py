"""What runs: the stateful operators of queries, as data."""

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
    """What reads its results, through further stages of the same table: another table, or what the query ends in."""

    @property
    def store(self) -> str:
        return f"{self.operator}-{self.stage}"
