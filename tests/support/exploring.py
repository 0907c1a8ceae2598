"""Every order of delivery through the stages of an operator; see ``machines`` for a stage alone.

*Why stages are walked one after the other*: no stage sends back to one before it, and a message may be delayed by any time.  So
for each run there is one in which each stage begins when those before it have ended, and in which each node takes the same
batches in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from typing import Any, NamedTuple

from fkjoin.stages.invariants import live_subscriptions
from tests.support.machines import Held, Known, Machine, Message, Point, Stage, Walk, letters, single


class Node(NamedTuple):
    """A stage and one of its keys."""

    stage: str
    key: bytes

    def __str__(self) -> str:
        return f"{self.stage} of {letters(self.key)}"


class History(NamedTuple):
    """Changes, the nodes that they come to, in the order of their stages, and what these hold of some of the changes."""

    changes: Sequence[Any]
    sources: list[Message]
    nodes: list[Node]
    wanted: Callable[[Node, Sequence[Any]], Any]

    def wrong(self, node: Node, held: Held, arrived: Iterable[Message]) -> str:
        """Tell what is wrong with what a node holds when these sources have arrived, and all that comes of them."""
        there = set(arrived)
        changes = zip(self.changes, self.sources, strict=True)
        wanted = self.wanted(node, [change for change, source in changes if source in there])
        found = subscribers(held) if node.stage == "subscription" else held.shown
        return "" if found == wanted else f"it comes to {found}, and the final tables to {wanted}"


@cache
def subscribers(held: Held) -> int:
    """Count the rows that would be answered."""
    return sum(map(len, live_subscriptions(held.store())))


class WrongEndError(AssertionError):
    """A counterexample: the batches of a run, one a line, and what is wrong with its end."""


World = tuple[int, ...]
"""The messages that are to arrive at each node of the stages that have not begun."""


class Origin(NamedTuple):
    """The world before a stage, and the ends of the stage's nodes in it, by their places."""

    before: World
    ends: Mapping[int, Point]


class System:
    """The stages of an operator, in their order.

    ``to``: the stage to which a channel's messages go.  ``row``: reads a result.  ``at_once``: the most messages in a batch.
    """

    def __init__(
        self, stages: Mapping[str, Stage], to: Mapping[str, str], row: Callable[[bytes], Any], at_once: int = 1
    ) -> None:
        self.known, self._at_once = Known(), at_once
        self.machines = {name: Machine(stage, self.known, row, at_once) for name, stage in stages.items()}
        self._to = to
        self.routed = cache(self._routed)

    def check(self, cases: Iterable[History]) -> int:
        """Walk all orders of the cases and look at all ends; returns how many ends there are, or raises ``WrongEndError``."""
        ends = 0
        for some in _portions(cases):
            explored = [_Explored(self, case) for case in some]
            for stage, machine in self.machines.items():
                machine.walk({bits for one in explored for bits in one.inputs(stage)})
                for one in explored:
                    one.go_on(stage)
            ends += sum(len(one.ends) for one in explored)
        return ends

    def lockstep(self, cases: Iterable[History]) -> int:
        """Walk all orders, cuts and repetitions of the sources, where each batch goes through all stages at once.

        All nodes are looked at after each batch.  Returns the number of points, or raises ``WrongEndError``.
        """
        points = 0
        for some in _portions(cases):
            lines = [_Line(self, case, self._at_once) for case in some]
            while going := [line for line in lines if line.walk.goes_on]:
                moves = [line.move(*step) for line in going for step in line.new_steps()]
                for machine in self.machines.values():
                    machine.compute({step for move in moves for step in next(move)})
                for move in moves:
                    next(move, None)
                for line in going:
                    line.walk.go_on(line.steps)
            for line in lines:
                line.check()
                points += len(line.walk.way)
        return points

    def _routed(self, bits: int) -> Mapping[Node, int]:
        """The messages, by the nodes to which they go."""
        there = defaultdict[Node, int](int)
        for bit in single(bits):
            (message,) = self.known.messages(bit)
            there[Node(self._to[message.channel], message.key)] |= bit
        return there


