"""Typed rows → packed messages: functions for ``mapInArrow``.

They stand in front of a query's first stage and behind a joiner.  Rows exist in the JVM only before
the first stage and after the last, and around a joiner.  In between they travel as packed payloads,
a few megabytes in one row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES, Bools, Bytes, as_bytes, bools, masked, narrowed, valid
from fkjoin.codec.key_texts import key_text
from fkjoin.codec.messages import CHANGE, EVENT, JOINED, NO_TIMESTAMP, NUMBERED, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.errors import FormatError
from fkjoin.spark.buckets import Payload, bucket_ids, framed, packed_by_bucket
from fkjoin.spark.worker import releasing
from fkjoin.stages import counters
from fkjoin.stages.regroup import contributions
from fkjoin.stages.scatter import foreign_keys, tagged
from fkjoin.stages.start_over import StartOver

ENVELOPES = pa.schema(
    [
        ("bucket", pa.int32()),
        ("payload", pa.binary()),
        ("counter", pa.string()),
        ("count", pa.int64()),
    ]
)
"""The columns of ``ENVELOPE``, in Arrow."""

Batches = Iterator[pa.RecordBatch]

Pack = Callable[[Batches], Batches]
"""Rows → envelopes, such as ``PackChanges``."""


@dataclass(frozen=True)
class PackRead:
    """Lines or records as Spark reads them → envelopes."""

    reading: Any
    """``JsonLines`` or ``TopicRecords``."""
    pack: Pack

    def __call__(self, batches: Batches) -> Batches:
        # No ``map``: a StopIteration out of a user's format would end the batches without a word.
        return self.pack(self.reading.changes(batch) for batch in batches)


class PacksTable:
    """The common part of functions that pack the rows of a table."""

    key: pa.Schema
    buckets: int
    validate: bool
    """Wake every bucket, so that each is checked after the batch."""
    number: int | None
    """Number of the table among several."""
    start_over: StartOver | None


@dataclass(frozen=True)
class PackChanges(PacksTable):
    """Rows of a table → envelopes of ``CHANGE`` by key.

    The rows' columns are ``key, foreign_key, row, deleted, version, source, ts, problem``.
    ``version`` is a struct of int64, a record's with its ``PLACE`` at the end, or, for the result
    of a join, its bytes.
    ``source`` is the identity of the log that the version belongs to.
    """

    key: pa.Schema
    foreign_key: pa.Schema | None
    row: pa.Schema
    """Columns to pack: rows may have more."""
    buckets: int
    validate: bool = False
    among: tuple[pa.Schema, ...] = ()
    """Keys of the right tables of a multi-way join's left table.

    Their columns follow each other in ``foreign_key``.
    """
    number: int | None = None
    """Number of the right table in a multi-way join."""
    start_over: StartOver | None = None

    def __call__(self, batches: Batches) -> Batches:
        """Rows with a problem, and rows without a key, are dropped and counted."""
        return packed_changes(batches, self, self._changes)

    def _changes(self, batch: pa.RecordBatch, key: Bytes) -> pa.Table:
        alive = _alive(batch)
        rows = batch.column("row")
        columns = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        row = RowCodec(self.row).encode(narrowed(columns, self.row), len(key))
        ts = pc.fill_null(batch.column("ts"), NO_TIMESTAMP)
        foreign_key = self._foreign_key(batch, len(key))
        if self.number is not None:
            key = tagged(self.number, key)
        return table(CHANGE, key, foreign_key, masked(row, alive), versions_of(batch), ts)

    def _foreign_key(self, batch: pa.RecordBatch, rows: int) -> Bytes:
        if self.foreign_key is None and not self.among:
            return pa.nulls(rows, BYTES)
        columns = batch.column("foreign_key").flatten()
        if self.foreign_key is not None:
            return KeyCodec(self.foreign_key).encode(columns, rows)
        keys = []
        for key in self.among:
            keys.append(KeyCodec(key).encode(columns[: len(key)], rows))
            columns = columns[len(key) :]
        return foreign_keys(keys)


@dataclass(frozen=True)
class CopyRights:
    """Envelopes of right changes → the same for each of their foreign keys' ``spread`` buckets."""

    buckets: int
    spread: int

    def __call__(self, batches: Batches) -> Batches:
        """Counters, and envelopes that only wake a bucket, stay single."""
        ids = np.array(bucket_ids(self.buckets), np.int32)
        by_id = np.argsort(ids)
        for batch in batches:
            carries = pc.fill_null(pc.greater(pc.binary_length(batch.column("payload")), 0), False)
            yield batch.filter(pc.invert(carries))
            some = batch.filter(carries)
            homes = by_id[np.searchsorted(ids[by_id], some.column("bucket").to_numpy())]
            index = some.schema.get_field_index("bucket")
            for copy in range(self.spread):
                buckets = pa.array(ids[(homes + copy) % self.buckets])
                yield some.set_column(index, some.schema.field(index), buckets)


