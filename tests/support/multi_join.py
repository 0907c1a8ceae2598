"""A join with two right tables over memory: its messages, its table, and the plain batch join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, as_bytes
from fkjoin.codec.messages import CHANGE, LEFT, NO_TIMESTAMP, table
from fkjoin.codec.rows import RowCodec
from fkjoin.stages.counters import Counters
from fkjoin.stages.gather import gather
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.multi_join import KEY, Field, MultiJoin, Nested, Right
from fkjoin.stages.scatter import answered, foreign_keys, scatter, tagged
from fkjoin.state import MemoryStore
from tests.support.changes import newest, take

TEXT = pa.schema([("text", pa.string())])
MADE = Nested((("key", Field(KEY, ("id",))), ("left", Field(LEFT, ("text",))), ("both", Nested((("first", Field(0, ())),)))))
Row = tuple[str, str | None, str | None]


def of_rights(*how: str) -> MultiJoin:
    """Its rows: the key, the left row's text, and in structs the first right row and the second one's text."""
    made = Nested((*MADE.columns, ("second", Field(1, ("text",)))))
    rights = tuple(Right(str(at), TEXT, TEXT, 1, one) for at, one in enumerate(how))  # type: ignore[arg-type]
    return MultiJoin(pa.schema([("id", pa.string())]), TEXT, 1, rights, made)


class Change(NamedTuple):
    """A change of the left table (``number`` LEFT) or of a right one; ``text`` None deletes."""

    number: int
    key: str
    version: int
    text: str | None
    foreign: tuple[str | None, str | None] = (None, None)


def messages(changes: Iterable[Change], number: int) -> pa.Table:
    rows = [change for change in changes if change.number == number]
    keys = as_bytes(pa.array([row.key for row in rows], pa.string()))
    texts = pa.array([row.text for row in rows], pa.string())
    there = texts.is_valid()
    value = RowCodec(TEXT).encode([texts], len(rows))
    value = pa.array([one if here else None for one, here in zip(value.to_pylist(), there.to_pylist(), strict=True)], BYTES)
    foreign = [as_bytes(pa.array([row.foreign[at] if row.text else None for row in rows], pa.string())) for at in (0, 1)]
    by = foreign_keys(foreign) if number == LEFT else pa.nulls(len(rows), BYTES)
    at = np.array([row.version for row in rows], np.int64)
    key = keys if number == LEFT else tagged(number, keys)
    return table(CHANGE, key, by, value, versions.encode(b"source-%d" % (number % 3), [at], tied=True), at)


def right_messages(changes: Iterable[Change]) -> pa.Table:
    chosen = list(changes)
    return pa.concat_tables([messages(chosen, number) for number in (0, 1)])


def batch_join(changes: Iterable[Change], how: tuple[str, ...]) -> dict[str, Row]:
    rows = newest(changes, attrgetter("number", "key"))
    found: dict[str, Row] = {}
    for (number, key), left in rows.items():
        if number != LEFT or left.text is None:
            continue
        others = map(rows.get, enumerate(left.foreign))
        texts = [None if other is None else other.text for other in others]
        if all(text is not None or one == "left" for text, one in zip(texts, how, strict=True)):
            found[key] = (left.text, *texts)  # type: ignore[assignment]
    return found


class MemoryMultiJoin:
    """The three stages over memory, in the order in which a query has them."""

    def __init__(self, how: Sequence[str], *, in_order: bool = False) -> None:
        self.count, self.in_order = Counters(), in_order
        self.stores = [MemoryStore() for _ in range(3)]
        self.joined = Joined(of_rights(*how))

    def batch(self, changes: list[Change], *clocks: int, untimed: bool = False) -> pa.Table:
        """Work on a batch; ``clocks``: the time in each stage.  With ``untimed``, left rows have no timestamps."""
        lefts = messages(changes, LEFT)
        if untimed:
            nothing = pa.array(np.full(len(lefts), NO_TIMESTAMP))
            lefts = lefts.set_column(lefts.schema.get_field_index("ts"), lefts.field("ts"), nothing)
        tags = "drs", "drs", "" if self.in_order else "drs"
        scatters, subscribes, gathers = (
            GuardedStore(store, "multi-way join", tags.encode()) for store, tags in zip(self.stores, tags, strict=True)
        )
        first, second, third = ({"now_ms": now, "retention_ms": 1000} for now in clocks or (0, 0, 0))
        sent = scatter(lefts, scatters, self.count, 2, **first)
        pages = answered(sent.subscriptions, right_messages(changes), subscribes, self.count, (1, 1), **second)
        parts, of = pa.concat_tables([sent.rows, *pages]), self.joined.of
        results = gather(parts, gathers, self.count, of, in_order=self.in_order, **third)
        self.joined.take(results)
        return results


class Joined(dict[str, Row]):
    """The table as a reader of its changes has it."""

    def __init__(self, of: MultiJoin) -> None:
        super().__init__()
        self.of, self.versions = of, dict[str, list[tuple[int, ...]]]()

    def take(self, results: pa.Table) -> None:
        values = RowCodec(self.of.schema).decode(results.column("value").combine_chunks())
        key, left, both, second = (column.to_pylist() for column in values)
        for at, one in enumerate(results.to_pylist()):
            name, row = one["key"].decode(), None
            parts = versions.decode(one["version"])
            self.versions.setdefault(name, []).append(parts[0][1])
            assert len(parts) == 3
            if one["value"] is not None:
                assert key[at] == name
                assert one["ts"] != NO_TIMESTAMP
                first = both[at]["first"]
                row = (left[at], first and first["text"], second[at])
            take(self, name, one["operation"], row)
