"""Batches of tests in memory, and what happens to them: the common part of ``fkjoin.testing``."""

from __future__ import annotations

import copy
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from fkjoin.codec.messages import Operation
from fkjoin.errors import FkJoinError, nearest
from fkjoin.stages import Counters
from fkjoin.state import MemoryStore

Row = dict[str, Any]
RowExtractor = str | Callable[[str, Row], Any]

TIMES: dict[str, Any] = {"now_ms": 0, "retention_ms": 24 * 60 * 60 * 1000}
"""The times that stages are told."""


class Change(NamedTuple):
    """A change of a row.

    Attributes
    ----------
    side : {"left", "right", "event"}
        The table; ``"left"`` also of one that is summed up.  ``"event"``: of no table, but an event that one enriches.
    key : str
        The row's key.
    row : dict or None
        The row; None deletes it.
    version : int, optional
        The number that orders the changes of a key; by default, as they are fed.

    Examples
    --------
    >>> change = Change("left", "o1", {"customer": "c1"})
    """

    side: Literal["left", "right", "event"]
    key: str
    row: Row | None
    version: int | None = None


@dataclass(frozen=True)
class Sentinel:
    """Something that happens to a batch."""

    name: str


CRASH = Sentinel("CRASH")
"""The batch before it is lost after each stage in turn, with all that it wrote, and is then done."""

DUPLICATE = Sentinel("DUPLICATE")
"""Everything that was fed so far comes again."""

REORDER = Sentinel("REORDER")
"""The messages of the batch before it overtake each other between the stages and come in portions, some of them twice."""


class Result(NamedTuple):
    """A change of the joined or summed-up table.

    Attributes
    ----------
    key : str
        The row's key.
    operation : {"insert", "update", "delete"}
        The kind of change.
    value : object
        The row; None in a delete.
    """

    key: str
    operation: Literal["insert", "update", "delete"]
    value: Any


_SIDE_OF = {"change": "left"}
"""The sides of changes, where functions that make them have other names."""


