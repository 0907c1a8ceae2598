"""The common part of all stages.

It is what they say of their state, and what a bucket's work asks of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import Bytes, masked, take, untagged, valid
from fkjoin.codec.key_texts import parse_key
from fkjoin.codec.messages import ANSWER, JOINED, called
from fkjoin.codec.records import Records
from fkjoin.errors import FormatError
from fkjoin.spark.buckets import Payload
from fkjoin.spark.specs.shown import Asked, Described, RecordForm, StoredColumns, pages
from fkjoin.stages.answer_rows import MakesRows, usable
from fkjoin.stages.contribute import Carry, Contribute
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import HAS_RESULT
from fkjoin.stages.slots import Slot
from fkjoin.stages.start_over import StartOver, left_behind
from fkjoin.stages.stream_time import Arrivals
from fkjoin.state import Reads, Store

PART_BYTES = 64 << 20
"""Bytes of packed answers that the stage after them works on at a time.

Unpacked they take up to ten times as much.
"""


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
    together: bool = False
    """It shares an operator of Spark with the stages that it reads directly."""


@dataclass
class Messages:
    """Messages that have come to a bucket, and when."""

    tables: list[pa.Table]
    now_ms: int
    arrivals: Arrivals = field(default_factory=Arrivals)

    def take(self, schema: pa.Schema) -> pa.Table:
        """The messages of one kind in one piece.

        They are no longer among the tables: memory would hold them twice.
        """
        chosen = [table for table in self.tables if table.schema.equals(schema)]
        self.tables[:] = [table for table in self.tables if not table.schema.equals(schema)]
        return pa.concat_tables(chosen).combine_chunks() if chosen else schema.empty_table()


@dataclass(frozen=True)
class StageSpec(ABC):
    """A stage of an operator, and as a class all that is known of its kind: see ``STAGES``."""

    stage: ClassVar[str]
    counts: ClassVar[Mapping[str, str]] = {}
    """Counters besides those that all stages have, and their texts for Prometheus."""
    greatest: ClassVar[tuple[str, ...]] = ()
    """Counters of which the greatest value counts."""
    forms: ClassVar[Mapping[bytes, RecordForm]] = {}
    """Forms in which its records are shown, by tag."""
    key: ClassVar[str] = "key"
    """The name of the schema of its records' keys, see ``Described``."""
    keeps: ClassVar[bool] = False
    """Its store can keep the rows of a table."""
    of_events: ClassVar[bool] = False
    """Its operator makes events, which are not a table."""
    subscribed_in: ClassVar[tuple[str, ...]] = ()
    """The stages of its operator of which one keeps the subscriptions of its rows."""
    rights_together: ClassVar[bool] = False
    """It counts the rows of several right tables together."""
    tombstones: ClassVar[pa.Schema] = JOINED
    """The kind of messages that deletes rows of a source that starts over."""

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
        """The bytes of packed messages that it works on at a time, some keys after the other.

        None: it works on all that has come.
        """
        return None

    def run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        """Messages for the next operator.  The store is written when the iterator is exhausted."""
        for table in messages.tables:
            if not any(table.schema.equals(kind) for kind in self.takes):
                kinds = " and ".join(map(called, self.takes))
                raise FormatError(
                    f"store {self.name}: a {self.stage} stage takes {kinds}, but received "
                    f"{called(table.schema)}: a worker has another release of fkjoin than the "
                    "driver"
                )
        return self._run(messages, store, count)

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The payloads that it works on, and those that go through it as they are."""
        return payloads, []

    def validated(self, messages: Messages, store: Store, bucket: int) -> Iterator[Payload]:
        """Check a bucket's store by what is left of the messages.

        Returns what the next operator's stores are checked by, for their buckets.
        """
        return iter(())

    def hot_key(self, foreign_key: bytes) -> tuple[str, bytes]:
        """The name of the key's schema in the identity's types, and the key in a foreign key."""
        return "foreign_key", foreign_key

    def left_behind(self, store: Store, topic: StartOver) -> Iterator[pa.Table]:
        """Tombstones for the rows that it has of other topics of that name, see ``start_over``."""
        tag = tags.RIGHT if tags.RIGHT in self.forms else tags.ROW
        return left_behind(store, topic, tag, self.tombstones, self.slots)

    @staticmethod
    def subscriptions(store: Store, rights: int) -> Iterator[Bytes]:
        """The combined keys of subscriptions that a store keeps, or that its rows have elsewhere.

        ``rights``: the number of right tables of a multi-way join, else 0.
        """
        return iter(())

    @staticmethod
    def slots(bodies: Bytes) -> Sequence[Slot] | None:
        """The rows of all tables in the bodies of records, where a stage numbers several tables."""
        return None

    @staticmethod
    def encoded(bodies: Bytes) -> Bytes:
        """The encoded rows in the bodies of records; null for null."""
        return bodies

    @classmethod
    def kept(cls, description: Described, keys: Bytes, held: Records) -> tuple[Bytes, Bytes]:
        """The encoded rows of the table that records keep, and their versions.

        A row is null where there is none.
        """
        return cls.encoded(masked(held.body, held.flags & HAS_RESULT > 0)), held.version

    @classmethod
    def decoded(
        cls, description: Described, rows: Bytes, keys: Bytes, store: Reads
    ) -> list[pa.Array]:
        """The columns of encoded rows with these keys; null for null."""
        return description.result(rows)

    @classmethod
    def rows(
        cls, description: Described, store: Reads, keys: Bytes | None
    ) -> Iterator[StoredColumns]:
        """Read the rows of a table that a store keeps, or those with these keys.

        There is at least one batch of them.
        """
        for page in pages(store, tags.ROW, keys):
            held, names = records.decode(page.values), untagged(page.keys)
            rows, version = cls.kept(description, names, held)
            live = np.flatnonzero(valid(rows))
            names = take(names, live)
            columns = cls.decoded(description, take(rows, live), names, store)
            yield names, columns, take(version, live), held.ts[live]

    @classmethod
    def asked(
        cls, description: Described, key: str, known: Sequence[Mapping[str, Any]]
    ) -> list[Asked]:
        """The records to read for a key as a user types it; ``ValueError`` if it is none.

        ``known``: the readable records of the operator's stages before this one.
        """
        wanted = parse_key(description.key, key)
        return [(wanted, tuple(tag + wanted[0].as_py() for tag in cls.forms), None)]

    @property
    def name(self) -> str:
        """Name of the store."""
        return f"{self.state.operator}-{self.stage}"

    @abstractmethod
    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]: ...

    def _times(self, messages: Messages) -> Times:
        return {"now_ms": messages.now_ms, "retention_ms": self.state.retention_ms}


class Times(TypedDict):
    """Arguments that most stages take: the batch's time, and how long they keep markers."""

    now_ms: int
    retention_ms: int


