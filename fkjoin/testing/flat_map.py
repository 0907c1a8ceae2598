"""A flat map in memory, for users' tests; ``fkjoin.testing`` has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import pairs, versions
from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import JOINED, RESULT, table
from fkjoin.errors import FkJoinError
from fkjoin.stages import Counters, owners, spread
from fkjoin.testing.kit import TIMES, Change, Kit, Result, Row, key_in


@dataclass
class FlatMapTest(Kit):
    """A flat map (``Table.flat_map``) whose state is in memory; feed it ``change(…)``.

    Parameters
    ----------
    rows : callable
        A callable of (key, row) that returns the rows, dicts, that a row makes.
    key : str or callable
        A column of the rows that are made, or a callable of (key of the row that makes it, row that is made), that gives its
        key, a text; None is no row.
    seed : int, default 0
        See ``JoinTest``.

    Attributes
    ----------
    table : dict of str to dict
        The rows by key, as a reader of the results has them.
    results : list of Result
        See ``JoinTest``.
    count : Counters
        See ``JoinTest``.

    Examples
    --------
    >>> test = FlatMapTest(lambda key, row: row["items"], lambda key, item: f"{key}/{item['sku']}")
    >>> results = test.feed(change("o1", {"items": [{"sku": "a"}, {"sku": "b"}]}), change("o1", {"items": [{"sku": "b"}]}))
    >>> test.table
    {'o1/b': {'sku': 'b'}}
    """

    rows: Callable[[str, Row], Iterable[Row]]
    key: str | Callable[[str, Row], str | None]
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    count: Counters = field(default_factory=Counters)

    _stages = ("spread", "owners")
    _names = "key"

    def _require_row(self, change: Change) -> None:
        self._made(change)

    def _run(self, batch: list[Change], stages: int) -> pa.Table:
        outputs = spread(self._messages(batch), self._stores[0], self.count, as_read=True, **TIMES)
        if stages == 1:
            return RESULT.empty_table()
        return owners(outputs, self._stores[1], self.count, source=versions.identity("rows"), **TIMES)

    def _reordered(self, batch: list[Change]) -> list[pa.Table]:
        """Changes overtake each other on the way to the first stage; from it to the second nothing does."""
        places = self._shuffled(range(len(batch))) + self._random.sample(range(len(batch)), len(batch) // 4)
        return [self._run([batch[place]], 2) for place in places]

    def _messages(self, batch: list[Change]) -> pa.Table:
        made = [(at, key, row) for at, change in enumerate(batch) for key, row in self._made(change).items()]
        of, keys = np.array([at for at, *_ in made], np.int64), _texts([key for _, key, _ in made])
        lists = pairs.Pairs(of, keys, pa.array([row for *_, row in made], BYTES))
        version = np.array([change.version for change in batch], np.int64)
        return table(
            JOINED,
            _texts([change.key for change in batch]),
            versions.encode(versions.identity("left"), [version], tied=True),
            pairs.encode(lists, len(batch)),
            np.array([change.row is None for change in batch], bool),
            np.zeros(len(batch), np.int64),
        )

    def _made(self, change: Change) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for row in () if change.row is None else self.rows(change.key, change.row):
            key = key_in(row, self.key, "key", f"a row that {change.key!r} makes", change.key, row)
            if key is None:
                continue
            if not isinstance(key, str) or key in found:
                wrong = f"two of its rows have the key {key!r}" if key in found else f"a key is {key!r}; here keys are texts"
                raise FkJoinError(f"rows of {change.key!r}: {wrong}")
            found[key] = json.dumps(row, sort_keys=True, ensure_ascii=False).encode()
        return found


def _texts(values: list[str]) -> pa.Array:
    return as_bytes(pa.array(values, pa.string()))
