"""Records of a topic as stages get them, and what each stage that reads a source makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import CHANGE, JOINED, NUMBERED, table
from fkjoin.codec.rows import bytes_codec
from fkjoin.stages import Counters, merge, regroup, resolve, scatter
from fkjoin.state import MemoryStore
from tests.support.oracle import Change

TOPIC = versions.topic_identity("orders", "id of orders")
TIMES: Any = {"now_ms": 0, "retention_ms": 1}


class Place(NamedTuple):
    """The place of a record."""

    timestamp: int
    partition: int
    offset: int


class Sent(NamedTuple):
    place: Place
    change: Change


def version(*places: Place, source: bytes = TOPIC, before: tuple[int, ...] = ()) -> pa.Array:
    columns = [np.full(len(places), number) for number in before]
    columns += [np.array(column, np.int64) for column in zip(*places, strict=True)]
    return versions.encode(source, columns, placed=True)


def changes_of(sent: list[Sent], source: bytes = TOPIC) -> pa.Table:
    places = [one.place for one in sent]
    rows = [one.change for one in sent]
    return table(
        CHANGE,
        pa.array([row.key for row in rows], BYTES),
        pa.array([row.foreign_key if row.value is not None else None for row in rows], BYTES),
        pa.array([row.value for row in rows], BYTES),
        version(*places, source=source) if places else pa.array([], BYTES),
        np.array([place.timestamp for place in places], np.int64),
    )


GROUP = b"\1\0\0\0g"
"""First bytes of contributions: the length of their group's key, and the key."""


class Kept:
    """A table's rows after each batch, as a stage that reads a topic says them."""

    def __init__(self, stage: str) -> None:
        self.stage, self.store, self.count = stage, MemoryStore(), Counters()
        self.rows: dict[bytes, bytes | None] = {}

    def batch(self, sent: list[Sent], source: bytes = TOPIC) -> None:
        read = changes_of(sent, source)
        gone = pa.array([one.change.value is None for one in sent], pa.bool_())
        key, marks, value = (read.column(name).combine_chunks() for name in ("key", "version", "value"))
        if self.stage == "scatter":
            bodies = bytes_codec(1).encode([pa.array([b"fk"] * len(sent), BYTES)], len(sent))
            rows = read.set_column(read.schema.get_field_index("foreign_key"), "foreign_key", bodies)
            made = scatter(rows, self.store, self.count, 1, **TIMES).rows
        elif self.stage == "regroup":
            value = pa.array([None if one is None else GROUP + one for one in value.to_pylist()], BYTES)
            rows = pa.table([key, marks, value, gone, read.column("ts")], schema=JOINED)
            made = regroup(rows, self.store, self.count, as_read=True, **TIMES)
            self.rows |= dict(zip(made.column("row").to_pylist(), made.column("new").to_pylist(), strict=True))
            return
        else:
            rows = pa.table([key, marks, value, gone, read.column("ts")], schema=JOINED)
            if self.stage == "resolve":
                made = resolve(rows, self.store, self.count, materialized=True, as_read=True, **TIMES)
            else:
                numbered = pa.table([*rows.columns, pa.array(np.zeros(len(sent), np.int8))], schema=NUMBERED)
                made = merge(numbered, self.store, self.count, 2, source=b"merged..", **TIMES)
        self.rows |= dict(zip(made.column("key").to_pylist(), made.column("value").to_pylist(), strict=True))


STAGES = ["resolve", "regroup", "merge", "scatter"]
