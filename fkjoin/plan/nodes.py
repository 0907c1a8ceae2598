"""The plan of a table: nodes, as frozen data.  Building a topology runs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from fkjoin.codec.versions import PLACE
from fkjoin.plan.base import (
    ON_CHANGE,
    Node,
    NodeText,
    StageText,
    in_order,
    periodic,
)
from fkjoin.plan.rules import JOINS_SHARE_STAGES, READING
from fkjoin.stages.join_rows import How, HowByKey
from fkjoin.stages.start_over import StartOver

ROOT = "root "
"""Beginning of texts that stand for the positions of roots in a source's version."""


@dataclass(frozen=True, slots=True)
class Source(Node):
    """A changelog that is read: upserts and tombstones by key."""

    key: tuple[str, ...] = field()
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
    """Identity of a topic that was created again, and is read in the place of the one before."""
    snapshot: str | None = None
    """Folder of rows that are older than all changes."""

    rooted = True

    @property
    def numbers(self) -> int:
        """Count the numbers of a row's version.

        Each root of a topic's row has a timestamp, a partition and an offset.
        """
        return 3 * self.parts if self.version[0].startswith(ROOT) else len(self.version)

    @property
    def facts(self) -> Mapping[str, object]:
        return {
            "key": self.key,
            "version": self.version,
            "deleted": self.deleted,
            "timestamp": self.timestamp,
            "snapshot": self.snapshot is not None,
        }

    def text(self) -> NodeText:
        version, own = self.version, self.version[: -len(PLACE)]
        if self.topic is not None and version == (*own, "topic", "partition", "offset"):
            version = (*own, *PLACE)  # checkpoints keep other names for a record's place
        facts = {
            "from": self.origin,
            "key": ", ".join(self.key),
            "version": ", ".join(version),
            "deleted": self.deleted or "never",
            "timestamp": self.timestamp or "none",
            "columns": ", ".join(self.columns),
        }
        if self.snapshot is not None:
            facts["snapshot"] = self.snapshot
        return NodeText("source", [*facts.items()], about="")


@dataclass(frozen=True, slots=True)
class _OfTwo(Node):
    """The common part of joins: results have the left key, and both rows' versions."""

    left: Node
    right: Node
    how: str

    reads = ("left", "right")
    rooted = True

    @property
    def parts(self) -> int:
        """Count the parts of a result's version: the left row's, then the right row's."""
        return self.left.parts + self.right.parts

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return ("left_version", self.left.parts), ("right_version", self.right.parts)

    def _text(
        self, kind: str, by: tuple[str, str], joiner: str | None, stages: Mapping[str, StageText]
    ) -> NodeText:
        words = [self.how]
        if self.staged:
            words.append("staged")
        if self.emit != ON_CHANGE:
            words.append(self.emit)
        facts = [by, ("joiner", joiner or "both rows")]
        roles = [("left", self.left), ("right", self.right)]
        return NodeText(kind, facts, stages, ", ".join(words), roles)


@dataclass(frozen=True, slots=True)
class Join(_OfTwo):
    """A foreign-key join of two tables."""

    how: How
    extractor: str
    joiner: str | None
    topics: tuple[str, str] | None = None
    """The internal topics between the stages; None when they are fused into one query."""
    emit: str = ON_CHANGE
    spread: int = 1
    """Number of buckets that the left rows of one foreign key are spread over."""

    @property
    def staged(self) -> bool:
        return self.topics is not None

    def text(self) -> NodeText:
        to_foreign, back = self.topics or (None, None)
        note = f"left rows of a foreign key over {self.spread} buckets" if self.spread > 1 else None
        if shares_stages(self):
            note = f"of {', '.join(right.name for right in shared_rights(self))}"
        subscription = StageText(["foreign key"], to_foreign, note)
        stages = {"subscription": subscription, "resolve": StageText(topic=back)}
        return self._text("fk_join", _foreign_key(self), self.joiner, stages)


