"""What tables are made of, as frozen data, and how it reads.  Building a topology runs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from fkjoin.stages.join_rows import How


@dataclass(frozen=True, slots=True)
class Source:
    """A changelog that is read: upserts and tombstones by key."""

    name: str
    key: tuple[str, ...]
    version: tuple[str, ...]
    deleted: str | None
    timestamp: str | None
    columns: tuple[str, ...]
    origin: str
    log: str | None = None
    topic: str | None = None
    parts: int = 1
    """Of how many parts a row's version is made: one for each root that it came from."""


@dataclass(frozen=True, slots=True)
class Join:
    """A foreign-key join of two tables."""

    name: str
    left: Node
    right: Node
    how: How
    extractor: str
    joiner: str | None
    topics: tuple[str, str] | None = None
    """The internal topics between the stages; None when they are fused into one query."""
    materialized: str | None = None
    """Under which name the results are kept for ``read_state``; None: only their hashes are."""

    log = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.left.key

    @property
    def parts(self) -> int:
        """Of how many parts a result's version is made: the left row's, then the right row's."""
        return self.left.parts + self.right.parts


Node = Source | Join


def generated_name(*facts: object) -> str:
    """Eight hex digits that stay the same as long as the facts do."""
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:8]


def sources(node: Node) -> list[Source]:
    """The sources that ``node`` is made of, each once."""
    return [step for step in _in_order(node) if isinstance(step, Source)]


def describe(node: Node) -> str:
    """The topology that ends in ``node``, sources first, one operator a line with its stores and repartitions."""
    lines: list[str] = []
    for step in _in_order(node):
        lines += _source_lines(step) if isinstance(step, Source) else _join_lines(step)
    return "\n".join(lines)


def _in_order(node: Node) -> Iterator[Node]:
    """Every node once, after what it reads from."""
    seen: list[Node] = []

    def visit(step: Node) -> None:
        if step in seen:
            return
        if isinstance(step, Join):
            visit(step.left)
            visit(step.right)
        seen.append(step)

    visit(node)
    return iter(seen)


def _source_lines(source: Source) -> list[str]:
    return [
        f"source {source.name}",
        f"  from       {source.origin}",
        f"  key        {', '.join(source.key)}",
        f"  version    {', '.join(source.version)}",
        f"  deleted    {source.deleted or 'never'}",
        f"  timestamp  {source.timestamp or 'none'}",
        f"  columns    {', '.join(source.columns)}",
    ]


def _join_lines(join: Join) -> list[str]:
    key = ", ".join(join.key)
    to_foreign, back = join.topics or (None, None)
    through = f" through topic {to_foreign}" if to_foreign else ""
    kept = f", materialized as {join.materialized}" if join.materialized else ""
    home = f" through topic {back}" if back else ""
    return [
        f"fk_join {join.name}  ({join.how}{', staged' if join.topics else ''})",
        f"  left         {join.left.name}",
        f"  right        {join.right.name}",
        f"  foreign key  {join.extractor} = {join.right.name}({', '.join(join.right.key)})",
        f"  joiner       {join.joiner or 'both rows'}",
        f"  1 rekey         repartition by {key}; store {join.name}-rekey",
        f"  2 subscription  repartition by foreign key{through}; store {join.name}-subscription",
        f"  3 resolve       repartition by {key}{home}; store {join.name}-resolve{kept}",
    ]
