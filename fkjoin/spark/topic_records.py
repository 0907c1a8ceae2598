"""Records of a topic → packed changes, without rows in the JVM, where their formats can be read here.

What a reader says of bytes is what the expressions of ``fkjoin.kafka.formats`` say of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin import versions
from fkjoin.arrays import Bools, bools, constant, valid
from fkjoin.errors import FormatError
from fkjoin.json_text import read_objects
from fkjoin.spark.json_lines import at, struct_of
from fkjoin.spark.packing import Batches, Pack

TAKEN = ("partition", "offset", "timestamp", "key", "value")
"""The columns of Spark's Kafka source that ``PackRecords`` takes."""


class Read(NamedTuple):
    """What bytes mean: rows, whether they delete, and what is wrong with them (null: nothing)."""

    rows: pa.StructArray
    deleted: Bools
    problem: pa.StringArray


class Reader(Protocol):
    """A format of ``fkjoin.kafka``, for Arrow."""

    @property
    def schema(self) -> pa.Schema: ...

    def __call__(self, data: pa.BinaryArray) -> Read:
        """Of a null, ``deleted`` is true."""
        ...


@dataclass(frozen=True)
class ReadBytes:
    """Bytes as they are, in a column of that name; with ``text``, they must be UTF-8."""

    name: str
    text: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.string() if self.text else pa.binary())])

    def __call__(self, data: pa.BinaryArray) -> Read:
        column, good = _as_text(data) if self.text else (data, np.ones(len(data), bool))
        return Read(pa.StructArray.from_arrays([column], fields=list(self.schema)), ~valid(data), _where(~good, "not UTF-8"))


@dataclass(frozen=True)
class ReadObjects:
    """JSON objects.  ``kept``: a column with the whole text.  ``wrapped``: the fields may stand in a ``payload``."""

    fields: pa.Schema
    what: str
    """How an error names the schema."""
    kept: str | None = None
    wrapped: bool = False

    @property
    def schema(self) -> pa.Schema:
        return self.fields if self.kept is None else self.fields.append(pa.field(self.kept, pa.string()))

    def __call__(self, data: pa.BinaryArray) -> Read:
        inner = pa.struct(list(self.fields))
        kind = pa.struct([*self.fields, pa.field("payload", inner)]) if self.wrapped else inner
        there, rows, problem = _objects(data, kind, self.what)
        columns = [at(rows, (name,)) for name in self.fields.names]
        if self.wrapped:
            columns = [pc.coalesce(at(rows, ("payload", name)), at(rows, (name,))) for name in self.fields.names]
        if self.kept is not None:
            text, good = _as_text(data)
            columns.append(text)
            problem = pc.coalesce(problem, _where(~good, "not UTF-8"))
        return Read(pa.StructArray.from_arrays(columns, fields=list(self.schema)), ~there, problem)


@dataclass(frozen=True)
class ReadEvents:
    """Debezium's change events."""

    schema: pa.Schema
    what: str

    def __call__(self, data: pa.BinaryArray) -> Read:
        row = pa.struct(list(self.schema))
        envelope = [pa.field("op", pa.string()), pa.field("after", row)]
        there, rows, problem = _objects(data, pa.struct([*envelope, pa.field("payload", pa.struct(envelope))]), self.what)
        op = pc.coalesce(at(rows, ("payload", "op")), at(rows, ("op",)))
        after = pc.if_else(pc.is_valid(at(rows, ("payload", "after"))), at(rows, ("payload", "after")), at(rows, ("after",)))
        known, deletes = bools(pc.is_in(op, pa.array(["c", "u", "r"]))), bools(pc.is_in(op, pa.array(["d"])))
        named = valid(op)
        problem = pc.coalesce(
            problem,
            _where(there & ~named, "a change event without op"),
            _where(named & ~known & ~deletes, "unknown operation '", op, "'"),
            _where(known & ~valid(after), "operation '", op, "' without after"),
        )
        return Read(after, ~there | deletes, problem)