@dataclass(frozen=True)
class PackRows(PacksTable):
    """Rows of a table → envelopes of ``JOINED`` by key; the values are the rows.

    The rows' columns are ``key, row, deleted, version, source, ts, problem``.  With ``group``,
    there is such a column as well, and the values are contributions to groups: of rows whose group
    has a null, none.  A column ``gone`` says which rows are no more, for good; without it, all that
    are deleted.
    """

    key: pa.Schema
    row: pa.Schema
    """Columns to pack: rows may have more."""
    buckets: int
    group: pa.Schema | None = None
    validate: bool = False
    number: int | None = None
    """Number of the table in a merge, whose rows become ``NUMBERED``."""
    start_over: StartOver | None = None

    def __call__(self, batches: Batches) -> Batches:
        """Pack batches like ``PackChanges``."""
        return packed_changes(batches, self, self._rows)

    def _rows(self, batch: pa.RecordBatch, key: Bytes) -> pa.Table:
        alive, row = _alive(batch), batch.column("row")
        if self.group is None:
            columns = dict(zip((field.name for field in row.type), row.flatten(), strict=True))
            value = masked(RowCodec(self.row).encode(narrowed(columns, self.row), len(row)), alive)
        else:
            groups = batch.column("group").flatten()
            value = contributions(self.group, groups, self.row, row.flatten(), alive)
        ts = pc.fill_null(batch.column("ts"), NO_TIMESTAMP)
        gone = bools(batch.column("gone")) if "gone" in batch.schema.names else ~alive
        rows = key, versions_of(batch), value, gone, ts
        if self.number is not None:
            return table(NUMBERED, *rows, np.full(len(key), self.number, np.int8))
        return table(JOINED, *rows)


_Messages = Callable[[pa.RecordBatch, Bytes], pa.Table]
"""Rows and their encoded keys → messages."""


def packed_changes(batches: Batches, pack: PacksTable, messages: _Messages) -> Batches:
    """Envelopes, by key, of the ``messages`` that are made of rows."""
    return releasing(_packed_changes(batches, pack, messages))


def _packed_changes(batches: Batches, pack: PacksTable, messages: _Messages) -> Batches:
    ids = bucket_ids(pack.buckets)
    woken = ids if pack.validate else (0,)
    yield envelopes([(bucket, b"") for bucket in woken])
    for batch in batches:
        if pack.start_over is not None and pack.start_over.ends:
            for name in replace(pack.start_over, slot=pack.number).passed(batch.column("version")):
                yield counter(name, 1, ids)
        usable = yield from _usable(batch)
        if not usable.num_rows:
            continue
        keys = KeyCodec(pack.key).encode(usable.column("key").flatten(), usable.num_rows)
        keyed = valid(keys)
        if not keyed.all():
            yield counter(counters.NULL_KEY, int((~keyed).sum()))
            usable, keys = usable.filter(pa.array(keyed)), keys.filter(pa.array(keyed))
        if len(keys):
            yield from _sent(messages(usable, keys), pack.buckets)


def _usable(batch: pa.RecordBatch) -> Generator[pa.RecordBatch, None, pa.RecordBatch]:
    """Count the rows with a problem, and return the others."""
    problem = batch.column("problem")
    if problem.null_count == batch.num_rows:
        return batch
    yield from dead_letters(problem)
    return batch.filter(pc.is_null(problem))


