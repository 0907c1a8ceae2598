"""The common part of all stages: what they say of their state, and what a bucket's work asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

import pyarrow as pa

from fkjoin.codec import tags
from fkjoin.codec.messages import ANSWER, CHANGE, ENRICHED, EVENT, GROUPED, JOINED, NUMBERED, PART, RESULT, SUBSCRIPTION, SUMS
from fkjoin.errors import FormatError
from fkjoin.spark.buckets import Payload
from fkjoin.spark.operator import StageName
from fkjoin.stages import Counters
from fkjoin.stages.answer_rows import MakesRows, usable
from fkjoin.stages.contribute import Carry, Contribute
from fkjoin.stages.stream_time import Arrivals
from fkjoin.state import Store

PART_BYTES = 64 << 20
"""Bytes of packed answers that the stage after them works on at a time.  Unpacked they take up to ten times as much."""

_KINDS = {
    "changes": CHANGE,
    "subscriptions": SUBSCRIPTION,
    "answers": ANSWER,
    "joined rows": JOINED,
    "numbered rows": NUMBERED,
    "parts of rows": PART,
    "contributions": GROUPED,
    "results": RESULT,
    "sums of subscriptions": SUMS,
    "events": EVENT,
    "enriched events": ENRICHED,
}


@dataclass(frozen=True)
class StateSpec:
    """Statement of a stage of any kind about its state."""

    operator: str
    """The name of the join or aggregate that the stage is of."""
    buckets: int
    retention_ms: int
    index_dir: str
    identity: str
    """Facts that the stage's checkpoint is bound to."""
    validate: bool = False
    """Check the store's invariants after each batch."""
    spread: int = 1
    """Number of buckets over which the subscriptions of one foreign key are spread."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Names of the tables that the types in its identity are of, as errors call them."""


@dataclass
class Messages:
    """Messages that have come to a bucket, and when."""

    tables: list[pa.Table]
    now_ms: int
    arrivals: Arrivals = field(default_factory=Arrivals)

    def take(self, schema: pa.Schema) -> pa.Table:
        """The messages of one kind in one piece.  They are no longer among the tables: memory would hold them twice."""
        chosen = [table for table in self.tables if table.schema.equals(schema)]
        self.tables[:] = [table for table in self.tables if not table.schema.equals(schema)]
        return pa.concat_tables(chosen).combine_chunks() if chosen else schema.empty_table()


class Times(TypedDict):
    """Times that stages are told."""

    now_ms: int
    retention_ms: int


@dataclass(frozen=True)
class StageSpec(ABC):
    """A stage of an operator."""

    stage: ClassVar[StageName]
    state: StateSpec

    @property
    @abstractmethod
    def takes(self) -> tuple[pa.Schema, ...]:
        """The kinds of messages that it works on."""

    @property
    def highwater_tags(self) -> bytes:
        """Return the tags of the records that have a highwater mark."""
        return tags.ROW + tags.SUBSCRIBER

    @property
    def part_bytes(self) -> int | None:
        """The bytes of packed messages that it works on at a time, some keys after the other; None: on all that has come."""
        return None

    def run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        """Messages for the next operator.  The store is written when the iterator is exhausted."""
        for table in messages.tables:
            if not any(table.schema.equals(kind) for kind in self.takes):
                raise FormatError(
                    f"store {self.name}: a {self.stage} stage takes {' and '.join(map(_kind, self.takes))}, but "
                    f"{_kind(table.schema)} came: a worker has another release of fkjoin than the driver"
                )
        return self._run(messages, store, count)

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The payloads that it works on, and those that go through it as they are."""
        return payloads, []

    def validated(self, messages: Messages, store: Store, bucket: int, name: str) -> Iterator[Payload]:
        """Check a bucket's store, of that name, by what is left of the messages.

        Returns what the next operator's stores are checked by, for their buckets.
        """
        return iter(())

    def hot_key(self, foreign_key: bytes) -> tuple[str, bytes]:
        """The name of the key's schema in the identity's types, and what of a foreign key is that key."""
        return "foreign_key", foreign_key

    @property
    def name(self) -> str:
        """Name of the store."""
        return f"{self.state.operator}-{self.stage}"

    @abstractmethod
    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]: ...

    def _times(self, messages: Messages) -> Times:
        return {"now_ms": messages.now_ms, "retention_ms": self.state.retention_ms}

    def _rows(self, kind: pa.Schema, of: FromAnswers | None, messages: Messages, count: Counters) -> pa.Table:
        """The rows that come to the stage; ``of`` makes them of a join's answers, where those come."""
        if of is None:
            return messages.take(kind)
        answers = messages.take(ANSWER)
        return of(answers) if isinstance(of, Carry | Contribute) else usable(of, answers, count, self.state.operator)


class ByRow:
    """The common part of stages whose records are by the keys of a table's rows."""

    in_order: bool
    """An operator of the query makes the table: see ``newest_only``, as for all ``in_order``."""

    @property
    def highwater_tags(self) -> bytes:
        return b"" if self.in_order else tags.ROW


FromAnswers = Carry | Contribute | MakesRows
"""Function from a join's answers to what a stage needs."""


def _kind(schema: pa.Schema) -> str:
    found = (name for name, kind in _KINDS.items() if kind.equals(schema))
    return next(found, f"a table of {', '.join(schema.names)}")
