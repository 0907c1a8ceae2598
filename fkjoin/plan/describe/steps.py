"""A topology for its readers: steps, each with what it reads, its facts and its stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fkjoin.codec.versions import PLACE
from fkjoin.errors import InvariantError
from fkjoin.plan.events import Enrich, Events
from fkjoin.plan.nodes import (
    Aggregate,
    Children,
    Cogroup,
    FlatMap,
    Join,
    KeyJoin,
    Merge,
    Node,
    Source,
    View,
    in_order,
    join_below,
    periodic,
    reads_answers,
    shared_rights,
    shares_stages,
)
from fkjoin.plan.rules import WORKERS_EVALUATE_STEPS, Verdict
from fkjoin.plan.stages import Running


def subtopology(*numbers: int | None) -> str:
    """The title of a sub-topology, or of several with numbers in a row."""
    return f"Sub-topology: {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")


@dataclass(frozen=True)
class Stage:
    """A stateful operator: what its input is repartitioned by, through which topic, and where its state is."""

    name: str
    repartition_by: str
    store: str
    topic: str | None = None
    notes: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    """The readers for each of which it runs once: tables, or what a query ends in."""
    counted_as: tuple[str, ...] = ()
    """The names under which metrics have its counters, each once."""
    subtopologies: tuple[int, ...] = ()
    """The numbers of the sub-topologies that begin with it, one for each reader."""

    @property
    def times(self) -> str | None:
        """Say that a stage runs more than once, and for what."""
        return None if len(self.readers) < 2 else f"{len(self.readers)} times, for {' and '.join(self.readers)}"


@dataclass(frozen=True)
class Step:
    """A source, or what is made of other tables."""

    kind: str
    name: str
    about: str
    reads: tuple[tuple[str, str], ...]
    """Roles and names of the tables that it reads."""
    facts: tuple[tuple[str, str], ...]
    stages: tuple[Stage, ...]
    subtopology: int | None = None
    """The number of the sub-topology that begins with it, if it is a source."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The names under which metrics have the counters of its stages, the first stage's first."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.counted_as))


@dataclass(frozen=True)
class SinkStep:
    """The targets of a table's changes."""

    name: str
    of: Node
    to: str
    rules: tuple[Verdict, ...] = ()


def steps_of(ends: Sequence[Node], running: Sequence[Running]) -> list[Step]:
    """Every step once, after what it reads, with those of its stages that are ``running``.

    Sub-topologies are numbered as in Kafka Streams: they are what is connected without a repartition, from 0 on.  All other
    steps read one table without a repartition, so a sub-topology begins with a source, or with a stage behind a repartition.
    """
    numbers = itertools.count()
    by_store: dict[str, list[Running]] = {}
    for one in running:
        by_store.setdefault(one.store, []).append(one)
    found = []
    for node in in_order(*ends):
        step = _step(node)
        if isinstance(node, View) and node.materialized is None and node not in ends:
            rules = tuple(("rule", str(verdict)) for verdict in node.rules if verdict.rule == WORKERS_EVALUATE_STEPS)
            step = replace(step, facts=(*node.steps, *rules))  # the rest is for sinks
        stages = []
        for stage in (stage for stage in step.stages if stage.store in by_store):
            runs = by_store[stage.store]
            stages.append(
                replace(
                    stage,
                    readers=tuple(run.reader for run in runs),
                    counted_as=tuple(dict.fromkeys(run.counted_as for run in runs)),
                    subtopologies=tuple(next(numbers) for _ in runs),
                )
            )
        number = next(numbers) if isinstance(node, Source | Events) else None
        found.append(replace(step, stages=tuple(stages), subtopology=number))
    if missing := by_store.keys() - {stage.store for step in found for stage in step.stages}:
        raise InvariantError(f"the stages {', '.join(sorted(missing))} run, and no step of the topology has them")
    return found


