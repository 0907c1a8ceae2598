"""A topology for its readers: steps, each with what it reads, its facts and its stages."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fkjoin.errors import InvariantError
from fkjoin.plan.base import Node, StageText, in_order
from fkjoin.plan.nodes import join_below, reads_answers
from fkjoin.plan.physical import Running
from fkjoin.plan.rules import FILTER_GOES_BELOW_JOIN, WORKERS_EVALUATE_STEPS, Verdict

_PACE = "pace"
"""The stage that holds changes back, after all others of any node."""

Runs = Mapping[str, Sequence["Running"]]
"""The stages of a node that run, by kind, each as often as it does."""

_Numbers = defaultdict[object, int]
"""The numbers of sub-topologies, by operators of Spark; a key that is new gets the next one."""


def subtopology(*numbers: int | None) -> str:
    """The title of a sub-topology, or of several."""
    first, last = numbers[0], numbers[-1]
    in_a_row = first is not None and last == first + len(numbers) - 1
    if len(numbers) > 1 and in_a_row:
        return f"Sub-topology: {first} to {last}"
    return f"Sub-topology: {', '.join(map(str, numbers))}"


@dataclass(frozen=True)
class StepStage:
    """A stage: what repartitions its input, through which topic, and its store."""

    name: str
    repartition_by: str
    """Nothing for a stage in the operator of one that is named before it."""
    store: str
    topic: str | None = None
    notes: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    """The readers for each of which it runs once: tables, or what a query ends in."""
    counted_as: tuple[str, ...] = ()
    """The names under which metrics have its counters, each once."""
    subtopologies: tuple[int, ...] = ()
    """The numbers of the sub-topologies that it is in, each once."""

    @property
    def input(self) -> str:
        """Say what its input is repartitioned by."""
        if not self.repartition_by:
            return "in the same operator"
        return f"repartition by {self.repartition_by}"

    @property
    def times(self) -> str | None:
        """Say that a stage runs more than once, and for what."""
        if len(self.readers) < 2:
            return None
        return f"{len(self.readers)} times, for {' and '.join(self.readers)}"


@dataclass(frozen=True)
class Step:
    """A source, or what is made of other tables."""

    kind: str
    name: str
    about: str
    reads: tuple[tuple[str, str], ...]
    """Roles and names of the tables that it reads."""
    facts: tuple[tuple[str, str], ...]
    stages: tuple[StepStage, ...]
    subtopology: int | None = None
    """The number of the sub-topology that begins with it, if it is a source."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The names under which metrics have the counters of its stages, in their order."""
        names = itertools.chain.from_iterable(stage.counted_as for stage in self.stages)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class SinkStep:
    """The targets of a table's changes."""

    name: str
    table: Node
    to: str
    rule: Verdict | None = None


def steps_of(ends: Sequence[Node], running: Sequence[Running]) -> list[Step]:
    """Every step once, after what it reads, with the stages of it that are ``running``.

    Sub-topologies are numbered as in Kafka Streams: they are what is connected without a
    repartition, from 0 on.  All other steps read one table without a repartition, so a sub-topology
    begins with a source, or with a stage behind a repartition.
    """
    numbers: _Numbers = defaultdict(itertools.count().__next__)
    operators: dict[str, dict[str, list[Running]]] = {}
    for stage in running:
        operators.setdefault(stage.operator, {}).setdefault(stage.stage, []).append(stage)
    steps = []
    nodes = list(in_order(*ends))
    for node in nodes:
        text = node.text()
        roles = text.roles or [("of", table) for table in node.inputs]
        rules = node.rules
        if node.stateless and node not in ends:
            of_rows = [WORKERS_EVALUATE_STEPS]
            # Only answers belong to the filtered tables.
            if any(node in reader.inputs and reads_answers(reader) for reader in nodes):
                of_rows.append(FILTER_GOES_BELOW_JOIN)
            rules = tuple(verdict for verdict in rules if verdict.rule in of_rows)
        step = Step(
            text.kind,
            node.name,
            node.emit if text.about is None else text.about,
            tuple((role, table.name) for role, table in roles),
            (*text.facts, *_rules(*rules)),
            tuple(_stages(node, text.stages, operators.get(node.name, {}), numbers)),
            None if node.inputs else numbers[object()],
        )
        steps.append(step)
    known = {step.name for step in steps}
    if missing := {stage.store for stage in running if stage.operator not in known}:
        stores = ", ".join(sorted(missing))
        raise InvariantError(f"the stages {stores} run, but belong to no step of the topology")
    return steps


def _stages(
    node: Node, texts: Mapping[str, StageText], running: Runs, numbers: _Numbers
) -> Iterator[StepStage]:
    """The stages of a node that run, in their order, with words for each."""
    own = [kind for kind in running if kind != _PACE]
    answering = join_below(node.inputs[0]) if reads_answers(node) else None
    for kind, runs in running.items():
        text = texts.get(kind, StageText())
        notes = [] if text.note is None else [text.note]
        if answering is not None and kind in own[:1]:
            notes.insert(0, f"in place of {answering.name}-resolve")
        if kind in own[-1:] and node.materialized is not None:
            notes.append(f"materialized as {node.materialized}")
        yield StepStage(
            text.title or kind,
            "" if runs[0].operator_id in numbers else ", ".join(text.by or node.key),
            runs[0].store,
            text.topic,
            tuple(notes),
            tuple(run.reader for run in runs),
            tuple(dict.fromkeys(run.counted_as for run in runs)),
            tuple(dict.fromkeys(numbers[_operator(run)] for run in runs)),
        )


def _operator(run: Running) -> object:
    """Key of the operator that a stage runs in; one of its own, if it shares none."""
    return object() if run.operator_id is None else run.operator_id


def _rules(*verdicts: Verdict) -> tuple[tuple[str, str], ...]:
    return tuple(("rule", str(verdict)) for verdict in verdicts)


def job_steps(sinks: Sequence[SinkStep], running: Sequence[Running]) -> list[Step]:
    """The steps that end in the sinks; what several of them read stands there once."""
    steps = steps_of([sink.table for sink in sinks], running)
    for sink in sinks:
        rules = () if sink.rule is None else _rules(sink.rule)
        steps.append(Step("sink", sink.name, sink.to, (("of", sink.table.name),), rules, ()))
    return steps