@dataclass(frozen=True, slots=True)
class KeyJoin(_OfTwo):
    """A join of two tables by primary key."""

    how: HowByKey
    joiner: str | None
    emit: str = ON_CHANGE
    left_to_spark: str | None = None
    """The reason why Spark makes the rows in a second stage; None where the first one does."""

    def text(self) -> NodeText:
        by_key = f"{', '.join(self.key)} = {_with_key(self.right)}"
        stages = {"resolve": StageText(note=f"Spark makes the rows: {self.left_to_spark}")}
        return self._text("join", ("by key", by_key), self.joiner, stages)


@dataclass(frozen=True, slots=True)
class _OfOne(Node):
    """The common part of what is made of one table."""

    table: Node

    reads = ("table",)


@dataclass(frozen=True, slots=True)
class Aggregate(_OfOne):
    """A table's rows by group, summed up (KIP-904)."""

    keeps_rows = True
    key: tuple[str, ...] = field()
    grouped_by: tuple[str, ...]
    value: tuple[str, ...]
    """Columns that a row contributes."""
    columns: tuple[tuple[str, str], ...]
    """Names of the result's columns, and what they are."""
    emit: str = field()
    topic: str | None = None
    """The repartition topic between the stages; None when they are fused into one query."""
    having: str | None = None
    """The condition on groups that have a row."""
    closes: tuple[str, str | None, str | None] | None = None
    """The grace time of windows, the time after which a source is idle, and the time by which rows
    may be ahead of their batch; None where groups are not windows."""

    @property
    def staged(self) -> bool:
        return self.topic is not None

    def text(self) -> NodeText:
        grouped_by, value = ", ".join(self.grouped_by), ", ".join(self.value) or "none"
        facts = [("group by", grouped_by), ("value", value), *self.columns]
        if self.having is not None:
            facts.append(("having", self.having))
        if self.closes is not None:
            grace, idle, ahead = self.closes
            facts += [("grace", grace), ("idle", f"after {idle}" if idle else "never")]
            if ahead is not None:
                facts.append(("ahead", f"at most {ahead}"))
        stages = {
            "regroup": StageText(self.table.key),
            "aggregate": StageText(["group"], self.topic),
            "close": StageText(["window"]),
        }
        about = f"{self.emit}, staged" if self.staged else self.emit
        return NodeText("aggregate", facts, stages, about)


@dataclass(frozen=True, slots=True)
class _Union(Node):
    """A table made of several tables with the same key."""

    tables: tuple[Node, ...]
    emit: str = field()

    keeps_rows = True

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.tables


@dataclass(frozen=True, slots=True)
class Cogroup(_Union):
    """Several tables' rows by the same group, summed up side by side (KIP-150)."""

    tables: tuple[Aggregate, ...]
    """Contributions of each table's rows, and the columns made of them."""

    def text(self) -> NodeText:
        facts: list[tuple[str, str]] = []
        for table in self.tables:
            facts += [(title, f"{text} of {table.name}") for title, text in table.columns]
        return NodeText("cogroup", facts, {"aggregate": StageText(["group"])})


@dataclass(frozen=True, slots=True)
class Merge(_Union):
    """Several tables with the same columns, one over the other.

    Of a key that several have, the row of the first stands.
    """

    def text(self) -> NodeText:
        first, *others = self.tables
        return NodeText("merge", roles=[("first", first), *(("then", table) for table in others)])


@dataclass(frozen=True, slots=True)
class View(_OfOne):
    """A table's rows, some of them left out, or changed one by one."""

    steps: tuple[tuple[str, str], ...]
    """Steps, in turn: names of the table's methods, with their expressions."""
    emit: str = ON_CHANGE

    rooted = True

    @property
    def parts(self) -> int:
        return self.table.parts

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return self.table.versions

    @property
    def stateless(self) -> bool:
        return self.materialized is None

    @property
    def facts(self) -> Mapping[str, object]:
        return {"steps": self.steps}

    def text(self) -> NodeText:
        return NodeText("view", self.steps, {"resolve": StageText(title="for sinks")})