def _step(node: Node) -> Step:
    step = _operator(node)
    if not periodic(node):
        return step
    return replace(step, stages=(*step.stages, Stage("pace", ", ".join(node.key), f"{node.name}-pace")))


def _ordered_by(node: Source) -> tuple[str, ...]:
    """Name the numbers of a row's version.  Of a topic, checkpoints keep other names for its record's place."""
    placed = node.topic is not None and node.version[-len(PLACE) :] == ("topic", "partition", "offset")
    return (*node.version[: -len(PLACE)], *PLACE) if placed else node.version


def _operator(node: Node) -> Step:
    if isinstance(node, Source):
        facts = {
            "from": node.origin,
            "key": ", ".join(node.key),
            "version": ", ".join(_ordered_by(node)),
            "deleted": node.deleted or "never",
            "timestamp": node.timestamp or "none",
            "columns": ", ".join(node.columns),
            **({} if node.snapshot is None else {"snapshot": node.snapshot}),
        }
        return Step("source", node.name, "", (), tuple(facts.items()), ())
    if isinstance(node, Events):
        return Step("source", node.name, "events", (), (("from", node.origin), ("columns", ", ".join(node.columns))), ())
    if isinstance(node, Enrich):
        return _enrich(node)
    if isinstance(node, Join):
        return _join(node)
    kept = (f"materialized as {node.materialized}",) if node.materialized else ()
    if isinstance(node, KeyJoin):
        return _key_join(node)
    if isinstance(node, View):
        stage = Stage("for sinks", ", ".join(node.key), f"{node.name}-resolve", notes=(*_instead(node), *kept))
        return Step("view", node.name, node.emit, (("of", node.table.name),), (*node.steps, *_rule(node)), (stage,))
    if isinstance(node, Children):
        sides = ("right", node.right.name), ("left", node.left.name)
        named = ("foreign key", _foreign_key(node)), ("column", f"{node.column}: the left rows by their key"), *_rule(node)
        stages = (
            Stage("rekey", ", ".join(node.left.key), f"{node.name}-rekey", notes=_instead(node)),
            Stage("children", "foreign key", f"{node.name}-children", notes=kept),
        )
        return Step("with_children", node.name, node.emit, sides, named, stages)
    if isinstance(node, FlatMap):
        keyed = ("key", ", ".join(node.keyed_by))
        stages = (
            Stage("spread", ", ".join(node.table.key), f"{node.name}-spread"),
            Stage("owners", ", ".join(node.key), f"{node.name}-owners", notes=kept),
        )
        kind, made = ("rekey", (keyed,)) if node.rows is None else ("flat_map", (("rows", node.rows), keyed))
        return Step(kind, node.name, node.emit, (("of", node.table.name),), made, stages)
    if isinstance(node, Merge):
        roles = tuple(("first" if not at else "then", table.name) for at, table in enumerate(node.tables))
        return Step(
            "merge", node.name, node.emit, roles, (), (Stage("merge", ", ".join(node.key), f"{node.name}-merge", notes=kept),)
        )
    if isinstance(node, Cogroup):
        stage = Stage("aggregate", "group", f"{node.name}-aggregate", notes=kept)
        columns = tuple((title, f"{what} of {table.name}") for table in node.tables for title, what in table.columns)
        return Step("cogroup", node.name, node.emit, tuple(("of", table.name) for table in node.tables), columns, (stage,))
    summed = ("group by", ", ".join(node.grouped_by)), ("value", ", ".join(node.value) or "none"), *node.columns
    having: tuple[tuple[str, str], ...] = () if node.having is None else (("having", node.having),)
    second = Stage("aggregate", "group", f"{node.name}-aggregate", node.topic, kept)
    if node.closes is not None:
        grace, idle, ahead = node.closes
        having += (("grace", grace), ("idle", f"after {idle}" if idle else "never"))
        having += () if ahead is None else (("ahead", f"at most {ahead}"),)
        second = Stage("close", "window", f"{node.name}-close", notes=kept)
    return Step(
        "aggregate",
        node.name,
        f"{node.emit}{', staged' if node.topic else ''}",
        (("of", node.table.name),),
        (*summed, *having, *_rule(node)),
        (
            Stage("regroup", ", ".join(node.table.key), f"{node.name}-regroup", notes=_instead(node)),
            second,
        ),
    )


