"""Readable forms of the stores' bytes, for people that look at the state of a join; the join itself never uses them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, pairs, records, tags, versions
from fkjoin.codec.arrays import Bytes, after, as_bytes, prefixed, take, unpaired, untagged, valid
from fkjoin.codec.messages import NO_TIMESTAMP
from fkjoin.codec.records import Records
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.folds.members import ColumnForm
from fkjoin.spark.keys_as_json import _text, keys_as_json
from fkjoin.stages import split_rows
from fkjoin.stages.children import Family, stored
from fkjoin.stages.emit_on_change import DIGEST_BYTES, HAS_RESULT
from fkjoin.stages.gather import result_rows
from fkjoin.stages.join_rows import structs
from fkjoin.stages.merge import shown_rows
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.owners import shown_outputs
from fkjoin.stages.pair import sides_of
from fkjoin.stages.rekey import HAS_FOREIGN_KEY
from fkjoin.stages.retention import GONE
from fkjoin.stages.scatter import scattered
from fkjoin.state import BYTES, BucketStore, Page, Reads, prefix_range

ENTRIES = (
    "store string, bucket int, kind string, key string, foreign_key string, version string, timestamp bigint, gone boolean, "
    "row string"
)
"""Columns of readable records.

``kind``: ``left`` (what rekey knows of a left row), ``right``, ``subscription`` or ``result``; of an aggregate
``contribution`` (of a row to a group, whose key is then the ``foreign_key``) or ``aggregate``; of tables put together
``merged``; of a flat map ``outputs`` (of a row, a list with key and row of each) or ``output`` (the row that is shown under a
key); of a join by primary key ``pair`` (both rows); of an enrich ``row`` (of its table, with the columns that events get); of
what is emitted periodically ``waiting``, and ``sent`` (without the row).  ``key`` (of a left row, of a row that contributes or
makes others, of a group, or of a row that is made), ``foreign_key``, ``version`` (a list of lists of numbers) and ``row`` are
JSON; ``gone``: the row is no more, and only its version is remembered."""


KINDS = {
    "rekey": {tags.ROW: "left"},
    "subscription": {tags.RIGHT: "right", tags.SUBSCRIBER: "subscription"},
    "resolve": {tags.ROW: "result"},
    "regroup": {tags.ROW: "contribution"},
    "aggregate": {tags.ROW: "aggregate"},
    "close": {tags.ROW: "aggregate"},
    "children": {tags.RIGHT: "right", tags.SUBSCRIBER: "subscription"},
    "merge": {tags.ROW: "merged"},
    "pace": {tags.WAITING: "waiting", tags.EMITTED: "sent"},
    "scatter": {tags.ROW: "left"},
    "gather": {tags.ROW: "result"},
    "spread": {tags.ROW: "outputs"},
    "owners": {tags.ROW: "output"},
    "pair": {tags.ROW: "pair"},
    "enrich": {tags.ROW: "row"},
}


@dataclass(frozen=True)
class Described:
    """Reader of a store's bytes; ``schemas``: key, foreign_key, left, right, and of a resolve store result.

    Of an aggregate: key (of a group), row_key, value (of a contribution) and result; of a flat map key, row_key and result.
    """

    name: str
    stage: str
    schemas: dict[str, pa.Schema]
    both_rows: bool
    """A result is both rows: no joiner has made something else of them."""
    versions: tuple[tuple[str, int], ...]
    """Names of a version's parts, and the number of parts of each."""
    multi_join: MultiJoin | None = None
    collected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """An aggregate's columns that are kept member by member, by name; see ``Fold.collected``."""

    def result(self, body: Bytes, keys: Bytes, store: Reads) -> list[pa.Array]:
        """The columns of the results that a store keeps under these keys: a resolve store after their hashes."""
        if self.stage == "merge":
            return RowCodec(self.schemas["result"]).decode(shown_rows(body))
        if self.stage == "owners":
            return RowCodec(self.schemas["result"]).decode(shown_outputs(body))
        if self.stage in ("aggregate", "close"):
            return self._aggregate(unpaired(body)[0], keys, store)
        if self.stage == "pair":
            body = sides_of(body).emitted
        value = body if self.stage == "pace" else after(body, np.full(len(body), DIGEST_BYTES, np.int64))
        schema = self.schemas["result"]
        if not self.both_rows:
            return RowCodec(schema).decode(value)
        return [structs(pa.schema(list(one.type)), side) for one, side in zip(schema, split_rows(value), strict=True)]

    def _aggregate(self, kept: Bytes, keys: Bytes, store: Reads) -> list[pa.Array]:
        schema = self.schemas["result"]
        if not self.collected:
            return RowCodec(schema).decode(kept)
        columns = RowCodec(schema).decode(after(kept, np.full(len(kept), DIGEST_BYTES, np.int64), valid(kept)))
        for name, facts in self.collected.items():
            at = schema.get_field_index(name)
            read = ColumnForm.of_facts(facts, schema.field(at).type).read(store, facts["place"], keys)
            columns[at] = pc.if_else(pa.array(valid(columns[at])), read, pa.scalar(None, read.type))
        return columns