class _Explored:
    """A case on its way through the stages: the worlds in front of each stage, and how they were come to."""

    def __init__(self, system: System, case: History) -> None:
        self._system, self._case = system, case
        self._place = {node: at for at, node in enumerate(case.nodes)}
        first = self._with([0] * len(case.nodes), system.known.bits(case.sources))
        self._worlds: list[dict[World, Origin | None]] = [{first: None}]
        self.ends = set[tuple[int, int]]()
        """The places of nodes, and the numbers of what these hold in the end."""

    def inputs(self, stage: str) -> Iterator[int]:
        """The sets of messages that come to the nodes of the next stage."""
        for at in self._here(stage):
            for world in self._worlds[-1]:
                yield world[at]

    def go_on(self, stage: str) -> None:
        """Have the next stage run in all worlds."""
        here, machine = self._here(stage), self._system.machines[stage]
        after: dict[World, Origin | None] = {}
        for world in self._worlds[-1]:
            choices = []
            for at in here:
                points = machine.ends(world[at])
                for point in points:
                    if (at, point.held) not in self.ends:
                        self.ends.add((at, point.held))
                        self._look(world, at, point, machine.holds[point.held])
                choices.append({point.sent: point for point in reversed(points)}.values())
            left = [0 if at in here else bits for at, bits in enumerate(world)]
            for chosen in product(*choices):
                sent = 0
                for point in chosen:
                    sent |= point.sent
                after.setdefault(self._with(left, sent), Origin(world, dict(zip(here, chosen, strict=True))))
        self._worlds.append(after)

    def _here(self, stage: str) -> list[int]:
        return [at for at, node in enumerate(self._case.nodes) if node.stage == stage]

    def _with(self, world: Sequence[int], sent: int) -> World:
        there = list(world)
        for node, bits in self._system.routed(sent).items():
            there[self._place[node]] |= bits
        return tuple(there)

    def _look(self, world: World, at: int, point: Point, held: Held) -> None:
        node = self._case.nodes[at]
        if not (reason := held.broken or self._case.wrong(node, held, self._case.sources)):
            return
        told = [f"{node}: {reason}"]
        origin: Origin | None = Origin(world, {at: point})
        for worlds in reversed(self._worlds):
            assert origin is not None
            told = [line for place, end in origin.ends.items() for line in self._told(place, origin.before[place], end)] + told
            origin = worlds[origin.before]
        raise WrongEndError("\n" + "\n".join(told))

    def _told(self, at: int, inputs: int, end: Point) -> Iterator[str]:
        """The batches by which a node came to an end."""
        node = self._case.nodes[at]
        machine = self._system.machines[node.stage]
        for before, batch in steps(machine.way(inputs), end):
            took, sent = map(self._system.known.messages, (batch, machine.step(before.held, batch)[1]))
            yield f"{node} takes {_and(took)}" + (f" and sends {_and(sent)}" if sent else "")


class _Line:
    """The stages of a case as one machine: it holds what each node does."""

    def __init__(self, system: System, case: History, at_once: int) -> None:
        self._system, self._case = system, case
        self._place = {node: at for at, node in enumerate(case.nodes)}
        self.walk = Walk(system.known.bits(case.sources), at_once, (0,) * len(case.nodes))
        self.steps = defaultdict[Any, dict[int, Any]](dict)
        """Contents of the nodes after a batch, by those before it, and the batch."""

    def new_steps(self) -> list[tuple[Any, int]]:
        """The steps from here that are not known."""
        return [(held, batch) for held, batch in self.walk.steps() if batch not in self.steps[held]]

    def move(self, start: tuple[int, ...], batch: int) -> Iterator[list[tuple[int, int]]]:
        """Have a batch go through all stages; gives each stage's steps before it takes them."""
        holds, inputs = list(start), dict(self._system.routed(batch))
        for stage, machine in self._system.machines.items():
            nodes = [node for node in inputs if node.stage == stage]
            taken = [(self._place[node], inputs[node]) for node in nodes]
            yield [(holds[at], bits) for at, bits in taken]
            for at, bits in taken:
                holds[at], sent = machine.step(holds[at], bits)
                for other, more in self._system.routed(sent).items():
                    inputs[other] = inputs.get(other, 0) | more
        self.steps[start][batch] = tuple(holds), 0

    def check(self) -> None:
        """Look at all nodes at all points, the first ones first."""
        for point in self.walk.way:
            arrived = self._system.known.messages(point.arrived)
            for node, number in zip(self._case.nodes, point.held, strict=True):
                held = self._system.machines[node.stage].holds[number]
                if reason := held.broken or self._case.wrong(node, held, arrived):
                    batches = [batch for _, batch in steps(self.walk.way, point)]
                    told = [_and(self._system.known.messages(batch)) for batch in batches]
                    raise WrongEndError("\n".join(["", *told, f"{node}: {reason}"]))


def steps(way: Mapping[Any, Any], end: Any) -> list[tuple[Any, int]]:
    """The points and batches by which an end was come to, in their order."""
    found = []
    while (came := way[end]) is not None:
        found.append(came)
        end = came[0]
    return found[::-1]


def _portions(cases: Iterable[History]) -> Iterator[list[History]]:
    """Cases whose steps are computed together."""
    rest = iter(cases)
    return iter(lambda: list(islice(rest, 200)), [])


def _and(messages: Iterable[Message]) -> str:
    return " and ".join(map(str, messages))
