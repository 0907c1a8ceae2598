"""Records of a topic → packed changes, without rows in the JVM, where workers read their formats.

What a reader says of bytes is what the expressions of ``fkjoin.kafka.formats`` say of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bools, constant, valid
from fkjoin.codec.json_read import PLAIN, Reading, read_objects
from fkjoin.errors import FormatError, set_aside
from fkjoin.spark.json_lines import NOT_TEXT, as_text, field_at, not_an_object, struct_of
from fkjoin.spark.names import POSITION
from fkjoin.spark.packing import Batches, Pack, PackRead

TAKEN = ("partition", "offset", "timestamp", "key", "value")
"""The columns of Spark's Kafka source that ``TopicRecords`` takes."""
_NULLS = b'{"":null}'
"""An object in the place of a null: any type has a row for it.

With a member it is read together with others.
"""
RECORD_PLACE = ("topic", "partition", "offset")
"""Fields of a record's position, as Spark's Kafka source names them."""


class ValuesRead(NamedTuple):
    """Rows read from bytes, whether they delete, and what is wrong with them (null: nothing)."""

    rows: pa.StructArray
    deleted: Bools
    problem: pa.StringArray


class Reader(Protocol):
    """A format of ``fkjoin.kafka``, for Arrow."""

    @property
    def schema(self) -> pa.Schema: ...

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        """Read values; ``deleted`` is true where the value is null."""
        ...


@dataclass(frozen=True)
class ReadBytes:
    """Bytes as they are, in a column of that name; with ``text``, they must be UTF-8."""

    name: str
    text: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.string() if self.text else pa.binary())])

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        column, good = as_text(data) if self.text else (data, np.ones(len(data), bool))
        rows = pa.StructArray.from_arrays([column], fields=list(self.schema))
        return ValuesRead(rows, ~valid(data), where(~good, NOT_TEXT))


@dataclass(frozen=True)
class ReadObjects:
    """JSON objects.  ``text_column``: a column with the whole text."""

    fields: pa.Schema
    label: str
    """Name of the schema in errors."""
    text_column: str | None = None
    how: Reading = PLAIN

    @property
    def schema(self) -> pa.Schema:
        if self.text_column is None:
            return self.fields
        return self.fields.append(pa.field(self.text_column, pa.string()))

    def __call__(self, data: pa.BinaryArray) -> ValuesRead:
        kind = pa.struct(list(self.fields))
        rows, deleted, problem = read_bytes(data, kind, self.how, self.label)
        columns = [field_at(rows, (name,)) for name in self.fields.names]
        if self.text_column is not None:
            text, good = as_text(data)
            columns.append(text)
            problem = pc.coalesce(problem, where(~good, NOT_TEXT))
        return ValuesRead(_struct(columns, self.schema, len(data)), deleted, problem)


@dataclass(frozen=True)
class TopicRecords:
    """Reader of a topic's records."""

    topic: str
    key: Reader
    value: Reader
    source: bytes
    """The topic's identity."""
    fail: bool
    """Raise at a record that cannot be used."""
    positions: bool = False
    """Give rows a column ``POSITION``."""

    def packing(self, pack: Pack) -> PackRead:
        """Make the function that turns them into envelopes."""
        return PackRead(self, pack)

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns ``TAKEN`` as what ``PackChanges`` takes."""
        key, value, problem = self.read(batch)
        if self.fail and problem.null_count < len(problem):
            self._raise(batch, problem)
        time = batch.column("timestamp").cast(pa.int64())
        partition = batch.column("partition").cast(pa.int64())
        position = milliseconds(time), partition, batch.column("offset")
        return pa.record_batch(
            {
                "key": key.rows,
                "row": self._placed(batch, value.rows) if self.positions else value.rows,
                "deleted": pa.array(value.deleted),
                "version": struct_of(dict(zip(versions.PLACE, position, strict=True))),
                "source": constant(self.source, batch.num_rows),
                "ts": time,
                "problem": problem,
            }
        )

    def read(self, batch: pa.RecordBatch) -> tuple[ValuesRead, ValuesRead, pa.StringArray]:
        """Keys, values, and the reason why each record cannot be used; null where it can."""
        # Spark can be told to make large binaries.
        key, value = (
            read(batch.column(name).cast(pa.binary()))
            for name, read in (("key", self.key), ("value", self.value))
        )
        parts = zip(self.key.schema.names, key.rows.flatten(), strict=True)
        problem = pc.coalesce(
            where(~valid(batch.column("key")), "null key"),
            _behind("key: ", key.problem),
            *[where(~valid(part), f"key: no {name}") for name, part in parts],
            _behind("value: ", value.problem),
        )
        return key, value, problem

    def _placed(self, batch: pa.RecordBatch, rows: pa.StructArray) -> pa.StructArray:
        """The rows, with the position of each one's record."""
        topic = pa.repeat(pa.scalar(self.topic), batch.num_rows)
        parts = topic, batch.column("partition"), batch.column("offset")
        columns = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        columns[POSITION] = struct_of(dict(zip(RECORD_PLACE, parts, strict=True)))
        return pa.StructArray.from_arrays(
            list(columns.values()), list(columns), mask=pc.is_null(rows)
        )

    def _raise(self, batch: pa.RecordBatch, problem: pa.StringArray) -> None:
        row = int(valid(problem).argmax())
        raise FormatError(
            f"record {self.topic}-{batch.column('partition')[row]} "
            f"offset {batch.column('offset')[row]}: {problem[row]}{set_aside('records')}"
        )


def milliseconds(micros: pa.Array) -> pa.Array:
    """Kafka's unit of time, rounded down, of Spark's."""
    return pa.array(np.floor_divide(micros.to_numpy(zero_copy_only=False), 1000), pa.int64())


@dataclass(frozen=True)
class DeadRecords:
    """Records with whatever columns → those that cannot be used, and a column ``problem`` more."""

    records: TopicRecords

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            _, _, problem = self.records.read(batch)
            yield batch.append_column("problem", problem).filter(pc.is_valid(problem))


def read_bytes(data: pa.BinaryArray, kind: pa.StructType, how: Reading, label: str) -> ValuesRead:
    """The JSON objects that bytes are, as rows; ``label``: their schema in errors."""
    present = valid(data)
    rows, fit, advice = read_objects(pc.fill_null(data, _NULLS).view(pa.string()), kind, how)
    problem = where(~fit, not_an_object(label))
    if advice:
        problem = pa.array(
            [advice.get(row, text) for row, text in enumerate(problem.to_pylist())], pa.string()
        )
    return ValuesRead(rows, ~present, problem)


def put_back(places: Sequence[Any], parts: Sequence[ValuesRead]) -> ValuesRead:
    """Values that were read apart, each at its place; the places of a single part may be None."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(places), kind="stable")
    back = pa.array(order)
    return ValuesRead(
        pa.concat_arrays([part.rows for part in parts]).take(back),
        np.concatenate([part.deleted for part in parts])[order],
        pa.concat_arrays([part.problem for part in parts]).take(back),
    )


def _struct(columns: list[pa.Array], schema: pa.Schema, count: int) -> pa.StructArray:
    """Make a struct of columns, of which there may be none."""
    if not columns:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=list(schema))


def where(chosen: Bools, *parts: Any) -> pa.StringArray:
    """Problems: the texts, joined, where ``chosen``; else null."""
    if not chosen.any():
        return pa.nulls(len(chosen), pa.string())
    whole = pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]
    return pc.if_else(pa.array(chosen), whole, pa.nulls(len(chosen), pa.string()))


def _behind(words: str, problem: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(words, problem, "")
