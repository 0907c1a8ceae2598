"""A topic that was created again is read from its beginning; then rows of the topic before go.

What packs records says so when a partition's last record of the start has passed
(``StartOver.passed``).  The first stage that a source's rows come to remembers which partitions
have (``{'e'}{identity of the topic}``), and when all have, it makes tombstones for the rows that
still are of the topic before.

*Law*: a row that the new topic has, in any record up to the ends, is not deleted: its version is
the new topic's by then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, Bools, Bytes, constant, first_bytes, take, untagged, valid
from fkjoin.codec.messages import CHANGE, JOINED, NO_TIMESTAMP, NUMBERED, table
from fkjoin.stages.retention import GONE
from fkjoin.stages.slots import Slot
from fkjoin.state import Store, prefix_range

PASSED = "passed:"
"""The beginning of a counter's name that says which partition's end has passed, behind it."""

SlotsOf = Callable[[Bytes], Sequence[Slot] | None]

_Ends = tuple[tuple[int, int], ...]
"""Partitions that had records at the start, and the offset of each one's last record."""


@dataclass(frozen=True)
class StartOver:
    """A topic that is read from its beginning in the place of one of the same name."""

    identity: bytes
    """The topic's: see ``versions.topic_identity``."""
    ends: _Ends
    """Empty where all have passed before the query's start."""
    slot: int | None = None
    """The number of the topic among the tables that a stage has in one store."""

    def __str__(self) -> str:
        return json.dumps([self.identity.hex(), self.ends, self.slot])

    @classmethod
    def parsed(cls, text: str) -> StartOver:
        """The topic of which ``str`` made the text."""
        identity, ends, slot = json.loads(text)
        return cls(bytes.fromhex(identity), tuple((number, end) for number, end in ends), slot)

    def passed(self, version: pa.StructArray) -> list[str]:
        """The names of counters that say which ends records with these versions have reached."""
        fields = (version.field(name) for name in versions.PLACE[1:])
        partition, offset = (field.to_numpy(zero_copy_only=False) for field in fields)
        return [
            f"{PASSED}{number}:{self}"
            for number, end in self.ends
            if ((partition == number) & (offset >= end)).any()
        ]


def reached(names: Sequence[str], store: Store) -> list[StartOver]:
    """Remember what counters say that begin with ``PASSED``; return topics that are read to the
    end.

    Each topic is named once: later records pass the ends, too.
    """
    passed: dict[str, set[int]] = {}
    for text in names:
        number, _, topic = text.removeprefix(PASSED).partition(":")
        passed.setdefault(topic, set()).add(int(number))
    whole = []
    for topic, partitions in passed.items():
        about = StartOver.parsed(topic)
        slot = b"" if about.slot is None else bytes((about.slot,))
        name = pa.array([tags.ENDS + about.identity + slot], BYTES)
        (stored,) = store.get_many(name).to_pylist()
        before = dict(json.loads(stored)) if stored is not None else {}
        ends = before | {number: end for number, end in about.ends if number in partitions}
        # Only the batch that passes the last end makes tombstones: in later ones nothing changes.
        if ends != before:
            store.write(name, pa.array([json.dumps(sorted(ends.items())).encode()], BYTES))
            if all(ends.get(number, -1) >= end for number, end in about.ends):
                whole.append(about)
    return whole


def left_behind(
    store: Store, topic: StartOver, tag: bytes, schema: pa.Schema, slots_of: SlotsOf
) -> Iterator[pa.Table]:
    """Tombstones (``schema``) for a stage's rows under ``tag`` of other topics of the same name.

    ``slots_of``: reads the rows of all tables from bodies of records, where a stage numbers several
    in one store. A stage takes the tombstones in the batch that passes the end, in one call with
    it: a key has one result of both. Their versions are older than the versions of all records of
    the new topic.
    """
    for page in store.scan([prefix_range(tag)]):
        held, keys = records.decode(page.values), untagged(page.keys)
        alive = held.flags & GONE == 0
        if (slots := slots_of(held.body)) is not None:
            assert topic.slot is not None
            slot = slots[topic.slot]
            alive &= valid(slot.row)
            rows = _tombstones(keys, pc.fill_null(slot.version, b""), alive, topic, JOINED)
            number = pa.array(np.full(len(rows), topic.slot, np.int8))
            yield rows.append_column(NUMBERED.field("number"), number)
            continue
        # Several right tables in one store are told apart by the first byte of keys.
        if topic.slot is not None:
            alive &= first_bytes(keys) == topic.slot
        yield _tombstones(keys, held.version, alive, topic, schema)


def _tombstones(
    keys: Bytes, version: Bytes, alive: Bools, topic: StartOver, schema: pa.Schema
) -> pa.Table:
    old = np.flatnonzero(alive & versions.of_topic_before(version, topic.identity))
    keys, before_all = take(keys, old), versions.before_all(take(version, old), topic.identity)
    nothing, time = constant(None, len(old)), np.full(len(old), NO_TIMESTAMP)
    if schema is CHANGE:
        return table(CHANGE, keys, nothing, nothing, before_all, time)
    return table(JOINED, keys, before_all, nothing, np.ones(len(old), bool), time)
