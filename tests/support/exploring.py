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
from tests.support.machines import Held, Known, Machine, Message, Point, Stage, letters, single, together


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
        return sum(len(explored.ends) for some in _portions(cases) for explored in self._explored(some))

    def _explored(self, cases: Sequence[History]) -> list[_Explored]:
        explored = [_Explored(self, case) for case in cases]
        for stage, machine in self.machines.items():
            machine.walk({bits for one in explored for bits in one.inputs(stage)})
            for one in explored:
                one.go_on(stage)
        return explored

    def lockstep(self, cases: Iterable[History]) -> int:
        """Walk all orders, cuts and repetitions of the sources, where each batch goes through all stages at once.

        All nodes are looked at after each batch.  Returns the number of points, or raises ``WrongEndError``.
        """
        points = 0
        for some in _portions(cases):
            walks = [_Lockstep(self, case) for case in some]
            while going := [walk for walk in walks if walk.level and walk.left]:
                moves = [move for walk in going for move in walk.moves(self._at_once)]
                for stage, machine in self.machines.items():
                    machine.compute({step for move in moves for step in move.steps(stage)})
                    for move in moves:
                        move.go_on(self, stage)
                for walk in going:
                    walk.level, walk.left = [], walk.left - 1
                for move in moves:
                    move.walk.arrive(self, move)
            points += sum(len(walk.way) for walk in walks)
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


class _Lockstep:
    """A case all of whose stages work on a batch before the next one comes."""

    def __init__(self, system: System, case: History) -> None:
        self.case, self.place = case, {node: at for at, node in enumerate(case.nodes)}
        self._system, self._sources = system, system.known.bits(case.sources)
        self.level: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * len(case.nodes))]
        self.way: dict[Any, Any] = dict.fromkeys(self.level)
        self.left = 2 * len(case.sources)
        """The most batches that are still to come."""

    def moves(self, at_once: int) -> Iterator[_Move]:
        """All that can come next."""
        for point in self.level:
            for batch in together(self._sources, at_once):
                yield _Move(self, point, batch, self._system.routed(batch))

    def arrive(self, system: System, move: _Move) -> None:
        """Look at the nodes after a move, unless it leads to where one has led."""
        after = move.point[0] | move.batch, tuple(move.holds)
        if after in self.way:
            return
        self.way[after] = move.point, move.batch
        self.level.append(after)
        arrived = system.known.messages(after[0])
        for node, number in zip(self.case.nodes, after[1], strict=True):
            held = system.machines[node.stage].holds[number]
            if reason := held.broken or self.case.wrong(node, held, arrived):
                batches = (_and(system.known.messages(batch)) for _, batch in steps(self.way, after))
                raise WrongEndError("\n" + "\n".join([*batches, f"{node}: {reason}"]))


class _Move:
    """A batch on its way through all stages."""

    def __init__(self, walk: _Lockstep, point: tuple[int, tuple[int, ...]], batch: int, inputs: Mapping[Node, int]) -> None:
        self.walk, self.point, self.batch = walk, point, batch
        self.holds, self._inputs = list(point[1]), dict(inputs)

    def steps(self, stage: str) -> Iterator[tuple[int, int]]:
        """The steps of a stage's nodes."""
        for node, bits in self._inputs.items():
            if node.stage == stage:
                yield self.holds[self.walk.place[node]], bits

    def go_on(self, system: System, stage: str) -> None:
        """Have a stage run."""
        for node, bits in list(self._inputs.items()):
            if node.stage == stage:
                at = self.walk.place[node]
                self.holds[at], sent = system.machines[stage].step(self.holds[at], bits)
                for other, more in system.routed(sent).items():
                    self._inputs[other] = self._inputs.get(other, 0) | more


def steps(way: Mapping[Any, Any], end: Any) -> list[tuple[Any, int]]:
    """The points and batches by which an end was come to, in their order."""
    found = []
    while (came := way[end]) is not None:
        found.append(came)
        end = came[0]
    return found[::-1]


_MOST_CASES = 200


def _portions(cases: Iterable[History]) -> Iterator[list[History]]:
    """Cases whose steps are computed together; few at first, so that what is wrong with small ones is seen soon."""
    rest, size = iter(cases), 8
    while some := list(islice(rest, size)):
        yield some
        size = min(2 * size, _MOST_CASES)


def _and(messages: Iterable[Message]) -> str:
    return " and ".join(map(str, messages))
