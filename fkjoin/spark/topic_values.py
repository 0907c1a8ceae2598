"""Encoded results → records of a topic, without rows in the JVM, where workers write their formats.

What a writer makes of rows is what the expressions of ``fkjoin.kafka.formats`` make of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import BYTES, Bytes, as_bytes
from fkjoin.codec.json_write import objects
from fkjoin.codec.messages import Operation, column
from fkjoin.codec.rows import Path
from fkjoin.spark.packing import Batches
from fkjoin.spark.unpacking import UnpackResults, unpacked
from fkjoin.spark.worker import releasing

POSITIONS = "__fkjoin_positions"
"""A column of texts that say where rows came from."""


class Writer(Protocol):
    """A format of ``fkjoin.kafka``, or an expression, for Arrow."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """List the paths that it reads in a table's columns."""
        ...

    def __call__(self, columns: list[pa.Array]) -> pa.Array:
        """The bytes made of what is at the paths, as text or binary; null where they are null."""
        ...


@dataclass(frozen=True)
class WriteTexts:
    """Texts, and fields of text or bytes, one after the other; null where one of the fields is."""

    parts: tuple[str | Path, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(part for part in self.parts if not isinstance(part, str)))

    def __call__(self, columns: list[pa.Array]) -> pa.Array:
        fields = dict(zip(self.paths, map(as_bytes, columns), strict=True))
        parts = []
        for part in self.parts:
            if isinstance(part, str):
                parts.append(pa.scalar(part.encode(), BYTES))
            else:
                parts.append(fields[part])
        if len(parts) == 1:
            return parts[0]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", BYTES))


@dataclass(frozen=True)
class WriteObjects:
    """JSON objects with the columns of these names."""

    names: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple((name,) for name in self.names)

    def __call__(self, columns: list[pa.Array]) -> pa.Array:
        return objects(self.names, columns)


@dataclass(frozen=True)
class MakeRecords:
    """Envelopes of ``RESULT`` → rows ``key, value`` and, if asked for, ``POSITIONS``.

    ``value`` is null in a delete.
    """

    unpack: UnpackResults
    key: Writer
    value: Writer
    positions: Callable[[Bytes], pa.Array] | None = None
    """Positions that the versions of results came from, as text."""

    @property
    def schema(self) -> pa.Schema:
        more = [] if self.positions is None else [(POSITIONS, pa.string())]
        return pa.schema([("key", pa.binary()), ("value", pa.binary()), *more])

    def __call__(self, batches: Batches) -> Batches:
        return releasing(self._records(batches))

    def _records(self, batches: Batches) -> Batches:
        of_key = len(self.key.paths)
        for results in unpacked(batches):
            fields = self.unpack.fields(results, (*self.key.paths, *self.value.paths))
            key = as_bytes(self.key(fields[:of_key]))
            value = as_bytes(self.value(fields[of_key:]))
            gone = pc.equal(column(results, "operation"), int(Operation.DELETE))
            value = pc.if_else(gone, pa.scalar(None, BYTES), value)
            more = [] if self.positions is None else [self.positions(column(results, "version"))]
            yield pa.record_batch(
                [key.cast(pa.binary()), value.cast(pa.binary()), *more], schema=self.schema
            )