def _rule(node: Join | KeyJoin | Aggregate | View | Children | SinkStep) -> tuple[tuple[str, str], ...]:
    return tuple(("rule", str(verdict)) for verdict in node.rules)


def _instead(node: Join | Aggregate | View | Children) -> tuple[str, ...]:
    join = join_below(node.inputs[0])
    return (f"in place of {join.name}-resolve",) if join is not None and reads_answers(node) else ()


def _join(join: Join) -> Step:
    key = ", ".join(join.key)
    to_foreign, back = join.topics or (None, None)
    spread = (f"left rows of a foreign key over {join.spread} buckets",) if join.spread > 1 else ()
    kept = (f"materialized as {join.materialized}",) if join.materialized else ()
    stages = (
        Stage("rekey", key, f"{join.name}-rekey", notes=_instead(join)),
        Stage("subscription", "foreign key", f"{join.name}-subscription", to_foreign, spread),
        Stage("resolve", key, f"{join.name}-resolve", back, kept),
    )
    if shares_stages(join):
        of = f"of {', '.join(right.name for right in shared_rights(join))}"
        stages = (
            Stage("scatter", key, f"{join.name}-scatter"),
            Stage("subscription", "foreign key", f"{join.name}-subscription", notes=(of,)),
            Stage("gather", key, f"{join.name}-gather", notes=kept),
        )
    return Step(
        "fk_join",
        join.name,
        ", ".join([join.how, *["staged"] * bool(join.topics), *[join.emit] * (join.emit != "on-change")]),
        (("left", join.left.name), ("right", join.right.name)),
        (("foreign key", _foreign_key(join)), ("joiner", join.joiner or "both rows"), *_rule(join)),
        stages,
    )


def _key_join(join: KeyJoin) -> Step:
    key, by_spark = ", ".join(join.key), join.left_to_spark
    kept = (f"materialized as {join.materialized}",) if join.materialized else ()
    stages = [Stage("pair", key, f"{join.name}-pair", notes=() if by_spark else kept)]
    if by_spark:
        stages.append(Stage("resolve", key, f"{join.name}-resolve", notes=(f"Spark makes the rows: {by_spark}", *kept)))
    return Step(
        "join",
        join.name,
        ", ".join([join.how, *[join.emit] * (join.emit != "on-change")]),
        (("left", join.left.name), ("right", join.right.name)),
        (
            ("by key", f"{key} = {join.right.name}({', '.join(join.right.key)})"),
            ("joiner", join.joiner or "both rows"),
            *_rule(join),
        ),
        tuple(stages),
    )


def _enrich(node: Enrich) -> Step:
    key = ", ".join(node.table.key)
    reads = ("events", node.events.name), ("table", node.table.name)
    facts = ("on", f"{', '.join(node.on)} = {node.table.name}({key})"), ("adds", ", ".join(node.added) or "none")
    return Step("enrich", node.name, node.how, reads, facts, (Stage("enrich", key, f"{node.name}-enrich"),))


def _foreign_key(node: Join | Children) -> str:
    return f"{node.extractor} = {node.right.name}({', '.join(node.right.key)})"


def job_steps(sinks: Sequence[SinkStep], running: Sequence[Running]) -> list[Step]:
    """The steps that end in the sinks; what several of them read stands there once."""
    ends = [Step("sink", sink.name, sink.to, (("of", sink.of.name),), _rule(sink), ()) for sink in sinks]
    return [*steps_of([sink.of for sink in sinks], running), *ends]
