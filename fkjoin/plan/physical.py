"""The physical plan of a query: what it reads, its stages, and what runs between them, as data.

Two interpreters run a plan.  ``spark.on_spark`` makes a streaming DataFrame of it, and
``spark.in_memory`` runs it over batches at hand, with stores in memory.  All that is said of a
query (``describe``, metrics, what a checkpoint is bound to) is read from its plan.  A node that two
others read runs twice, as in Spark; what Spark reads of a source, it reads once in a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple


@dataclass(frozen=True, eq=False)
class Physical:
    """A node of a plan."""

    @property
    def inputs(self) -> tuple[Physical, ...]:
        """The nodes whose rows it gets."""
        return ()


@dataclass(frozen=True, eq=False)
class Read(Physical):
    """Rows that Spark reads from a source."""

    format: str
    options: Mapping[str, str] = field(repr=False)
    """Secrets are among them."""
    path: str | None = None
    schema: Any = None
    """Columns of the rows; None where the source says them."""
    tasks: int | None = None
    """The most tasks that read a batch; None: as many as Spark likes."""


@dataclass(frozen=True, eq=False)
class Given(Physical):
    """Rows of a streaming DataFrame that a user gives."""

    frame: Any


@dataclass(frozen=True, eq=False)
class Fed(Physical):
    """Rows that a caller feeds, in the place of those that are read."""

    name: str
    columns: Any
    """Their names and types, as Spark has them."""


@dataclass(frozen=True, eq=False)
class Ticks(Physical):
    """Envelopes that tell each bucket when an interval is over."""

    interval_ms: int
    buckets: int


@dataclass(frozen=True, eq=False)
class _OverOne(Physical):
    input: Physical

    @property
    def inputs(self) -> tuple[Physical, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class _OverMany(Physical):
    nodes: tuple[Physical, ...]

    @property
    def inputs(self) -> tuple[Physical, ...]:
        return self.nodes


@dataclass(frozen=True, eq=False)
class BySpark(_OverMany):
    """Rows that Spark makes of others, by expressions alone: each row by itself."""

    transform: Callable[..., Any]
    """Function from DataFrames, streaming or not, to a DataFrame."""


@dataclass(frozen=True, eq=False)
class Picked(_OverOne):
    """Columns of rows, under other names."""

    names: Mapping[str, str]
    """The rows' columns by their new names."""


@dataclass(frozen=True, eq=False)
class InWorkers(_OverOne):
    """Rows that a function of Arrow batches makes of others, in Python workers."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    schema: Any
    """Columns of what it makes, as Spark takes them."""
    dated: bool = False
    """The function gets the batch's time, too, in the column ``BATCH_MS``."""


@dataclass(frozen=True, eq=False)
class Stage(_OverOne):
    """Envelopes through a stage; see ``operator_of`` for where it runs."""

    spec: Any
    """The ``StageSpec``."""


@dataclass(frozen=True, eq=False)
class Counted(_OverOne):
    """Envelopes whose counters are summed up in the progress of the query."""

    name: str
    """The name in the progress."""
    stages: tuple[str, ...]
    """Stages whose counters are among them."""


@dataclass(frozen=True, eq=False)
class MessagesOnly(_OverOne):
    """Envelopes without the counters' envelopes."""


@dataclass(frozen=True, eq=False)
class Union(_OverMany):
    """The rows of several nodes."""


def by_spark(transform: Callable[..., Any], *nodes: Physical) -> BySpark:
    """Make rows by Spark of the rows of nodes; see ``BySpark``."""
    return BySpark(nodes, transform)


def union(*nodes: Physical) -> Physical:
    """The rows of all; of one alone, that one."""
    return nodes[0] if len(nodes) == 1 else Union(nodes)


def below(plan: Physical) -> Iterator[Physical]:
    """The nodes of a plan, each after those that it reads, and as often as it is read."""
    for node in plan.inputs:
        yield from below(node)
    yield plan


def reads(plan: Physical) -> list[Physical]:
    """The sources of a plan, each once."""
    leaves = [node for node in below(plan) if not node.inputs]
    return list(dict.fromkeys(leaves))


def topics_read(plan: Physical) -> list[str]:
    """The topics that a plan reads."""
    sources = [source for source in reads(plan) if isinstance(source, Read)]
    return [source.options["subscribe"] for source in sources if "subscribe" in source.options]


def stages(plan: Physical) -> list[Any]:
    """The specs of a plan's stages, each after those that it reads."""
    return [node.spec for node in below(plan) if isinstance(node, Stage)]


class StatefulOperator(NamedTuple):
    """A stateful operator of Spark, behind a shuffle by bucket: its stages run one by one."""

    stages: tuple[OperatorStage, ...]
    """Each after those that it reads."""
    entries: tuple[tuple[int, Physical], ...]
    """Nodes outside, each with the number of the stage that reads it."""


class OperatorStage(NamedTuple):
    """A stage in an operator."""

    node: Stage
    reader: int | None
    """The number of the stage that gets its results; None: they leave the operator."""
    counted: Counted | None
    """The node that sums up its counters within the operator."""

    @property
    def counted_as(self) -> str | None:
        return None if self.counted is None else self.counted.name


