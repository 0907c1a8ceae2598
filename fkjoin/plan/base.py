"""The base of all nodes of a plan, and what holds for each of them, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, TypeVar

from fkjoin.plan.rules import Verdict

PERIODIC = "periodic"
"""Beginning of texts that say that changes are held back."""

ON_CHANGE = "on-change"
"""Text that says that changes are sent as they come."""

ON_UPDATE = "on-update"
"""Text that says that a change is sent for each change of an input."""

ON_CLOSE = "on-close"
"""Text that says that a window's row is sent when the window closes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageText:
    """The words of ``describe()`` for a stage."""

    by: Sequence[str] = ()
    """The names that its input is repartitioned by; if there are none, the node's key."""
    topic: str | None = None
    """The topic that its input comes through."""
    note: str | None = None
    title: str | None = None
    """Its name, where that is another than its kind."""


@dataclass(frozen=True, slots=True)
class NodeText:
    """The words of ``describe()`` for a node."""

    kind: str
    facts: Sequence[tuple[str, str]] = ()
    """Lines, each with its title."""
    stages: Mapping[str, StageText] = field(default_factory=dict)
    """Words for stages, by kind; without an entry, a stage repartitions by the key."""
    about: str | None = None
    """Words beside the name; None: when changes are sent."""
    roles: Sequence[tuple[str, Node]] | None = None
    """The tables that it reads, each with its role; None: they have no roles."""


@dataclass(frozen=True, slots=True)
class Node:
    """A source, or an operator that makes a table of other tables; the base of all nodes.

    What stands here fits an operator that sums up rows under the key of its first input.  A field
    without a default that is a property here is written ``= field()``: else dataclasses take the
    property for its default.
    """

    name: str
    rules: tuple[Verdict, ...] = field(default=(), kw_only=True)
    """Verdicts of the optimizer's rules."""
    materialized: str | None = field(default=None, kw_only=True)
    """The name under which results are kept for ``read_state``; None: only their hashes are."""

    reads: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that are tables which it reads."""
    keeps_rows = False
    """True where rows are kept under its own name, if it is not materialized."""
    rooted = False
    """True where versions of rows say which records of topics they are made of."""
    appends = False
    """True for events: no table, since each row is sent once."""

    @property
    def kept_as(self) -> str | None:
        """The name by which its rows are read from state; None if only their hashes are kept."""
        return self.materialized or (self.name if self.keeps_rows else None)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(getattr(self, name) for name in self.reads)

    @property
    def emit(self) -> str:
        return ON_CHANGE

    @property
    def log(self) -> str | None:
        """The log that a source's versions are of, where it shares one with others."""
        return None

    @property
    def key(self) -> tuple[str, ...]:
        return self.inputs[0].key

    @property
    def parts(self) -> int:
        """Count the parts of a row's version."""
        return 1

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """The columns that say of which version a row is, and how many parts each of them has."""
        return (("version", self.parts),)

    @property
    def staged(self) -> bool:
        """Tell whether topics lie between its stages."""
        return False

    @property
    def stateless(self) -> bool:
        """Tell whether rows are made one by one and kept nowhere, unless they go to a sink."""
        return False

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts that its rows depend on, and that no store of its own is bound to."""
        return {}

    def text(self) -> NodeText:
        """Describe it."""
        return NodeText(type(self).__name__.lower())


def periodic(node: Node) -> bool:
    """Tell whether changes are held back until an interval is over."""
    return node.emit.startswith(PERIODIC)


def in_order(*nodes: T, inputs: Callable[[T], Iterable[T]] = attrgetter("inputs")) -> Iterator[T]:
    """The nodes and all below them by ``inputs``, each once, after what it reads from."""
    seen: list[T] = []

    def visit(step: T) -> None:
        if step in seen:
            return
        for below in inputs(step):
            visit(below)
        seen.append(step)

    for node in nodes:
        visit(node)
    return iter(seen)


def unkept(*nodes: Node) -> dict[str, Mapping[str, object]]:
    """Collect the facts of nodes, and of those below them down to the next stores, by name.

    A store that reads such rows is bound to these facts, ``of`` among them, the table that a view
    reads: it keeps what they have let through.  Names that come again have a number.
    """
    facts: dict[str, Mapping[str, object]] = {}
    for node in in_order(*nodes, inputs=lambda node: node.inputs if node.stateless else ()):
        name, number = node.name, 1
        while name in facts:
            number += 1
            name = f"{node.name}#{number}"
        read = [table.name for table in node.inputs] if node.stateless else []
        facts[name] = {"of": read, **node.facts} if read else node.facts
    return facts
