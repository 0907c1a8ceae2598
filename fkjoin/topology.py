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

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """The columns that say of which version a row is, and of how many parts of its version each is made."""
        return (("version", self.parts),)


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

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.left, self.right

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return ("left_version", self.left.parts), ("right_version", self.right.parts)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A table's rows by group, summed up (KIP-904)."""

    name: str
    table: Node
    key: tuple[str, ...]
    grouped_by: tuple[str, ...]
    value: tuple[str, ...]
    """What a row contributes."""
    columns: tuple[tuple[str, str], ...]
    """Names of the result's columns, and what they are."""
    emit: str
    topic: str | None = None
    """The repartition topic between the stages; None when they are fused into one query."""
    merged: bool = False
    """It reads the answers of the join that it is of: that join's resolve and its regroup are one."""
    materialized: str | None = None

    log = None
    parts = 1
    versions = (("version", 1),)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class Derived:
    """A table's rows, some of them left out, or changed one by one."""

    name: str
    table: Node
    steps: tuple[tuple[str, str], ...]
    """What is done, in turn: ``filter`` or ``map_values``, and with which expressions."""
    emit: str = "on-change"
    materialized: str | None = None

    log = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.table.key

    @property
    def parts(self) -> int:
        return self.table.parts

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return self.table.versions

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class Children:
    """A right table's rows, each with the map of the left rows whose foreign key names it."""

    name: str
    left: Node
    right: Node
    extractor: str
    column: str
    emit: str = "on-change"

    log = None
    parts = 1
    versions = (("version", 1),)

    @property
    def key(self) -> tuple[str, ...]:
        return self.right.key

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.left, self.right


Node = Source | Join | Aggregate | Derived | Children


def generated_name(*facts: object) -> str:
    """Eight hex digits that stay the same as long as the facts do."""
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:8]


def sources(node: Node) -> list[Source]:
    """The sources that ``node`` is made of, each once."""
    return [step for step in _in_order(node) if isinstance(step, Source)]


def summed_up(node: Node) -> bool:
    """Whether rows are put together from many among what ``node`` is made of."""
    return any(isinstance(step, Aggregate | Children) for step in _in_order(node))


def manifest(node: Node) -> dict[str, dict[str, object]]:
    """What a job's checkpoint is bound to: of ``node`` and all below it, the facts that must stay, by kind and name."""
    found: dict[str, dict[str, object]] = {}
    for step in _in_order(node):
        if isinstance(step, Source):
            facts: dict[str, object] = {"key": list(step.key), "version": list(step.version), "columns": list(step.columns)}
            found[f"table {step.name}"] = facts
        elif isinstance(step, Join):
            found[f"join {step.name}"] = {
                "left": step.left.name,
                "right": step.right.name,
                "how": step.how,
                "extractor": step.extractor,
                "joiner": step.joiner,
                "deployment": "fused" if step.topics is None else "staged",
            }
        elif isinstance(step, Aggregate):
            columns = [f"{name} = {what}" for name, what in step.columns]
            facts = {"of": step.table.name, "group_by": list(step.grouped_by), "value": list(step.value), "columns": columns}
            facts["deployment"] = "fused" if step.topic is None else "staged"
            found[f"aggregate {step.name}"] = facts
        elif isinstance(step, Children):
            facts = {"left": step.left.name, "right": step.right.name, "extractor": step.extractor, "column": step.column}
            found[f"children {step.name}"] = facts
        else:
            found[f"view {step.name}"] = {"of": step.table.name, "steps": [list(item) for item in step.steps]}
    return found


def describe(node: Node) -> str:
    """The topology that ends in ``node``, sources first, one operator a line with its stores and repartitions."""
    lines: list[str] = []
    steps = list(_in_order(node))
    for step in steps:
        readers = [other for other in steps if step in other.inputs]
        merged = bool(readers) and all(isinstance(other, Aggregate) and other.merged for other in readers)
        lines += _lines(step)[: -1 if merged else None]
    return "\n".join(lines)


def _in_order(node: Node) -> Iterator[Node]:
    """Every node once, after what it reads from."""
    seen: list[Node] = []

    def visit(step: Node) -> None:
        if step in seen:
            return
        for below in step.inputs:
            visit(below)
        seen.append(step)

    visit(node)
    return iter(seen)


def _lines(step: Node) -> list[str]:
    if isinstance(step, Source):
        return _source_lines(step)
    if isinstance(step, Derived):
        return _derived_lines(step)
    if isinstance(step, Children):
        return _children_lines(step)
    return _join_lines(step) if isinstance(step, Join) else _aggregate_lines(step)


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


def _aggregate_lines(made: Aggregate) -> list[str]:
    kept = f", materialized as {made.materialized}" if made.materialized else ""
    through = f" through topic {made.topic}" if made.topic else ""
    instead = f", in place of {made.table.name}-resolve" if made.merged else ""
    return [
        f"aggregate {made.name}  ({made.emit}{', staged' if made.topic else ''})",
        f"  of           {made.table.name}",
        f"  group by     {', '.join(made.grouped_by)}",
        f"  value        {', '.join(made.value) or 'none'}",
        *(f"  {name:<11}  {what}" for name, what in made.columns),
        f"  1 regroup       repartition by {', '.join(made.table.key)}; store {made.name}-regroup{instead}",
        f"  2 aggregate     repartition by group{through}; store {made.name}-aggregate{kept}",
    ]


def _derived_lines(made: Derived) -> list[str]:
    kept = f", materialized as {made.materialized}" if made.materialized else ""
    return [
        f"rows {made.name}  ({made.emit})",
        f"  of           {made.table.name}",
        *(f"  {operator:<11}  {what}" for operator, what in made.steps),
        f"  for sinks       repartition by {', '.join(made.key)}; store {made.name}-resolve{kept}",
    ]


def _children_lines(made: Children) -> list[str]:
    return [
        f"with_children {made.name}  ({made.emit})",
        f"  right        {made.right.name}",
        f"  left         {made.left.name}",
        f"  foreign key  {made.extractor} = {made.right.name}({', '.join(made.right.key)})",
        f"  column       {made.column}: the left rows by their key",
        f"  1 rekey         repartition by {', '.join(made.left.key)}; store {made.name}-rekey",
        f"  2 children      repartition by foreign key; store {made.name}-children",
    ]
