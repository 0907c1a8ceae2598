"""A stage as a machine: all that it can hold and send, whatever messages come to one of its keys, in whatever order.

A machine holds the entries of a store and, in the last stage, the row that it has shown.  The stage computes each step once,
and many steps in one call; walking orders then costs look-ups.  Sets of messages are the bits of an integer.

A message may arrive alone or with others, and again, in as many batches as if each message came twice and alone.  That is more
than a real system does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, groupby
from typing import Any, NamedTuple

import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import ANSWER, CHANGE, GROUPED, JOINED, NUMBERED, PART, SUBSCRIPTION, Operation
from fkjoin.state import MemoryStore
from tests.support.versions import message_table

CHANNELS = {
    "left": CHANGE,
    "right": CHANGE,
    "row": JOINED,
    "numbered": NUMBERED,
    "subscription": SUBSCRIPTION,
    "answer": ANSWER,
    "part": PART,
    "grouped": GROUPED,
}
END = "#0000"
"""The end of each key.  Steps that are computed in one call have numbers of their own in its place."""

_END = re.compile(rb"#\d{4}")
_MOST_STEPS = 10_000
_UNTOLD = ("ts", "since")

Tables = Mapping[str, pa.Table]
"""Messages by channel; the channel of what is shown is ``result``."""
Stage = Callable[[Tables, MemoryStore], Tables]


class Message(NamedTuple):
    """A row of a channel."""

    channel: str
    values: tuple[Any, ...]

    def of(self, name: str) -> Any:
        """The value of a column."""
        return self.values[CHANNELS[self.channel].get_field_index(name)]

    @property
    def key(self) -> bytes:
        """The key of the stage to which it goes."""
        return self.of({"subscription": "foreign_key"}.get(self.channel, "key"))

    def __str__(self) -> str:
        named = zip(CHANNELS[self.channel].names, self.values, strict=True)
        told = (_text(name, value) for name, value in named if value is not None and name not in _UNTOLD)
        return f"{self.channel}({', '.join(told)})"


class Held(NamedTuple):
    """Entries of a store, the row that is shown, and the law of emission that was broken on the way."""

    entries: tuple[tuple[bytes, bytes], ...] = ()
    shown: Any = None
    broken: str = ""

    def store(self) -> MemoryStore:
        """A store with the entries."""
        store = MemoryStore()
        _put(store, self.entries)
        return store


class Point(NamedTuple):
    """A machine on its way: what has arrived, the number of what it holds, and what it has sent."""

    arrived: int
    held: Any
    sent: int


Way = dict[Point, tuple[Point, int] | None]
"""For each point, the point from which it was reached first, and the batch that led there."""


class Known:
    """The messages that there are, and the bit of each."""

    def __init__(self) -> None:
        self._all: list[Message] = []
        self._bit: dict[Message, int] = {}

    def bits(self, messages: Iterable[Message]) -> int:
        """The set of the messages."""
        bits = 0
        for message in messages:
            if message not in self._bit:
                self._bit[message] = 1 << len(self._all)
                self._all.append(message)
            bits |= self._bit[message]
        return bits

    def messages(self, bits: int) -> list[Message]:
        """The messages of a set."""
        return [self._all[bit.bit_length() - 1] for bit in single(bits)]


class Machine:
    """A stage at any key; ``row`` reads a result, ``at_once`` is the most messages in a batch."""

    def __init__(self, stage: Stage, known: Known, row: Callable[[bytes], Any], at_once: int) -> None:
        self._stage, self._known, self._row, self._at_once = stage, known, row, at_once
        self.holds = [Held()]
        self._numbers = {Held(): 0}
        self._steps: list[dict[int, tuple[int, int]]] = [{}]
        self._ends: dict[int, list[Point]] = {}

    def step(self, held: int, batch: int) -> tuple[int, int]:
        """The number of what is held after a batch, and what is sent."""
        if batch not in self._steps[held]:
            self.compute([(held, batch)])
        return self._steps[held][batch]

    def ends(self, inputs: int) -> list[Point]:
        """The points at which all inputs have arrived."""
        if inputs not in self._ends:
            self.walk([inputs])
        return self._ends[inputs]

    def way(self, inputs: int) -> Way:
        """The ways to these points.  They are walked again: kept, they would take gigabytes."""
        walk = Walk(inputs, self._at_once)
        while walk.goes_on:
            self.compute(walk.steps())
            walk.go_on(self._steps)
        return walk.way

    def walk(self, all_inputs: Iterable[int]) -> None:
        """Walk all orders of each of the sets of inputs; a walk of a set is one of all sets within it."""
        for _, some in groupby(sorted(all_inputs, key=int.bit_count, reverse=True), int.bit_count):
            walks = [Walk(inputs, self._at_once) for inputs in some if inputs not in self._ends]
            while going := [walk for walk in walks if walk.goes_on]:
                self.compute({step for walk in going for step in walk.steps()})
                for walk in going:
                    walk.go_on(self._steps)
            for walk in walks:
                for arrived, points in walk.by_arrived().items():
                    self._ends.setdefault(arrived, points)

    def compute(self, steps: Iterable[tuple[int, int]]) -> None:
        """Have the stage compute steps (the number of what is held, and a batch) that it has not."""
        new = sorted((held, batch) for held, batch in steps if batch not in self._steps[held])
        for at in range(0, len(new), _MOST_STEPS):
            self._compute(new[at : at + _MOST_STEPS])

    def _compute(self, steps: Sequence[tuple[int, int]]) -> None:
        store, came = MemoryStore(), defaultdict[str, list[Any]](list)
        for own, (held, batch) in enumerate(steps):
            _put(store, [(_renamed(key, own), _renamed(value, own)) for key, value in self.holds[held].entries])
            for channel, values in self._known.messages(batch):
                came[channel].append([_renamed(value, own) for value in values])
        sent, results = ([list[Any]() for _ in steps] for _ in range(2))
        tables = {name: message_table(schema, came[name]) for name, schema in CHANNELS.items()}
        for channel, table in self._stage(tables, store).items():
            for message in messages_of(channel, table):
                own = _owner(message.values[0])
                (results if channel == "result" else sent)[own].append(
                    Message(channel, tuple(_renamed(value, 0) for value in message.values))
                )
        entries = [list[tuple[bytes, bytes]]() for _ in steps]
        for key, value in store.items():
            entries[_owner(key)].append((_renamed(key, 0), _renamed(value, 0)))
        for own, (held, batch) in enumerate(steps):
            before = self.holds[held]
            after = before if before.broken else Held(tuple(entries[own]), *self._taken(before.shown, results[own]))
            if after not in self._numbers:
                self._numbers[after] = len(self.holds)
                self.holds.append(after)
                self._steps.append({})
            self._steps[held][batch] = self._numbers[after], self._known.bits(sent[own])

    def _taken(self, shown: Any, results: Iterable[Message]) -> tuple[Any, str]:
        """The row after results (``RESULT``), and the law of emission that they break."""
        for _, (_, operation, value, *_) in results:
            before, shown = shown, None if value is None else self._row(value)
            wanted = Operation.DELETE if shown is None else Operation.INSERT if before is None else Operation.UPDATE
            if shown == before:
                return shown, f"it emits {shown} again"
            if operation != wanted:
                return shown, f"it calls the change from {before} to {shown} {Operation(operation).name}"
        return shown, ""


class Walk:
    """All orders of a set of inputs, one batch further with each call; ``start``: what is held."""

    def __init__(self, inputs: int, at_once: int, start: Any = 0) -> None:
        self.level = [Point(0, start, 0)]
        self.way: Way = dict.fromkeys(self.level)
        self._batches, self._left = list(together(inputs, at_once)), 2 * inputs.bit_count()

    @property
    def goes_on(self) -> bool:
        """Tell whether there is more to walk; with a rule that is broken there would be no end of it."""
        return bool(self.level) and self._left > 0

    def steps(self) -> Iterator[tuple[Any, int]]:
        """The steps from here."""
        for held in {point.held for point in self.level}:
            for batch in self._batches:
                yield held, batch

    def go_on(self, steps: Any) -> None:
        """Go those that lead elsewhere."""
        level, self.level, self._left = self.level, [], self._left - 1
        for point in level:
            arrived, held, sent = point
            here = steps[held]
            for batch in self._batches:
                then, more = here[batch]
                after = Point(arrived | batch, then, sent | more)
                if after not in self.way:
                    self.way[after] = point, batch
                    self.level.append(after)

    def by_arrived(self) -> Mapping[int, list[Point]]:
        """The points, by what has arrived."""
        points = defaultdict(list)
        for point in self.way:
            points[point.arrived].append(point)
        return points


def single(bits: int) -> Iterator[int]:
    """The bits one by one."""
    while bits:
        yield bits & -bits
        bits &= bits - 1


def together(bits: int, most: int) -> Iterator[int]:
    """All batches of one to ``most`` messages."""
    ones = list(single(bits))
    for size in range(1, most + 1):
        yield from map(sum, combinations(ones, size))


def messages_of(channel: str, table: pa.Table) -> list[Message]:
    """The rows of a table as messages."""
    return [Message(channel, values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def letters(value: bytes) -> str:
    """The part of bytes that one can read."""
    return "".join(chr(byte) for byte in _END.sub(b"", value) if 32 < byte < 127)


def _text(name: str, value: Any) -> str:
    if name == "version":
        return f"version {'/'.join(','.join(map(str, numbers)) or 'none' for _, numbers in versions.decode(value))}"
    return f"{name} {letters(value) if isinstance(value, bytes) else value}"


def _put(store: MemoryStore, entries: Sequence[tuple[bytes, bytes]]) -> None:
    store.write(*(pa.array([entry[at] for entry in entries], BYTES) for at in (0, 1)))


def _renamed(value: Any, own: int) -> Any:
    return _END.sub(b"#%04d" % own, value) if isinstance(value, bytes) else value


def _owner(key: bytes) -> int:
    """The number of the step whose key is in the bytes."""
    found = _END.search(key)
    assert found is not None, f"in {key!r} there is no key of the history"
    return int(found[0][1:])
