"""A topic that was made anew is read from its beginning; rows that only the topic before had go at
the end of that.

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
"""The beginning of the name of a counter that says that a partition's end has passed; what else it says follows."""

SlotsOf = Callable[[Bytes], Sequence[Slot] | None]

_Ends = tuple[tuple[int, int], ...]
"""Partitions, and the offsets of the last records that each had at the start; those without any are left out."""


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
        """The names of the counters that say which ends are among records with these versions, or lie before them."""
        partition, offset = (
            version.field(name).to_numpy(zero_copy_only=False) for name in versions.PLACE[1:]
        )
        passed = [
            number for number, end in self.ends if ((partition == number) & (offset >= end)).any()
        ]
        return [f"{PASSED}{number}:{self}" for number in passed]


def reached(said: Sequence[str], store: Store) -> list[StartOver]:
    """Remember what counters say that begin with ``PASSED``; return the topics that are read to all
    of their ends with that.

    Each topic is named once: later records pass the ends, too.
    """
    passed: dict[str, set[int]] = {}
    for text in said:
        number, _, topic = text.removeprefix(PASSED).partition(":")
        passed.setdefault(topic, set()).add(int(number))
    whole = []
    for topic, partitions in passed.items():
        about = StartOver.parsed(topic)
        name = pa.array(
            [tags.ENDS + about.identity + bytes(() if about.slot is None else (about.slot,))], BYTES
        )
        (kept,) = store.get_many(name).to_pylist()
        before = dict(json.loads(kept)) if kept is not None else {}
        ends = before | {number: end for number, end in about.ends if number in partitions}
        if ends != before:
            store.write(name, pa.array([json.dumps(sorted(ends.items())).encode()], BYTES))
            if all(ends.get(number, -1) >= end for number, end in about.ends):
                whole.append(about)
    return whole


def left_behind(
    store: Store, topic: StartOver, tag: bytes, schema: pa.Schema, slots_of: SlotsOf
) -> Iterator[pa.Table]:
    """Tombstones (``schema``) for the rows under ``tag`` that a stage holds of other topics of the
    same name.

    ``slots_of``: reads the rows of all tables from bodies of records, where a stage numbers several
    in one store. A stage takes the tombstones in the batch that passes the end, in one call with
    it: a key has one result of both. Their versions are older than those of all records of the new
    topic.
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
        if (
            topic.slot is not None
        ):  # several right tables in one store: the first byte of keys tells them apart
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