@dataclass(frozen=True, slots=True)
class Children(Node):
    """A right table's rows, each with the map of the left rows whose foreign key names it."""

    left: Node
    right: Node
    extractor: str
    column: str
    emit: str = ON_CHANGE

    reads = ("left", "right")
    keeps_rows = True

    @property
    def key(self) -> tuple[str, ...]:
        return self.right.key

    def text(self) -> NodeText:
        facts = [_foreign_key(self), ("column", f"{self.column}: the left rows by their key")]
        stages = {"rekey": StageText(self.left.key), "children": StageText(["foreign key"])}
        roles = [("right", self.right), ("left", self.left)]
        return NodeText("with_children", facts, stages, roles=roles)


@dataclass(frozen=True, slots=True)
class FlatMap(_OfOne):
    """The rows that a table's rows make, each of them any number, under keys of their own."""

    rows: str | None
    """Expression of the rows that a row makes; None if it makes one, itself."""
    key: tuple[str, ...] = field()
    keyed_by: tuple[str, ...]
    """Expressions of the key."""
    emit: str = ON_CHANGE

    keeps_rows = True

    def text(self) -> NodeText:
        key, stages = ("key", ", ".join(self.keyed_by)), {"spread": StageText(self.table.key)}
        if self.rows is None:
            return NodeText("rekey", [key], stages)
        return NodeText("flat_map", [("rows", self.rows), key], stages)


class _Once(Node):
    """The common part of events: rows that are sent once, without a key and a version."""

    __slots__ = ()

    appends = True
    emit = "once"
    key = ()
    parts = 0
    versions = ()


@dataclass(frozen=True, slots=True)
class Events(_Once):
    """A stream of events that is read: rows that are appended."""

    columns: tuple[str, ...]
    origin: str

    def text(self) -> NodeText:
        facts = ("from", self.origin), ("columns", ", ".join(self.columns))
        return NodeText("source", facts, about="events")


@dataclass(frozen=True, slots=True)
class Enrich(_Once):
    """Events, each joined once with the table's row as it is when the event is processed."""

    table: Node
    events: Events | Enrich
    how: How
    on: tuple[str, ...]
    """Expressions over an event that give the table's key."""
    added: tuple[str, ...]
    """Columns of the table that events get."""

    reads = ("table", "events")

    def text(self) -> NodeText:
        on = f"{', '.join(self.on)} = {_with_key(self.table)}"
        facts = ("on", on), ("adds", ", ".join(self.added) or "none")
        stages = {"enrich": StageText(self.table.key)}
        roles = [("events", self.events), ("table", self.table)]
        return NodeText("enrich", facts, stages, self.how, roles)


def _foreign_key(node: Join | Children) -> tuple[str, str]:
    return "foreign key", f"{node.extractor} = {_with_key(node.right)}"


def _with_key(table: Node) -> str:
    return f"{table.name}({', '.join(table.key)})"


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
    """Find what stands for a topic that was before, for an operator that gets rows as read."""
    read = read_from(node)
    return None if read is None else read.start_over


def read_from(node: Node) -> Source | None:
    """Find the source whose changes an operator gets as they are read; None behind an operator."""
    node = _below_views(node)
    return node if isinstance(node, Source) else None


def join_below(node: Node) -> Join | None:
    """Find the join that ``node`` is, or whose rows it is made of one by one, keeping none."""
    node = _below_views(node)
    return node if isinstance(node, Join) else None


def _below_views(node: Node) -> Node:
    while node.stateless:
        (node,) = node.inputs
    return node


def summed_up(node: Node) -> bool:
    """Tell whether rows below ``node`` have lost the records of topics that they are made of."""
    return not all(step.rooted for step in in_order(node))


def origins(merge: Merge) -> tuple[int, ...]:
    """Count the roots of each merged table's rows.

    There are none where a table's rows have none, or where results are held back: what waits is
    kept without origins.
    """
    homeless = any(source.topic is None for source in sources(merge))
    if homeless or periodic(merge) or any(map(summed_up, merge.tables)):
        return ()
    return tuple(table.parts for table in merge.tables)