@dataclass(frozen=True)
class TopicRecords:
    """How the records of a topic are read."""

    topic: str
    key: Reader
    value: Reader
    source: bytes
    """The topic's identity."""
    fail: bool
    """Raise at a record that cannot be used."""

    def packing(self, pack: Pack) -> PackRecords:
        """What makes envelopes of them."""
        return PackRecords(self, pack)

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns ``TAKEN`` as what ``PackChanges`` takes."""
        key, value, problem = self._read(batch)
        if self.fail and problem.null_count < len(problem):
            self._raise(batch, problem)
        time = batch.column("timestamp").cast(pa.int64())
        place = milliseconds(time), batch.column("partition").cast(pa.int64()), batch.column("offset")
        return pa.record_batch(
            {
                "key": key.rows,
                "row": value.rows,
                "deleted": pa.array(value.deleted),
                "version": struct_of(dict(zip(versions.PLACE, place, strict=True))),
                "source": constant(self.source, batch.num_rows),
                "ts": time,
                "problem": problem,
            }
        )

    def problems(self, batch: pa.RecordBatch) -> pa.StringArray:
        """Why each record cannot be used; null where it can."""
        return self._read(batch)[2]

    def _read(self, batch: pa.RecordBatch) -> tuple[Read, Read, pa.StringArray]:
        # Spark can be told to make large binaries.
        key, value = (read(batch.column(name).cast(pa.binary())) for name, read in (("key", self.key), ("value", self.value)))
        parts = zip(self.key.schema.names, key.rows.flatten(), strict=True)
        problem = pc.coalesce(
            _where(~valid(batch.column("key")), "null key"),
            _told("key: ", key.problem),
            *[_where(~valid(part), f"key: no {name}") for name, part in parts],
            _told("value: ", value.problem),
        )
        return key, value, problem

    def _raise(self, batch: pa.RecordBatch, problem: pa.StringArray) -> None:
        place = int(valid(problem).argmax())
        raise FormatError(
            f"record {self.topic}-{batch.column('partition')[place]} offset {batch.column('offset')[place]}: "
            f'{problem[place]}; with on_error="dead-letter" such records are set aside'
        )


def milliseconds(micros: pa.Array) -> pa.Array:
    """Kafka's unit of time, rounded down, of Spark's."""
    return pa.array(np.floor_divide(micros.to_numpy(zero_copy_only=False), 1000), pa.int64())


@dataclass(frozen=True)
class PackRecords:
    """Records, as columns ``TAKEN`` → envelopes of ``CHANGE`` by key."""

    records: TopicRecords
    pack: Pack

    def __call__(self, batches: Batches) -> Batches:
        return self.pack(self.records.changes(batch) for batch in batches)


@dataclass(frozen=True)
class DeadRecords:
    """Records with whatever columns → those that cannot be used, and a column ``problem`` more."""

    records: TopicRecords

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            problem = self.records.problems(batch)
            found = batch.append_column("problem", problem)
            yield found.filter(pc.is_valid(problem))


def _as_text(data: pa.BinaryArray) -> tuple[pa.StringArray, Bools]:
    """As text, null where it is not UTF-8; and where that is not so."""
    try:
        return data.cast(pa.string()), np.ones(len(data), bool)
    except pa.ArrowInvalid:
        good = np.array([item is None or _is_text(item) for item in data.to_pylist()], bool)
        return pc.if_else(pa.array(good), data, None).cast(pa.string()), good


def _is_text(item: bytes) -> bool:
    try:
        item.decode()
    except UnicodeDecodeError:
        return False
    return True


def _objects(data: pa.BinaryArray, kind: pa.StructType, what: str) -> tuple[Bools, pa.StructArray, pa.StringArray]:
    """Which are not null, the rows that they are, and what is wrong with them."""
    there = valid(data)
    rows, fit = read_objects(pc.fill_null(data, b"{}").view(pa.string()), kind)
    return there, rows, _where(~fit, f"not a JSON object of {what}")


def _where(chosen: Bools, *parts: Any) -> pa.StringArray:
    """The texts, joined, where ``chosen``; else null."""
    if not chosen.any():
        return pa.nulls(len(chosen), pa.string())
    whole = pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]
    return pc.if_else(pa.array(chosen), whole, pa.nulls(len(chosen), pa.string()))


def _told(what: str, problem: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(what, problem, "") if problem.null_count < len(problem) else problem