class Kit(ABC):
    """Base of the kits for joins, aggregates and flat maps: batches, their delivery, and the table that results."""

    table: dict[str, Any]
    results: list[Result]
    count: Counters
    seed: int
    _stages: ClassVar[tuple[str, ...]]
    _takes: ClassVar[tuple[str, ...]] = ("change",)
    """The functions that make what is fed."""
    _names: ClassVar[str | None] = None
    """The argument that says which key a row names: a column, or a callable."""

    def __post_init__(self) -> None:
        if self._names is not None:
            _require_names(self._names, getattr(self, self._names))
        self._stores = [MemoryStore() for _ in self._stages]
        self._fed: list[Change] = []
        self._random = random.Random(self.seed)

    def feed(self, *changes: Change | Sentinel) -> list[Result]:
        """Process changes, a batch up to each sentinel and one after the last.

        Parameters
        ----------
        *changes : Change or sentinel
            Changes, and what happens to them: ``CRASH``, ``DUPLICATE``, ``REORDER``.

        Returns
        -------
        list of Result
            The results of all batches.

        Raises
        ------
        FkJoinError
            If anything is neither a change that this test takes nor a sentinel, or a row lacks a column that the test names;
            nothing is processed then.

        Examples
        --------
        >>> results = test.feed(left("o1", {"customer": "c1"}), CRASH, left("o1", None), DUPLICATE)
        """
        for change in changes:
            if isinstance(change, Change):
                _require_change(change, self._takes)
                if change.row is not None:
                    self._require_row(change)
            else:
                require_sentinel(change, "feed", f", and no change: {_made_with(self._takes)} makes one")
        before = len(self.results)
        batch: list[Change] = []
        for change in changes:
            if isinstance(change, Change):
                batch.append(change if change.version is not None else change._replace(version=len(self._fed) + len(batch)))
                continue
            self._process(batch, change)
            batch = []
        self._process(batch, None)
        return self.results[before:]

    def stored(self, stage: str) -> dict[bytes, bytes]:
        """Read a stage's store.

        Parameters
        ----------
        stage : str
            ``"rekey"``, ``"subscription"`` or ``"resolve"`` of a join, ``"regroup"`` or ``"aggregate"`` of an aggregate,
            ``"spread"`` or ``"owners"`` of a flat map, ``"pair"`` of a join by primary key, ``"enrich"`` of changes.

        Returns
        -------
        dict of bytes to bytes

        Raises
        ------
        ValueError
            If there is no such stage.

        Examples
        --------
        >>> assert test.stored("resolve") == {}
        """
        return dict(self._stores[self._stages.index(stage)].items())

    def _process(self, batch: list[Change], what: Sentinel | None) -> None:
        if what == CRASH:
            for stages in range(1, len(self._stages) + 1):
                stores, count = copy.deepcopy(self._stores), self.count.copy()
                self._run(batch, stages)
                self._stores, self.count = stores, count
        self._fed += batch
        whole = len(self._stages)
        results = self._reordered(batch) if what == REORDER else [self._run(batch, whole)]
        if what == DUPLICATE:
            results.append(self._run(self._fed, whole))
        for made in results:
            self._take(made)

    @abstractmethod
    def _require_row(self, change: Change) -> None:
        """``FkJoinError`` if a row lacks a column that the test names, or has what the test cannot take."""

    @abstractmethod
    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        """A batch through so many stages, everything in order."""

    @abstractmethod
    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        """A batch through all stages, its messages out of order, some of them twice."""

    def _read(self, value: bytes) -> Any:
        """A result, from its bytes."""
        return json.loads(value)

    def _portions(self, messages: pa.Table) -> list[pa.Table]:
        """The messages in another order, a few at a time, some of them twice."""
        places = list(range(len(messages)))
        places = self._shuffled(places + self._random.sample(places, len(places) // 4))
        return [messages.take(pa.array(places[start : start + 3], pa.int64())) for start in range(0, len(places), 3)]

    def _shuffled(self, items: Iterable[Any]) -> list[Any]:
        listed = list(items)
        self._random.shuffle(listed)
        return listed

    def _take(self, results: pa.Table) -> None:
        for row in results.to_pylist():
            value = None if row["value"] is None else self._read(row["value"])
            operation: Any = Operation(row["operation"]).name.lower()
            key = row["key"].decode()
            self.results.append(Result(key, operation, value))
            if value is None:
                del self.table[key]
            else:
                self.table[key] = value


def require_sentinel(what: object, argument: str, hint: str = "") -> None:
    """``FkJoinError``, with the hint, unless it is something that happens to a batch."""
    if what not in (CRASH, DUPLICATE, REORDER):
        raise FkJoinError(f"{argument}: {what!r} is none of CRASH, DUPLICATE, REORDER{hint}")


def _made_with(takes: tuple[str, ...]) -> str:
    return " or ".join(f"{function}(…)" for function in takes)


def _require_change(change: Change, takes: tuple[str, ...]) -> None:
    """``FkJoinError`` unless it is what one of the functions ``takes`` makes of a key, a row and a version."""
    side, key, row, version = change
    if side not in {_SIDE_OF.get(name, name) for name in takes}:
        raise FkJoinError(f"feed: a change of side {side!r} has no place here; make it with {_made_with(takes)}")
    if not isinstance(key, str):
        raise FkJoinError(f"feed: key {key!r} is of type {type(key).__name__}; here keys are texts")
    if not isinstance(row, dict) and (row is not None or side == "event"):
        raise FkJoinError(f"feed: the row of {side} {key!r} is {row!r}, which is no dict of columns")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise FkJoinError(f"feed: version {version!r} of {key!r} is no whole number")


def _require_names(argument: str, given: object) -> None:
    """``FkJoinError`` unless it is the name of a column, or callable."""
    if not isinstance(given, str) and not callable(given):
        raise FkJoinError(f"{argument}: {given!r} is no text; here a key is one text: name a column, or give a function")


def value_in(row: Row, column: str, argument: str, whose: str) -> Any:
    """The value of a column; ``FkJoinError`` if the row has no such column."""
    if column not in row:
        raise FkJoinError(f"{argument}: {whose} has no column {column!r}; {nearest(column, row)}")
    return row[column]


def key_in(row: Row, given: str | Callable[..., Any], argument: str, whose: str, *arguments: object) -> Any:
    """The key that a row names: a column's value, or what a function makes of the arguments; see ``value_in``."""
    return given(*arguments) if callable(given) else value_in(row, given, argument, whose)


def named_by(extractor: RowExtractor, change: Change, argument: str) -> str | None:
    """The key that a row names; None without a row."""
    if change.row is None:
        return None
    found = key_in(change.row, extractor, argument, f"the row of {change.key!r}", change.key, change.row)
    if not isinstance(found, str | None):
        raise FkJoinError(f"{argument}: the key that {change.key!r} names is {found!r}; here keys are texts, or None")
    return found


def json_text(aggregate: Any) -> str:
    """An aggregate as JSON; a set is a sorted list."""
    return json.dumps(aggregate, sort_keys=True, default=lambda found: sorted(found) if isinstance(found, set) else str(found))


def json_bytes(value: Any) -> bytes:
    """A row as the bytes of its JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