def _packed(
    batches: Batches, messages: Callable[[pa.RecordBatch], pa.Table], buckets: int
) -> Batches:
    """Envelopes of the messages that are made of rows without a problem."""
    for batch in batches:
        usable = yield from _usable(batch)
        if usable.num_rows:
            yield from _sent(messages(usable), buckets)


def _sent(messages: pa.Table, buckets: int) -> Batches:
    """Envelopes of messages, by key."""
    return map(envelopes, framed(packed_by_bucket(messages, "key", buckets)))


def _alive(batch: pa.RecordBatch) -> Bools:
    return ~bools(pc.fill_null(batch.column("deleted"), False)) & valid(batch.column("row"))


@dataclass(frozen=True)
class PackJoined:
    """Rows of a joiner → envelopes of ``JOINED`` by key.

    The rows' columns are ``key, version, ts, gone, row, problem, counter, count``.  Rows with a
    problem are dropped and counted.
    """

    row: pa.Schema
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        yield envelopes([(0, b"")])
        for batch in batches:
            counted = batch.filter(pc.is_valid(batch.column("counter")))
            for row in counted.select(["counter", "count"]).to_pylist():
                yield counter(row["counter"], row["count"])
            rows = batch.filter(pc.is_valid(batch.column("key")))
            yield from _packed(iter([rows]), self._joined, self.buckets)

    def _joined(self, batch: pa.RecordBatch) -> pa.Table:
        row = batch.column("row")
        value = masked(RowCodec(self.row).encode(row.flatten(), len(row)), valid(row))
        key, version = (as_bytes(batch.column(name)) for name in ("key", "version"))
        return table(JOINED, key, version, value, batch.column("gone"), batch.column("ts"))


@dataclass(frozen=True)
class PackEvents:
    """Rows ``on, event, problem`` → envelopes of ``EVENT`` by key.

    Rows with a problem are dropped and counted; those whose ``on`` has a null name no row.
    """

    key: pa.Schema
    event: pa.Schema
    buckets: int

    def __call__(self, batches: Batches) -> Batches:
        return releasing(_packed(batches, self._events, self.buckets))

    def _events(self, batch: pa.RecordBatch) -> pa.Table:
        event = RowCodec(self.event).encode(batch.column("event").flatten(), batch.num_rows)
        key = KeyCodec(self.key).encode(batch.column("on").flatten(), batch.num_rows)
        named = valid(key)
        return table(EVENT, pc.if_else(pa.array(named), key, event), named, event)


def versions_of(batch: pa.RecordBatch) -> Bytes:
    version = batch.column("version")
    if not pa.types.is_struct(version.type):
        return as_bytes(version)
    source = as_bytes(batch.column("source"))
    nulls = ~np.logical_and.reduce([valid(member) for member in version.flatten()])
    if nulls.any():
        key = key_text(batch.column("key")[int(nulls.argmax())].as_py())
        raise FormatError(
            f"the change of key {key} has no version: a version column is null, so the change "
            "cannot be ordered; filter such rows out, or give version=coalesce(…, 0)"
        )
    columns = [
        pc.cast(member, pa.int64()).to_numpy(zero_copy_only=False) for member in version.flatten()
    ]
    names = tuple(field.name for field in version.type)
    placed = names[-len(versions.PLACE) :] == versions.PLACE
    return versions.encode(source, columns, placed=placed, tied=not placed)


def envelopes(payloads: Iterable[Payload]) -> pa.RecordBatch:
    some = list(payloads)
    rows = len(some)
    buckets, data = [bucket for bucket, _ in some], [payload for _, payload in some]
    nothing = pa.nulls(rows, pa.string()), np.zeros(rows, np.int64)
    return pa.record_batch([buckets, data, *nothing], schema=ENVELOPES)


def counter(name: str, value: int, buckets: Sequence[int] = (0,)) -> pa.RecordBatch:
    """A counter and its count, told to each of the buckets."""
    rows = len(buckets)
    return pa.record_batch([buckets, [None] * rows, [name] * rows, [value] * rows], ENVELOPES)


def dead_letters(problem: pa.Array) -> Batches:
    """Count rows with a problem, and rows with the commonest one."""
    for name, value in counters.commonest(problem.drop_null().to_pylist()).items():
        yield counter(name, value)