class WorkerStage(NamedTuple):
    """A stage of an operator (``plan.physical.OperatorStage``), as workers get it."""

    spec: StageSpec
    reader: int | None = None
    """The number of the stage that gets its results; None: they leave the operator."""
    counted_as: str | None = None
    """The name under which its counters are summed up; None: they continue with its messages."""


@dataclass(frozen=True, kw_only=True)
class ByRow(StageSpec):
    """The common part of stages whose records are by the keys of a table's rows."""

    in_order: bool = False
    """An operator of the query makes the table: see ``newest_only``, as for all ``in_order``."""

    @property
    def highwater_tags(self) -> bytes:
        return b"" if self.in_order else tags.ROW


@dataclass(frozen=True, kw_only=True)
class RowsOrAnswers(ByRow):
    """The common part of stages whose rows come as they are, or as a join's answers."""

    row_kinds: ClassVar[tuple[pa.Schema, ...]] = (JOINED,)
    """The kinds of messages that rows come as."""
    every: bool = False
    """Emit every update, also one that leaves a result unchanged (``emit="on-update"``)."""
    from_answers: Carry | Contribute | MakesRows | None = None
    """Function that makes the rows of answers, where those come."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return self.row_kinds if self.from_answers is None else (ANSWER,)

    def _rows(self, messages: Messages, count: Counters) -> pa.Table:
        """The rows that come to the stage."""
        if self.from_answers is None:
            (kind,) = self.row_kinds
            return messages.take(kind)
        answers = messages.take(ANSWER)
        if isinstance(self.from_answers, Carry | Contribute):
            return self.from_answers(answers)
        return usable(self.from_answers, answers, count, self.state.operator)
