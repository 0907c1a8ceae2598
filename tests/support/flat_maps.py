"""Rows that become rows under keys of their own: their messages, and a plain recomputation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import pairs
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import JOINED
from fkjoin.codec.pairs import Pairs
from tests.support.changes import newest
from tests.support.versions import message_table, version

Outputs = Mapping[str, bytes]


class Change(NamedTuple):
    """A version of an input row, with the outputs that it makes; None: it is no more."""

    key: str
    version: int
    outputs: Outputs | None


def recomputed(changes: Sequence[Change]) -> dict[str, bytes]:
    """The output of the first row that makes one, for each key, of the rows as they are after the changes."""
    table: dict[str, bytes] = {}
    for _, change in sorted(newest(changes).items(), reverse=True):
        table |= change.outputs or {}
    return table


def messages(changes: Sequence[Change]) -> pa.Table:
    made = [(at, key, row) for at, change in enumerate(changes) for key, row in (change.outputs or {}).items()]
    of = np.array([at for at, *_ in made], np.int64)
    keys = pa.array([key for _, key, _ in made], BYTES)
    outputs = Pairs(of, keys, pa.array([row for *_, row in made], BYTES))
    rows = []
    for change, body in zip(changes, pairs.encode(outputs, len(changes)).to_pylist(), strict=True):
        mark = version(change.version, source=b"a-source")
        rows.append((change.key, mark, body, change.outputs is None, change.version))
    return message_table(JOINED, rows)
