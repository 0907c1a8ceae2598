"""Records of stages' stores as people see them: forms that stages share.

The work itself never uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import Bools, Bytes, Ints, after, as_bytes, masked, prefixed, valid
from fkjoin.codec.key_texts import json_text, keys_as_json
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec
from fkjoin.stages.emit_on_change import DIGEST_BYTES
from fkjoin.stages.join_rows import split_rows, structs
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.retention import GONE
from fkjoin.state import BYTES, Page, Reads, prefix_range


@dataclass(frozen=True)
class Described:
    """Description of a store's bytes.

    ``schemas``: key, foreign_key, left, right, and of a resolve store result.  Of an aggregate: key
    (of a group), row_key, value (of a contribution) and result; of a flat map key, row_key and
    result.
    """

    name: str
    stage: type[Any]
    """The kind of its stage, a ``StageSpec``."""
    schemas: dict[str, pa.Schema]
    both_rows: bool
    """A result is both rows: no joiner has made something else of them."""
    versions: tuple[tuple[str, int], ...]
    """Names of a version's parts, and the number of parts of each."""
    multi_join: MultiJoin | None = None
    collected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """An aggregate's columns that are kept member by member, by name; see ``Fold.collected``."""

    @property
    def key(self) -> pa.Schema:
        """The schema of the keys of its records."""
        return self.schemas[self.stage.key]

    def result(self, rows: Bytes) -> list[pa.Array]:
        """The columns of encoded rows of the table."""
        schema = self.schemas["result"]
        if not self.both_rows:
            return RowCodec(schema).decode(rows)
        sides = zip(schema, split_rows(rows), strict=True)
        return [structs(pa.schema(list(column.type)), side) for column, side in sides]


class Shown(NamedTuple):
    """Readable columns of some records, JSON each; None where their kind has no such column."""

    key: pa.Array | None = None
    foreign_key: pa.Array | None = None
    row: pa.Array | None = None
    version: Bytes | None = None
    """The versions, where they are others than the records'."""
    timed: Bools | bool = True
    """False for those whose timestamp is none: of a hash, or a hash itself."""


Show = Callable[[Described, Bytes, Records, Reads], Shown]
"""Function from a store's records, and their keys without tags, to what people see."""


RecordForm = tuple[str, Show]
"""The form in which the records under a tag are shown: the name of their kind, and the function."""

StoredColumns = tuple[Bytes, list[pa.Array], Bytes, Ints]
"""Rows of a table that a store keeps: encoded keys, columns, versions and timestamps."""

Asked = tuple[Bytes, tuple[bytes, ...], Bytes | None]
"""A key whose bucket has records, their names, and perhaps a left key.

There is a left key if the key is a foreign key whose records may be spread.
"""


def key_alone(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    return Shown(keys_as_json(description.key, keys))


def result(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    """Rows of the table that the stage keeps, where there are any."""
    rows, version = description.stage.kept(description, keys, held)
    columns = description.stage.decoded(description, rows, keys, store)
    row = as_json(description.schemas["result"], columns, valid(rows))
    return Shown(keys_as_json(description.key, keys), row=row, version=version)


def texts_of(values: Sequence[Any]) -> pa.Array:
    """Values as JSON; null for those that are empty."""
    empty = np.array([not value for value in values], bool)
    return pa.array([*map(json_text, values)], pa.string(), mask=empty)


def row_of(description: Described, name: str, held: Records) -> pa.Array:
    """Rows of the schema of that name as JSON objects; null where the row is gone."""
    return rows_as_json(description.schemas[name], masked(held.body, held.flags & GONE == 0))


def behind_digest(bodies: Bytes) -> Bytes:
    """The bytes behind a result's hash."""
    return after(bodies, np.full(len(bodies), DIGEST_BYTES, np.int64))


def rows_as_json(schema: pa.Schema, rows: Bytes) -> pa.Array:
    """Encoded rows as JSON objects; null for null."""
    return as_json(schema, RowCodec(schema).decode(rows), valid(rows))


def as_json(schema: pa.Schema, columns: Sequence[pa.Array], which: Bools) -> pa.Array:
    """The rows of these columns as JSON objects; null for those that are not asked for."""
    values = [column.to_pylist() for column in columns]
    lines = zip(*values, strict=True) if values else [()] * len(which)
    texts = [json_text(dict(zip(schema.names, line, strict=True))) for line in lines]
    return pa.array(texts, pa.string(), mask=~which)


def pages_of(store: Reads, tag: bytes, names: Sequence[bytes] | None) -> Iterator[Page]:
    """The records under ``tag``, or the ones among ``names``; the last page is empty."""
    if names is None:
        yield from store.scan([prefix_range(tag)])
    else:
        keys = as_bytes(pa.array([name for name in names if name.startswith(tag)], BYTES))
        values = store.get_many(keys)
        known = pa.array(valid(values))
        yield Page(np.zeros(0, np.int64), keys.filter(known), values.filter(known))
    yield Page(np.zeros(0, np.int64), pa.array([], BYTES), pa.array([], BYTES))


def pages(store: Reads, tag: bytes, keys: Bytes | None) -> Iterator[Page]:
    """The records under ``tag``, or the ones with these ``keys``; the last page is empty."""
    return pages_of(store, tag, None if keys is None else prefixed(tag, keys).to_pylist())