@dataclass(frozen=True)
class Entries:
    """Records of a store, readable (``ENTRIES``); all of them, or those stored under ``names``."""

    of: Described
    names: tuple[bytes, ...] | None = None

    def __call__(self, store: BucketStore, bucket: int) -> Iterator[pa.RecordBatch]:
        for tag, kind in KINDS[self.of.stage].items():
            for page in [*pages_of(store, tag, self.names), _no_page()]:
                yield self._readable(page, store, kind, bucket)

    def _readable(self, page: Page, store: Reads, kind: str, bucket: int) -> pa.RecordBatch:
        of, schemas, rows = self.of, self.of.schemas, len(page.keys)
        held, bare = records.decode(page.values), untagged(page.keys)
        gone, timeless = held.flags & GONE > 0, np.full(rows, kind == "left")
        nothing, marks = pa.nulls(rows, pa.string()), held.version
        key, foreign_key, row = nothing, nothing, nothing
        if of.multi_join is not None:
            key, foreign_key, row, marks = of_multi_join(of.multi_join, kind, bare, held)
        elif kind == "subscription":
            foreign, left = combined_key.decode(bare)
            key, foreign_key = keys_as_json(schemas["key"], left), keys_as_json(schemas["foreign_key"], foreign)
            row = _rows(schemas["left"], RowCodec(schemas["left"]).decode(_none_if(held.body, gone)), ~gone)
        elif kind == "right":
            foreign_key = keys_as_json(schemas["foreign_key"], bare)
            row = _rows(schemas["right"], RowCodec(schemas["right"]).decode(_none_if(held.body, gone)), ~gone)
        elif kind == "contribution":
            group, value = unpaired(_none_if(held.body, held.flags & HAS_RESULT == 0))
            key, foreign_key = keys_as_json(schemas["row_key"], bare), keys_as_json(schemas["key"], group)
            row = _rows(schemas["value"], RowCodec(schemas["value"]).decode(value), valid(value))
        elif kind == "outputs":
            key, row = (
                keys_as_json(schemas["row_key"], bare),
                _lists(schemas, _none_if(held.body, held.flags & HAS_RESULT == 0)),
            )
        elif kind in ("aggregate", "merged", "output"):
            key, body = keys_as_json(schemas["key"], bare), _none_if(held.body, held.flags & HAS_RESULT == 0)
            row = _rows(schemas["result"], of.result(body, bare, store), valid(body))
        elif kind == "pair":
            key = keys_as_json(schemas["key"], bare)
            sides = zip(("left", "right"), sides_of(held.body).slots, strict=True)
            both = {side: structs(schemas[side], slot.row) for side, slot in sides}
            row = _rows(pa.schema([(side, column.type) for side, column in both.items()]), [*both.values()], ~gone)
        elif kind == "row":
            key = keys_as_json(schemas["key"], bare)
            row = _rows(schemas["row"], RowCodec(schemas["row"]).decode(_none_if(held.body, gone)), ~gone)
        elif kind == "left":
            key = keys_as_json(schemas["key"], bare)
            foreign_key = keys_as_json(schemas["foreign_key"], _none_if(held.body, held.flags & HAS_FOREIGN_KEY == 0))
        elif kind in ("waiting", "sent"):
            key = keys_as_json(schemas["key"], bare)
            kept = (held.flags & HAS_RESULT > 0) & (kind == "waiting")
            row = _rows(schemas["result"], of.result(_none_if(held.body, ~kept), bare, store), kept)
        else:
            key = keys_as_json(schemas["key"], bare)
            kept = (held.flags & HAS_RESULT > 0) & (pc.binary_length(held.body).fill_null(0).to_numpy() > DIGEST_BYTES)
            timeless = ~kept  # a hash is kept without a timestamp
            row = _rows(schemas["result"], of.result(_none_if(held.body, ~kept), bare, store), kept)
        version = [json.dumps([part for _, part in versions.decode(item)]) for item in marks.to_pylist()]
        ts = pa.array(held.ts, mask=(held.ts == NO_TIMESTAMP) | gone | timeless)
        columns = [pa.repeat(of.name, rows), pa.array(np.full(rows, bucket, np.int32)), pa.repeat(kind, rows)]
        columns += [key, foreign_key, pa.array(version, pa.string()), ts, pa.array(gone), row]
        return pa.record_batch(columns, names=[column.split()[0] for column in ENTRIES.split(", ")])


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table that a store keeps, typed, with their versions and timestamps; all, or those with the keys ``keys``.

    ``keys``: distinct, encoded.
    """

    of: Described
    keys: Bytes | None = None

    def __call__(self, store: Reads, bucket: int) -> Iterator[pa.RecordBatch]:
        for _, rows in self.keyed(store):
            yield rows

    def keyed(self, store: Reads) -> Iterator[tuple[Bytes, pa.RecordBatch]]:
        """Read the keys of the rows that there are, and the rows, at least one batch of them."""
        if self.of.stage == "children":
            schemas = self.of.schemas
            family = Family(*(schemas[name] for name in ("key", "left", "right", "result")))
            empty = pa.array([], BYTES), pa.array([], BYTES), pa.array([], BYTES), np.zeros(0, np.int64)
            for keys, rows, version, ts in [*stored(store, family, self._pages(store, tags.RIGHT))] or [empty]:
                yield keys, self._batch("foreign_key", keys, RowCodec(family.result).decode(rows), version, ts)
            return
        for page in [*self._pages(store, tags.ROW)] or [_no_page()]:
            held = records.decode(page.values)
            if self.of.multi_join is not None:
                keys = untagged(page.keys)
                rows, version = result_rows(keys, held, self.of.multi_join)
                live = np.flatnonzero(valid(rows))
                columns = RowCodec(self.of.multi_join.schema).decode(take(rows, live))
                yield take(keys, live), self._batch("key", take(keys, live), columns, take(version, live), held.ts[live])
                continue
            live = np.flatnonzero(held.flags & HAS_RESULT > 0)
            keys = untagged(take(page.keys, live))
            columns = self.of.result(take(held.body, live), keys, store)
            yield keys, self._batch("key", keys, columns, take(held.version, live), held.ts[live])

    def _pages(self, store: Reads, tag: bytes) -> Iterator[Page]:
        return pages_of(store, tag, None if self.keys is None else prefixed(tag, self.keys).to_pylist())

    def _batch(self, key: str, keys: Bytes, rows: list[pa.Array], version: Bytes, ts: np.ndarray) -> pa.RecordBatch:
        of = self.of
        columns: dict[str, pa.Array] = dict(zip(of.schemas[key].names, KeyCodec(of.schemas[key]).decode(keys), strict=True))
        named = zip(of.schemas["result"].names, rows, strict=True)
        columns |= {name: column for name, column in named if name not in columns}
        first = 0
        for name, parts in of.versions:
            columns[f"_{name}"] = versions.numbers(version, first, first + parts)
            first += parts
        columns["_timestamp"] = pa.array(ts, mask=ts == NO_TIMESTAMP)
        return pa.record_batch(columns)


def pages_of(store: Reads, tag: bytes, names: Sequence[bytes] | None) -> Iterator[Page]:
    """The records under ``tag``, or those of them among ``names``."""
    if names is None:
        yield from store.scan([prefix_range(tag)])
        return
    keys = as_bytes(pa.array([name for name in names if name.startswith(tag)], BYTES))
    values = store.get_many(keys)
    there = pa.array(valid(values))
    yield Page(np.zeros(0, np.int64), keys.filter(there), values.filter(there))


def _no_page() -> Page:
    return Page(np.zeros(0, np.int64), pa.array([], BYTES), pa.array([], BYTES))


def _none_if(data: Bytes, mask: np.ndarray) -> Bytes:
    return pc.if_else(pa.array(mask), pa.scalar(None, BYTES), data) if len(data) else data


Readable = tuple[pa.Array, pa.Array, pa.Array, Bytes]
"""Keys, foreign keys and rows as JSON, and versions."""


def of_multi_join(multi_join: MultiJoin, kind: str, bare: Bytes, held: Records) -> Readable:
    """Records of the stores of a multi-way join: foreign keys by the names of the right tables that they are keys of."""
    nothing = pa.nulls(len(bare), pa.string())
    if kind == "left":
        keys = scattered(held.body, len(multi_join.rights))
        named = [_named(multi_join, one) for one in keys]
        both = [{name: value for one in line if one for name, value in one.items()} for line in zip(*named, strict=True)]
        foreign = pa.array([_text(line) if line else None for line in both], pa.string())
        return keys_as_json(multi_join.key, bare), foreign, nothing, held.version
    if kind == "result":
        rows, marks = result_rows(bare, held, multi_join)
        there = valid(rows)
        shown = _rows(multi_join.schema, RowCodec(multi_join.schema).decode(rows), there)
        return keys_as_json(multi_join.key, bare), nothing, shown, marks
    by, left = combined_key.decode(bare) if kind == "subscription" else (bare, None)
    foreign = pa.array([_text(one) for one in _named(multi_join, by)], pa.string())
    if left is not None:
        return keys_as_json(multi_join.key, untagged(left)), foreign, nothing, held.version
    lines: list[str | None] = [None] * len(bare)
    for number, at in _by_right(by):
        schema = multi_join.rights[number].row
        gone = held.flags[at] & GONE > 0
        found = _rows(schema, RowCodec(schema).decode(_none_if(take(held.body, at), gone)), ~gone)
        for place, line in zip(at, found.to_pylist(), strict=True):
            lines[place] = line
    return nothing, foreign, pa.array(lines, pa.string()), held.version


def _by_right(tagged: Bytes) -> list[tuple[int, np.ndarray]]:
    """Find the right tables whose keys these are, by number, and where; nulls are of none."""
    heads = np.array([-1 if key is None else key[0] for key in tagged.to_pylist()], np.int64)
    return [(int(number), np.flatnonzero(heads == number)) for number in np.unique(heads[heads >= 0])]


def _named(multi_join: MultiJoin, tagged: Bytes) -> list[dict[str, Any] | None]:
    """Split each key into its right table's name and the key."""
    found: list[dict[str, Any] | None] = [None] * len(tagged)
    for number, at in _by_right(tagged):
        right = multi_join.rights[number]
        for place, text in zip(at, keys_as_json(right.key, untagged(take(tagged, at))).to_pylist(), strict=True):
            found[place] = {right.name: json.loads(text)}
    return found


def _rows(schema: pa.Schema, columns: list[pa.Array], there: np.ndarray) -> pa.Array:
    """Rows as JSON objects; null where not ``there``."""
    values = (column.to_pylist() for column in columns)
    lines: Iterable[tuple[Any, ...]] = zip(*values, strict=True) if columns else [()] * len(there)
    made = (_text(dict(zip(schema.names, line, strict=True))) for line in lines)
    return pa.array([line if here else None for line, here in zip(made, there, strict=True)], pa.string())


def _lists(schemas: dict[str, pa.Schema], lists: Bytes) -> pa.Array:
    """The outputs of rows as JSON lists of keys and rows; null where a row makes none."""
    made = pairs.decode(lists)
    rows = _rows(schemas["result"], RowCodec(schemas["result"]).decode(made.second), np.ones(len(made), bool))
    found: list[list[dict[str, Any]]] = [[] for _ in range(len(lists))]
    for of, key, row in zip(made.of, keys_as_json(schemas["key"], made.first).to_pylist(), rows.to_pylist(), strict=True):
        found[of].append({"key": json.loads(key), "row": json.loads(row)})
    return pa.array([_text(one) if one else None for one in found], pa.string())
