"""Batches of tests in memory, and what happens to them: the common part of ``fkjoin.testing``.

A kit runs the specs of an operator's stages over stores in memory, one after the other.
"""

from __future__ import annotations

import copy
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import EVENT, JOINED, Operation
from fkjoin.errors import FkJoinError, nearest
from fkjoin.spark.specs import Messages, StageSpec, StateSpec
from fkjoin.stages.counters import Counters
from fkjoin.state import MemoryStore

Row = dict[str, Any]
RowExtractor = str | Callable[[str, Row], Any]

_T = TypeVar("_T")

STATE = StateSpec("test", 1, retention_ms=24 * 60 * 60 * 1000, index_dir="", identity="")
"""Facts of the stages' state."""


class Change(NamedTuple):
    """A change of a row.

    Attributes
    ----------
    side : {"left", "right", "event"}
        The table of the row. A table that is alone is ``"left"``; an event is ``"event"``.
    key : str
        The key of the row.
    row : dict or None
        The row; None deletes it.
    version : int, optional
        The number that orders the changes of a key. By default the order in which they are fed.

    Examples
    --------
    >>> change = Change("left", "o1", {"customer": "c1"})
    """

    side: Literal["left", "right", "event"]
    key: str
    row: Row | None
    version: int | None = None


def left(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a left row.

    Parameters
    ----------
    key : str
        The key of the row.
    row : dict or None
        The row; None deletes it.
    version : int, optional
        The number that orders the changes of a key. By default the order in which they are fed.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = left("o1", {"customer": "c1"})
    """
    return Change("left", key, row, version)


def right(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a right row.

    Parameters
    ----------
    key : str
        The key of the row.
    row : dict or None
        The row; None deletes it.
    version : int, optional
        The number that orders the changes of a key. By default the order in which they are fed.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = right("c1", {"name": "Ada"})
    """
    return Change("right", key, row, version)


def change(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a row of a table that is alone: that is aggregated, or makes other rows.

    Parameters
    ----------
    key : str
        The key of the row.
    row : dict or None
        The row; None deletes it.
    version : int, optional
        The number that orders the changes of a key. By default the order in which they are fed.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = change("o1", {"customer": "c1"})
    """
    return Change("left", key, row, version)


def event(row: Row) -> Change:
    """Make an event that a table enriches.

    Parameters
    ----------
    row : dict
        The columns of the event.

    Returns
    -------
    Change

    Examples
    --------
    >>> clicked = event({"customer": "c1", "page": "start"})
    """
    return Change("event", "", row)


@dataclass(frozen=True)
class Sentinel:
    """Something that happens to a batch."""

    name: str


CRASH = Sentinel("CRASH")
"""The batch before it is lost after each stage in turn, with all that it wrote; then it is done."""

DUPLICATE = Sentinel("DUPLICATE")
"""Everything that you fed so far comes again."""

REORDER = Sentinel("REORDER")
"""Messages of the batch before it overtake each other between the stages.

They come in portions, some of them twice.
"""


class Result(NamedTuple):
    """A change of the resulting table.

    Attributes
    ----------
    key : str
        The key of the row.
    operation : {"insert", "update", "delete"}
        The kind of change.
    value : object
        The row; None in a delete.
    """

    key: str
    operation: Literal["insert", "update", "delete"]
    value: Any


@dataclass
class Kit(ABC):
    """Base of the kits: batches, their delivery, and the table that results."""

    seed: int = field(default=0, kw_only=True)
    table: dict[str, Any] = field(default_factory=dict, kw_only=True)
    results: list[Result] = field(default_factory=list, kw_only=True)
    count: Counters = field(default_factory=Counters, kw_only=True)

    _takes: ClassVar[dict[str, str]] = {"left": "change"}
    """The sides of what is fed, with the function that makes it."""
    _kind: ClassVar[pa.Schema] = JOINED
    """The kind of messages that changes of rows become."""
    _enters: ClassVar[dict[str, str]] = {}
    """The stages to which sides go that do not go to the first one."""
    _overtaken: ClassVar[bool] = True
    """Messages of a batch overtake each other between the stages, too."""
    _names: ClassVar[str | None] = None
    """The argument that says which key a row names: a column, or a callable."""
    _whose: ClassVar[str] = "the row of {!r}"
    """Words of errors for a row that names a key, with what tells it from others."""

    def __post_init__(self) -> None:
        if self._names is not None:
            names = getattr(self, self._names)
            if not isinstance(names, str) and not callable(names):
                raise FkJoinError(
                    f"{self._names}: {names!r} is not a text; here a key is one text: name a "
                    "column, or give a function"
                )
        self._specs = self._stages()
        self._stores = {spec.stage: MemoryStore() for spec in self._specs}
        self._fed: list[Change] = []
        self._random = random.Random(self.seed)

    def feed(self, *changes: Change | Sentinel) -> list[Result]:
        """Process changes: one batch up to each sentinel, and one after the last sentinel.

        Parameters
        ----------
        *changes : Change or Sentinel
            Changes, and what happens to them: ``CRASH``, ``DUPLICATE``, ``REORDER``.

        Returns
        -------
        list of Result
            The results of all batches.

        Raises
        ------
        FkJoinError
            If an argument is neither a change that this test takes nor a sentinel, or if a row
            lacks a column that the test names. Nothing is processed then.

        Examples
        --------
        >>> order = left("o1", {"customer": "c1"})
        >>> results = test.feed(order, CRASH, left("o1", None), DUPLICATE)
        """
        functions = " or ".join(f"{function}(…)" for function in self._takes.values())
        for change in changes:
            if isinstance(change, Change):
                self._require_change(change, functions)
                if change.row is not None:
                    self._require_row(change)
            else:
                require_sentinel(change, "feed", f", and no change: {functions} makes one")
        before = len(self.results)
        batch: list[Change] = []
        for item in (*changes, None):
            if not isinstance(item, Change):
                self._process(batch, item)
                batch = []
            elif item.version is None:
                batch.append(item._replace(version=len(self._fed) + len(batch)))
            else:
                batch.append(item)
        return self.results[before:]

    def stored(self, stage: str) -> dict[bytes, bytes]:
        """Read a stage's store.

        Parameters
        ----------
        stage : str
            The name of a stage. Of a join: ``"rekey"``, ``"subscription"`` or ``"resolve"``; by
            primary key: ``"pair"`` or ``"resolve"``. Of an aggregate: ``"regroup"`` or
            ``"aggregate"``. Of a flat map: ``"spread"`` or ``"owners"``. Of ``EnrichTest``:
            ``"enrich"``.

        Returns
        -------
        dict of bytes to bytes

        Raises
        ------
        ValueError
            If the stage is unknown.

        Examples
        --------
        >>> assert test.stored("resolve") == {}
        """
        if stage not in self._stores:
            raise ValueError(f"there is no stage {stage!r}; there are {', '.join(self._stores)}")
        return dict(self._stores[stage].items())

    @abstractmethod
    def _stages(self) -> Sequence[StageSpec]:
        """Specs of the operator's stages, each after the one that it reads."""

    def _process(self, batch: list[Change], sentinel: Sentinel | None) -> None:
        whole = len(self._specs)
        if sentinel == CRASH:
            for stages in range(1, whole + 1):
                stores, count = copy.deepcopy(self._stores), self.count.copy()
                self._run(batch, stages)
                self._stores, self.count = stores, count
        self._fed += batch
        results = self._run(batch, whole, reorder=sentinel == REORDER)
        if sentinel == DUPLICATE:
            # Each event comes once.
            again = [change for change in self._fed if change.side != "event"]
            results += self._run(again, whole)
        for table in results:
            for row in table.to_pylist():
                self._take(row)

    def _run(self, batch: list[Change], stages: int, *, reorder: bool = False) -> list[pa.Table]:
        """A batch through so many stages: what comes out of the last one."""
        sent: list[pa.Table] = []
        first = self._specs[0].stage
        for spec in self._specs[:stages]:
            entering = [row for row in batch if self._enters.get(row.side, first) == spec.stage]
            sent += self._messages(entering)
            # What the stage does not take stays in ``sent``, and passes it by.
            came = Messages(sent, now_ms=0)
            portions = [[came.take(kind) for kind in spec.takes]]
            if reorder and (self._overtaken or spec.stage == first):
                portions = self._portions(*portions)
            for portion in portions:
                sent += spec.run(Messages(portion, now_ms=0), self._stores[spec.stage], self.count)
            sent = [self._between(messages) for messages in sent]
        return sent

    def _between(self, messages: pa.Table) -> pa.Table:
        """Messages of one kind on their way from a stage to the next one."""
        return messages

    def _portions(self, messages: list[pa.Table]) -> list[list[pa.Table]]:
        """The messages in another order, a few at a time, some of them twice."""
        parts: list[list[pa.Table]] = []
        for kind in messages:
            parts += [[part] for part in self._parts(kind)]
        self._random.shuffle(parts)
        return parts

    def _parts(self, messages: pa.Table) -> list[pa.Table]:
        """Messages of one kind in another order, a few at a time; each event comes once."""
        rows = range(len(messages))
        repeatable = rows[:0] if messages.schema.equals(EVENT) else rows
        parts = portions(rows, repeatable, self._random)
        return [messages.take(pa.array(part, pa.int64())) for part in parts]

    def _messages(self, changes: list[Change]) -> list[pa.Table]:
        """Changes as messages."""
        columns = self._columns(changes)
        return [pa.table({name: columns[name] for name in self._kind.names}, self._kind)]

    def _columns(self, changes: list[Change]) -> dict[str, Any]:
        """The columns that messages may have, by name."""
        numbers = np.array([change.version for change in changes], np.int64)
        sources = pa.array([versions.identity(change.side) for change in changes], BYTES)
        return {
            "key": texts([change.key for change in changes]),
            "version": versions.encode(sources, [numbers], tied=True),
            "value": self._values(changes),
            "gone": [change.row is None for change in changes],
            "ts": [0] * len(changes),
            "number": [int(change.side == "right") for change in changes],
        }

    def _values(self, changes: list[Change]) -> pa.Array:
        """The rows, as the stages have them; null for none."""
        return pa.array([json_bytes(change.row) for change in changes], BYTES)

    def _take(self, row: Row) -> None:
        """Add a row of what the last stage sends to the results, and change the table."""
        key, value = row["key"].decode(), self._read(row["value"])
        operation: Any = Operation(row["operation"]).name.lower()
        self.results.append(Result(key, operation, value))
        if value is None:
            del self.table[key]
        else:
            self.table[key] = value

    def _read(self, value: bytes | None) -> Any:
        """A result, from its bytes; None for none."""
        return json_value(value)

    def _require_row(self, change: Change) -> None:
        """``FkJoinError`` if a row lacks a column that the test names.

        So it is if the row has what the test cannot take.
        """
        self._key_of(change)

    def _key_of(self, change: Change) -> str | None:
        """The key that a row names; None without a row, and of a side whose rows name none."""
        if self._names is None or change.row is None or change.side != "left":
            return None
        return self._named(change.row, change.key, change.key, change.row)

    def _named(self, row: Row, owner: object, *arguments: object) -> str | None:
        """The key that a row names.

        It is in the row's column, or the user's function makes it of the arguments.  ``owner``:
        what tells the row from others in errors.
        """
        assert self._names is not None
        names = getattr(self, self._names)
        whose = self._whose.format(owner)
        key = names(*arguments) if callable(names) else value_in(row, names, self._names, whose)
        if not isinstance(key, str | None):
            wrong = f"the key that {owner!r} names is {key!r}"
            raise FkJoinError(f"{self._names}: {wrong}; here keys are texts, or None")
        return key

    def _require_change(self, change: Change, functions: str) -> None:
        """``FkJoinError`` unless one of the test's functions makes such a change."""
        side, key, row, version = change
        if side not in self._takes:
            raise FkJoinError(
                f"feed: a change of side {side!r} has no place here; make it with {functions}"
            )
        if not isinstance(key, str):
            raise FkJoinError(
                f"feed: key {key!r} is of type {type(key).__name__}; here keys are texts"
            )
        if not isinstance(row, dict) and (row is not None or side == "event"):
            raise FkJoinError(
                f"feed: the row of {side} {key!r} is {row!r}, which is not a dict of columns"
            )
        require_version(version, f"feed: version {version!r} of {key!r}")


def require_sentinel(value: object, argument: str, hint: str = "") -> None:
    """``FkJoinError``, with the hint, unless it is something that happens to a batch."""
    if value not in (CRASH, DUPLICATE, REORDER):
        raise FkJoinError(f"{argument}: {value!r} is none of CRASH, DUPLICATE, REORDER{hint}")


def portions(items: Sequence[_T], repeatable: Sequence[_T], by: random.Random) -> list[list[_T]]:
    """Items in another order, three at a time; some of those that are repeatable come twice."""
    mixed = [*items, *by.sample(repeatable, len(repeatable) // 4)]
    by.shuffle(mixed)
    return [mixed[start : start + 3] for start in range(0, len(mixed), 3)]


def require_version(version: object, called: str) -> None:
    """``FkJoinError`` unless it is a whole number, or None."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise FkJoinError(f"{called} is not a whole number")


def value_in(row: Row, column: str, argument: str, whose: str) -> Any:
    """The value of a column; ``FkJoinError`` if the row has no such column."""
    if column not in row:
        raise FkJoinError(f"{argument}: {whose} has no column {column!r}; {nearest(column, row)}")
    return row[column]


def texts(values: Iterable[str | None]) -> pa.Array:
    """Texts as the bytes of keys."""
    return as_bytes(pa.array(values, pa.string()))


def json_bytes(value: Any) -> bytes | None:
    """A row as the bytes of its JSON; None for none."""
    if value is None:
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()


def json_value(text: bytes | None) -> Any:
    """A row, from the bytes of its JSON; None for none."""
    return None if text is None else json.loads(text)
