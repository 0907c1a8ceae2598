"""Records of a topic as stages get them, and what each stage that reads a source makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import pairs, versions
from fkjoin.codec.arrays import BYTES, constant, take
from fkjoin.codec.messages import CHANGE, EVENT, JOINED, NUMBERED, table
from fkjoin.codec.rows import bytes_codec
from fkjoin.stages.counters import Counters
from fkjoin.stages.enrich import enrich
from fkjoin.stages.join_rows import join_rows
from fkjoin.stages.merge import merge
from fkjoin.stages.pair import pair
from fkjoin.stages.regroup import regroup
from fkjoin.stages.resolve import resolve
from fkjoin.stages.scatter import scatter
from fkjoin.stages.spread import spread
from fkjoin.state import MemoryStore
from tests.support.oracle import Change
from tests.support.versions import message_table

TOPIC = versions.topic_identity("orders", "id of orders")
TIMES: Any = {"now_ms": 0, "retention_ms": 1}


class Place(NamedTuple):
    """The place of a record."""

    timestamp: int
    partition: int
    offset: int


OLDEST = Place(versions.OLDEST, 0, versions.OLDEST)
"""Place of a snapshot's rows."""


class Sent(NamedTuple):
    place: Place
    change: Change


def version(*places: Place, source: bytes = TOPIC, before: tuple[int, ...] = ()) -> pa.Array:
    columns = [np.full(len(places), number) for number in before]
    columns += [np.array(column, np.int64) for column in zip(*places, strict=True)]
    return versions.encode(source, columns, placed=True)


def changes_of(sent: list[Sent], source: bytes = TOPIC) -> pa.Table:
    rows = []
    for place, change in sent:
        foreign_key = None if change.value is None else change.foreign_key
        mark = version(place, source=source)[0].as_py()
        rows.append((change.key, foreign_key, change.value, mark, place.timestamp))
    return message_table(CHANGE, rows)


GROUP = b"\1\0\0\0g"
"""First bytes of contributions: the length of their group's key, and the key."""


class Kept:
    """A table's rows after each batch, as a stage that reads a topic says them; of two tables, as their ``number`` is."""

    def __init__(self, stage: str) -> None:
        self.stage, self.store, self.count = stage, MemoryStore(), Counters()
        self.rows: dict[bytes, bytes | None] = {}
        self.now_ms = 0

    def batch(self, sent: list[Sent], source: bytes = TOPIC, number: int = 0) -> None:
        read = changes_of(sent, source)
        if self.stage == "scatter":
            bodies = bytes_codec(1).encode([pa.array([b"fk"] * len(sent), BYTES)], len(sent))
            self.take(read.set_column(read.schema.get_field_index("foreign_key"), "foreign_key", bodies))
            return
        key, marks, value = (read.column(name).combine_chunks() for name in ("key", "version", "value"))
        gone = value.is_null()
        if self.stage == "regroup":
            value = pa.array([None if one is None else GROUP + one for one in value.to_pylist()], BYTES)
        elif self.stage == "spread":
            there = np.flatnonzero(value.is_valid())
            value = pairs.encode(pairs.Pairs(there, take(constant(b"output", len(sent)), there), take(value, there)), len(sent))
        rows = pa.table([key, marks, value, gone, read.column("ts")], schema=JOINED)
        if self.stage in {"merge", "pair"}:
            rows = pa.table([*rows.columns, pa.array(np.full(len(sent), number, np.int8))], schema=NUMBERED)
        self.take(rows)

    def take(self, rows: pa.Table) -> None:
        """Work on rows as the stage reads them."""
        names, times = ("key", "value"), TIMES | {"now_ms": self.now_ms}
        if self.stage == "scatter":
            made = scatter(rows, self.store, self.count, 1, **times).rows
        elif self.stage in {"regroup", "spread"}:
            stage, names = {"regroup": regroup, "spread": spread}[self.stage], ("row", "new")
            made = stage(rows, self.store, self.count, as_read=True, **times)
        elif self.stage == "resolve":
            made = resolve(rows, self.store, self.count, materialized=True, as_read=True, **times)
        elif self.stage == "merge":
            made = merge(rows, self.store, self.count, 2, source=b"merged..", **times)
        elif self.stage == "pair":
            made = pair(rows, self.store, self.count, lambda rows: join_rows(rows, "outer"), parts=(1, 1), **times)
        else:
            keys, names = pa.array(sorted({*self.rows, *rows.column("key").to_pylist()}), BYTES), ("key", "row")
            events = table(EVENT, keys, np.ones(len(keys), bool), keys)
            made = enrich(rows, events, self.store, self.count, how="left", **times)
        self.rows |= dict(zip(*(made.column(name).to_pylist() for name in names), strict=True))

    @property
    def live(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.rows.items() if value is not None}


STAGES = ["resolve", "regroup", "merge", "scatter"]