def operator_of(last: Stage, apart: Collection[Physical] = ()) -> StatefulOperator:
    """Find the operator that a stage is the last of.

    A stage alone has an operator of its own, unless the optimizer lets stages share one
    (``StateSpec.together``).  Then stages that read one another directly are in one operator: with
    one bucket, a shuffle between them would move nothing.  ``apart``: ``counted_twice`` of the
    query's plan.
    """
    stages, entries = list[OperatorStage](), list[tuple[int, Physical]]()

    def add(stage: Stage, counted: Counted | None) -> int:
        inside, outside = [], []
        for node in _alternatives(stage.input):
            below, counts = _uncounted(node, apart)
            if isinstance(below, Stage) and _is_together(stage):
                inside.append(add(below, counts))
            else:
                outside.append(node)
        number = len(stages)
        for read in inside:
            stages[read] = stages[read]._replace(reader=number)
        stages.append(OperatorStage(stage, None, counted))
        if outside:
            entries.append((number, union(*outside)))
        return number

    add(last, None)
    return StatefulOperator(tuple(stages), tuple(entries))


def share_an_operator(results: Physical) -> bool:
    """Tell whether the last operator of some results has several stages."""
    while isinstance(results, MessagesOnly | Counted):
        results = results.input
    return isinstance(results, Stage) and len(operator_of(results).stages) > 1


def counted_twice(plan: Physical) -> frozenset[Physical]:
    """The nodes over stages that share operators whose counters are summed up, if read twice.

    Spark sums up under one name only what is one frame.  So no operator may take these stages in.
    """
    counts = Counter(node for node in below(plan) if isinstance(node, Counted))
    twice = [node for node, count in counts.items() if count > 1]
    return frozenset(node for node in twice if _is_together(node.input))


def _is_together(node: Physical) -> bool:
    return isinstance(node, Stage) and bool(node.spec.state.together)


def _alternatives(node: Physical) -> Iterator[Physical]:
    if not isinstance(node, Union):
        yield node
        return
    for part in node.inputs:
        yield from _alternatives(part)


def _uncounted(node: Physical, apart: Collection[Physical]) -> tuple[Physical, Counted | None]:
    """The node below, whose counters are summed up and then left out; else the node."""
    if isinstance(node, MessagesOnly) and isinstance(node.input, Counted):
        counted = node.input
        if counted not in apart:
            return counted.input, counted
    return node, None


def replaced(plan: Physical, other: Callable[[Physical], Physical | None]) -> Physical:
    """The plan with ``other`` nodes in the place of some.

    None leaves a node, and what it reads is looked at.
    """

    @cache
    def again(node: Physical) -> Physical:
        return other(node) or _with_inputs(node, again)

    return again(plan)


def _with_inputs(node: Physical, again: Callable[[Physical], Physical]) -> Physical:
    inputs = tuple(map(again, node.inputs))
    if inputs == node.inputs:
        return node
    if isinstance(node, _OverMany):
        return replace(node, nodes=inputs)
    assert isinstance(node, _OverOne)
    return replace(node, input=inputs[0])


@dataclass(frozen=True)
class Running:
    """A stage of a query."""

    operator: str
    """The table that it is a stage of."""
    stage: str
    """The kind of stage."""
    reader: str
    """Reader of its results, through further stages of the table: another table, or the end."""
    counted_as: str
    """Name of the counters in the progress that have its own."""
    operator_id: Any = field(default=None, compare=False, repr=False)
    """Equal for stages that share an operator of Spark; None: it has one of its own."""

    @property
    def store(self) -> str:
        return f"{self.operator}-{self.stage}"


def running_in(plan: Physical, end: str) -> Iterator[Running]:
    """The stages of a query, each after those that it reads; ``end``: the end of the query."""
    apart = counted_twice(plan)

    def visit(
        node: Physical,
        reader: str,
        above: str,
        counted_as: str,
        operator_ids: Mapping[Physical, object],
    ) -> Iterator[Running]:
        """Visit a node.

        ``reader``: the end, or what reads ``above``, the table of the nearest stage above;
        ``counted_as``: the nearest name above under which counters are summed up;
        ``operator_ids``: the ids of the stages of the operator above.
        """
        if isinstance(node, Stage):
            operator = node.spec.state.operator
            reader = above if above and above != operator else reader
            above = operator
            if node not in operator_ids:
                inside = [stage.node for stage in operator_of(node, apart).stages]
                operator_ids = dict.fromkeys(inside, object() if len(inside) > 1 else None)
        elif not isinstance(node, Union | MessagesOnly | Counted):
            operator_ids = {}
        if isinstance(node, Counted):
            counted_as = node.name
        for read in node.inputs:
            yield from visit(read, reader, above, counted_as, operator_ids)
        if isinstance(node, Stage):
            yield Running(above, node.spec.stage, reader, counted_as, operator_ids[node])

    yield from visit(plan, end, "", "", {})
