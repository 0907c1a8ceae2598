"""The plan of a table: nodes, as frozen data.  Building a topology runs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from fkjoin.plan.events import Enrich, Events
from fkjoin.plan.rules import JOINS_SHARE_STAGES, READING, Verdict
from fkjoin.stages.join_rows import How, HowByKey
from fkjoin.stages.start_over import StartOver

PERIODIC = "periodic"
"""Beginning of texts that say that changes are held back."""


ON_CLOSE = "on-close"
"""Text that says that a window's row is sent when the window closes."""

ROOT = "root "
"""Beginning of texts that stand for the positions of roots in a source's version."""


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
    """Number of parts of a row's version: one for each root that the row came from."""
    start_over: StartOver | None = None
    """Identity of a topic that was made anew, and is read in the place of the one before."""
    snapshot: str | None = None
    """Folder of rows that are older than all changes."""

    rules = ()

    @property
    def numbers(self) -> int:
        """Count the numbers of a row's version: each root of a topic's row has a timestamp, a partition and an offset."""
        return 3 * self.parts if self.version[0].startswith(ROOT) else len(self.version)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """The columns that say of which version a row is, and of how many parts of its version each is made."""
        return (("version", self.parts),)


class _OfTwo:
    """The common part of joins of two tables: results have the left key, and both rows' versions."""

    __slots__ = ()
    left: Node
    right: Node

    log = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.left.key

    @property
    def parts(self) -> int:
        """Count the parts of a result's version: the left row's, then the right row's."""
        return self.left.parts + self.right.parts

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.left, self.right

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return ("left_version", self.left.parts), ("right_version", self.right.parts)


@dataclass(frozen=True, slots=True)
class Join(_OfTwo):
    """A foreign-key join of two tables."""

    name: str
    left: Node
    right: Node
    how: How
    extractor: str
    joiner: str | None
    topics: tuple[str, str] | None = None
    """The internal topics between the stages; None when they are fused into one query."""
    emit: str = "on-change"
    rules: tuple[Verdict, ...] = ()
    """Verdicts of the optimizer rules for such a join."""
    materialized: str | None = None
    """The name under which the results are kept for ``read_state``; None: only their hashes are."""
    spread: int = 1
    """Number of buckets that the left rows of one foreign key are spread over."""


@dataclass(frozen=True, slots=True)
class KeyJoin(_OfTwo):
    """A join of two tables by primary key."""

    name: str
    left: Node
    right: Node
    how: HowByKey
    joiner: str | None
    emit: str = "on-change"
    left_to_spark: str | None = None
    """The reason why Spark makes the rows, so that a second stage is needed; None where the first one does."""
    rules: tuple[Verdict, ...] = ()
    materialized: str | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A table's rows by group, summed up (KIP-904)."""

    name: str
    table: Node
    key: tuple[str, ...]
    grouped_by: tuple[str, ...]
    value: tuple[str, ...]
    """Columns that a row contributes."""
    columns: tuple[tuple[str, str], ...]
    """Names of the result's columns, and what they are."""
    emit: str
    topic: str | None = None
    """The repartition topic between the stages; None when they are fused into one query."""
    rules: tuple[Verdict, ...] = ()
    materialized: str | None = None
    having: str | None = None
    """The condition on groups that have a row."""
    closes: tuple[str, str | None, str | None] | None = None
    """The grace time of windows, the time after which a source is idle, and the time by which rows may be ahead of their batch;
    None where groups are no windows."""

    log = None
    parts = 1
    versions = (("version", 1),)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class _Union:
    """A table made of several tables with the same key."""

    name: str
    tables: tuple[Node, ...]
    emit: str
    materialized: str | None = None

    log = None
    rules = ()
    parts = 1
    versions = (("version", 1),)

    @property
    def key(self) -> tuple[str, ...]:
        return self.tables[0].key

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.tables


@dataclass(frozen=True, slots=True)
class Cogroup(_Union):
    """Several tables' rows by the same group, summed up side by side (KIP-150)."""

    tables: tuple[Aggregate, ...]
    """Contributions of each table's rows, and the columns made of them."""


@dataclass(frozen=True, slots=True)
class Merge(_Union):
    """Several tables with the same columns, one laid over the other; of a key that several have, the row of the first."""


@dataclass(frozen=True, slots=True)
class View:
    """A table's rows, some of them left out, or changed one by one."""

    name: str
    table: Node
    steps: tuple[tuple[str, str], ...]
    """Steps, in turn: ``filter`` or ``map_values``, with their expressions."""
    emit: str = "on-change"
    rules: tuple[Verdict, ...] = ()
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
    rules: tuple[Verdict, ...] = ()
    materialized: str | None = None

    log = None
    parts = 1
    versions = (("version", 1),)

    @property
    def key(self) -> tuple[str, ...]:
        return self.right.key

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class FlatMap:
    """The rows that a table's rows make, each of them any number, under keys of their own."""

    name: str
    table: Node
    rows: str | None
    """Expression of the rows that a row makes; None if it makes one, itself."""
    key: tuple[str, ...]
    keyed_by: tuple[str, ...]
    """Expressions of the key."""
    emit: str = "on-change"
    materialized: str | None = None

    log = None
    rules = ()
    parts = 1
    versions = (("version", 1),)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


Node = Source | Join | KeyJoin | Aggregate | Cogroup | Merge | View | Children | FlatMap | Events | Enrich


def generated_name(*facts: object) -> str:
    """Eight hex digits that stay the same as long as the facts do."""
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:8]


def sources(node: Node) -> list[Source]:
    """The sources that ``node`` is made of, each once."""
    return [step for step in in_order(node) if isinstance(step, Source)]


def fired(node: Node, *rules: str) -> bool:
    """Tell whether an optimizer rule has changed how ``node`` is made."""
    return any(verdict.fired and verdict.rule in rules for verdict in node.rules)


def reads_answers(node: Node) -> bool:
    """Tell whether a stage of ``node`` stands in the place of the resolve of the join below it."""
    return fired(node, *READING)


def shares_stages(node: Node) -> bool:
    """Tell whether ``node`` is a join that shares stages with the join that its left table is."""
    return fired(node, JOINS_SHARE_STAGES)


def shared_rights(join: Join) -> list[Node]:
    """The right tables of a join and of those that it is one with, the first one's first."""
    before = shared_rights(join.left) if shares_stages(join) and isinstance(join.left, Join) else []
    return [*before, join.right]


def starts_over(node: Node) -> StartOver | None:
    """Find what is read in the place of a topic before, if an operator gets the node's rows as they are read."""
    read = read_from(node)
    return None if read is None else read.start_over


def read_from(node: Node) -> Source | None:
    """Find the source whose changes an operator gets as they are read; None where another operator has seen them."""
    while isinstance(node, View) and node.materialized is None:
        node = node.table
    return node if isinstance(node, Source) else None


def join_below(node: Node) -> Join | None:
    """Find the join that ``node`` is, or whose rows it is made of one by one without keeping them."""
    while isinstance(node, View) and node.materialized is None:
        node = node.table
    return node if isinstance(node, Join) else None


def periodic(node: Node) -> bool:
    """Tell whether changes are held back until an interval is over."""
    return not isinstance(node, Source) and node.emit.startswith(PERIODIC)


def in_order(*nodes: Node) -> Iterator[Node]:
    """The nodes and all below them, each once, after what it reads from."""
    seen: list[Node] = []

    def visit(step: Node) -> None:
        if step in seen:
            return
        for below in step.inputs:
            visit(below)
        seen.append(step)

    for node in nodes:
        visit(node)
    return iter(seen)
