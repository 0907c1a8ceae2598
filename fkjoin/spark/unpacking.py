"""Packed messages → typed rows: functions for ``mapInArrow``.

They stand behind a query's last stage and before a joiner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bytes, masked, valid
from fkjoin.codec.messages import ENRICHED, NO_TIMESTAMP, RESULT, Operation, column, unpack
from fkjoin.codec.rows import KeyCodec, Path, RowCodec
from fkjoin.spark.packing import Batches
from fkjoin.spark.worker import settle
from fkjoin.stages.close import too_early
from fkjoin.stages.join_rows import HowByKey, matched, split_rows, structs


@dataclass(frozen=True)
class UnpackAnswers:
    """Envelopes of ``ANSWER`` → rows for a joiner.

    Their columns are ``key, version, ts, gone, matched, left, right, counter, count``.
    """

    left: pa.Schema
    right: pa.Schema
    how: HowByKey
    named: pa.Schema | None = None
    """Columns of the left key, for one column more, ``named``."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                *([] if self.named is None else [("named", pa.struct(list(self.named)))]),
                ("key", pa.binary()),
                ("version", pa.binary()),
                ("ts", pa.int64()),
                ("gone", pa.bool_()),
                ("matched", pa.bool_()),
                ("left", pa.struct(list(self.left))),
                ("right", pa.struct(list(self.right))),
                ("counter", pa.string()),
                ("count", pa.int64()),
            ]
        )

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            counted = batch.filter(pc.is_valid(batch.column("counter")))
            columns = {name: counted.column(name) for name in ("counter", "count")}
            yield self._rows(columns, counted.num_rows)
            for answers in unpacked([batch]):
                matches = matched(answers, self.how)
                left, right = column(answers, "left"), column(answers, "right")
                key = column(answers, "key")
                columns = {
                    "key": key.cast(pa.binary()),
                    "version": column(answers, "version").cast(pa.binary()),
                    "ts": column(answers, "ts"),
                    "gone": pa.array(~valid(left) & ~matches),
                    "matched": pa.array(matches),
                    "left": structs(self.left, masked(left, matches)),
                    "right": structs(self.right, masked(right, matches)),
                }
                if self.named is not None:
                    columns["named"] = _key(self.named, key)
                yield self._rows(columns, len(answers))

    def _rows(self, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
        """Rows with these columns, and nulls in all others."""
        for field in self.schema:
            if field.name not in columns:
                columns[field.name] = pa.nulls(count, field.type)
        return pa.record_batch(columns, self.schema)


@dataclass(frozen=True)
class UnpackResults:
    """Envelopes of ``RESULT`` → rows ``key, row, operation, version, numbers_…, ts``.

    Of a join without a joiner, ``row`` is a struct of ``left`` and ``right``.
    """

    key: pa.Schema
    rows: tuple[pa.Schema, ...]
    versions: tuple[tuple[str, int], ...]
    """Names of a version's parts, and the number of parts of each.

    Their numbers are columns ``numbers_NAME``.
    """
    without_origins: bool = False
    """Leave out what follows these parts in versions (see ``fkjoin.stages.merge``)."""

    @property
    def schema(self) -> pa.Schema:
        sides = zip(("left", "right"), self.rows, strict=False)
        row = [(name, pa.struct(list(side))) for name, side in sides]
        return pa.schema(
            [
                ("key", pa.struct(list(self.key))),
                ("row", pa.struct(row if len(self.rows) == 2 else list(self.rows[0]))),
                ("operation", pa.string()),
                ("version", pa.binary()),
                *((f"numbers_{name}", pa.list_(pa.int64())) for name, _ in self.versions),
                ("ts", pa.int64()),
            ]
        )

    def __call__(self, batches: Batches) -> Batches:
        names = pa.array([operation.name.lower() for operation in Operation])
        ends = [*accumulate((parts for _, parts in self.versions), initial=0)]
        bounds = [*pairwise(ends)]
        for results in unpacked(batches):
            assert results.schema.equals(RESULT)
            version, ts = column(results, "version"), column(results, "ts")
            if self.without_origins:
                version, _ = versions.split(version, ends[-1])
            yield pa.record_batch(
                [
                    _key(self.key, column(results, "key")),
                    self._row(column(results, "value")),
                    names.take(column(results, "operation")),
                    version.cast(pa.binary()),
                    *(versions.numbers(version, first, last) for first, last in bounds),
                    pc.if_else(pc.equal(ts, NO_TIMESTAMP), None, ts),
                ],
                schema=self.schema,
            )

    def fields(self, results: pa.Table, paths: Sequence[Path]) -> list[pa.Array]:
        """Decode what is at paths of the table's columns; all else is not decoded.

        Of columns of one name the key's counts.
        """
        columns = KeyCodec(self.key).decode(column(results, "key"))
        key = dict(zip(self.key.names, columns, strict=True))
        decoded: dict[Path, pa.Array] = {
            path: _at(key[path[0]], path[1:]) for path in paths if path[0] in key
        }
        value = column(results, "value")
        places: list[Path] = [()] if len(self.rows) == 1 else [("left",), ("right",)]
        sides = [value] if len(self.rows) == 1 else split_rows(value)
        for above, schema, side in zip(places, self.rows, sides, strict=True):
            depth = len(above)
            rest = [path for path in paths if path not in decoded and path[:depth] == above]
            inner = {path: path[depth:] for path in rest}
            if () in inner.values():
                whole = structs(schema, side)
                decoded |= {path: _at(whole, below) for path, below in inner.items()}
            else:
                picked = RowCodec(schema).pick(side, list(inner.values()))
                decoded |= zip(inner, picked, strict=True)
        return [decoded[path] for path in paths]

    def _row(self, value: Bytes) -> pa.StructArray:
        if len(self.rows) == 1:
            return structs(self.rows[0], value)
        left, right = split_rows(value)
        sides = [structs(self.rows[0], left), structs(self.rows[1], right)]
        fields, mask = list(self.schema.field("row").type), pa.array(~valid(value))
        return pa.StructArray.from_arrays(sides, fields=fields, mask=mask)


@dataclass(frozen=True)
class UnpackEvents:
    """Envelopes of ``ENRICHED`` → rows with the event's columns.

    Behind them are the table's columns that are ``added``.
    """

    event: pa.Schema
    row: pa.Schema
    added: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.event, *(self.row.field(name) for name in self.added)])

    def __call__(self, batches: Batches) -> Batches:
        for events in unpacked(batches):
            assert events.schema.equals(ENRICHED)
            own = RowCodec(self.event).decode(column(events, "event"))
            more = RowCodec(self.row).pick(column(events, "row"), [(name,) for name in self.added])
            yield pa.record_batch([*own, *more], schema=self.schema)


def unpacked(envelopes: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The messages of envelopes; those that carry none are passed over."""
    settle()
    for batch in envelopes:
        for payload in batch.column("payload").to_pylist():
            if payload:
                yield unpack(payload)


def _key(schema: pa.Schema, key: Bytes) -> pa.StructArray:
    return pa.StructArray.from_arrays(KeyCodec(schema).decode(key), fields=list(schema))


def _at(values: pa.Array, path: Path) -> pa.Array:
    return pc.struct_field(values, list(path)) if path else values


@dataclass(frozen=True)
class UnpackLate:
    """Envelopes of ``GROUPED`` → rows ``row_key, group, early``.

    They say which row's changes these are, and of which group.
    """

    row_key: pa.Schema
    group: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        keys = [("row_key", pa.struct(list(self.row_key))), ("group", pa.struct(list(self.group)))]
        return pa.schema([*keys, ("early", pa.bool_())])

    def __call__(self, batches: Batches) -> Batches:
        for late in unpacked(batches):
            parts = [
                _key(self.row_key, column(late, "row")),
                _key(self.group, column(late, "key")),
            ]
            yield pa.record_batch([*parts, pa.array(too_early(late))], schema=self.schema)
