"""Readable forms of the stores' bytes, for people that look at a state; no join uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.checkpoint.stores import SavedStore
from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import Bytes, untagged
from fkjoin.codec.messages import NO_TIMESTAMP
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import FkJoinError
from fkjoin.spark.buckets import bucket_ids, buckets_of, places_of
from fkjoin.spark.specs import STAGES
from fkjoin.spark.specs.shown import Described, RecordForm, pages_of
from fkjoin.stages.retention import GONE
from fkjoin.state import BucketStore, Page, Reads

ENTRIES = (
    "store string, bucket int, kind string, key string, foreign_key string, version string, "
    "timestamp bigint, gone boolean, row string"
)
"""Columns of readable records.

``kind`` is one of these:

- of a join by foreign key: ``left`` (what rekey knows of a left row), ``right``, ``subscription``
  or ``result``;
- of an aggregate: ``contribution`` (of a row to a group, whose key is then the ``foreign_key``) or
  ``aggregate``;
- of tables put together: ``merged``;
- of a flat map: ``outputs`` (of a row, a list with key and row of each) or ``output`` (the row
  shown under a key);
- of a join by primary key: ``pair`` (both rows);
- of an enrich: ``row`` (of its table, with the columns that events get);
- of what is emitted periodically: ``waiting``, and ``sent`` (without the row).

``key`` is the key of a left row, of a row that contributes or makes others, of a group, or of a row
that is made.  ``key``, ``foreign_key``, ``version`` (a list of lists of numbers) and ``row`` are
JSON.  ``gone``: the row is no more, and only its version is remembered.
"""


_JSON = "key", "foreign_key", "version", "row"
"""Columns of readable records that are JSON."""


@dataclass(frozen=True)
class Entries:
    """Records of a store, readable (``ENTRIES``); all of them, or those stored under ``names``."""

    described: Described
    names: tuple[bytes, ...] | None = None

    def __call__(self, store: BucketStore, bucket: int) -> Iterator[pa.RecordBatch]:
        for tag, form in self.described.stage.forms.items():
            for page in pages_of(store, tag, self.names):
                yield self._readable(page, store, form, bucket)

    def _readable(self, page: Page, store: Reads, form: RecordForm, bucket: int) -> pa.RecordBatch:
        (kind, show), rows, held = form, len(page.keys), records.decode(page.values)
        shown = show(self.described, untagged(page.keys), held, store)
        marks = held.version if shown.version is None else shown.version
        version = [_readable_version(mark) for mark in marks.to_pylist()]
        gone = held.flags & GONE > 0
        timed = (held.ts != NO_TIMESTAMP) & ~gone & shown.timed
        nothing = pa.nulls(rows, pa.string())
        columns = {
            "store": pa.repeat(self.described.name, rows),
            "bucket": pa.array(np.full(rows, bucket, np.int32)),
            "kind": pa.repeat(kind, rows),
            "key": nothing if shown.key is None else shown.key,
            "foreign_key": nothing if shown.foreign_key is None else shown.foreign_key,
            "version": pa.array(version, pa.string()),
            "timestamp": pa.array(held.ts, mask=~timed),
            "gone": pa.array(gone),
            "row": nothing if shown.row is None else shown.row,
        }
        return pa.record_batch(columns)


def _readable_version(mark: bytes) -> str:
    """Return the numbers of a version's parts as JSON."""
    return json.dumps([numbers for _, numbers in versions.decode(mark)])


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table that a store keeps, typed, with their versions and timestamps.

    All, or those with the keys ``keys``, which are distinct and encoded.
    """

    described: Described
    keys: Bytes | None = None

    def __call__(self, store: Reads, bucket: int) -> Iterator[pa.RecordBatch]:
        for _, rows in self.keyed(store):
            yield rows

    def keyed(self, store: Reads) -> Iterator[tuple[Bytes, pa.RecordBatch]]:
        """Read the keys of the rows that there are, and the rows, at least one batch of them."""
        described, key = self.described, self.described.key
        for keys, rows, version, ts in described.stage.rows(described, store, self.keys):
            columns = dict(zip(key.names, KeyCodec(key).decode(keys), strict=True))
            for name, column in zip(described.schemas["result"].names, rows, strict=True):
                columns.setdefault(name, column)
            first = 0
            for name, parts in described.versions:
                columns[f"_{name}"] = versions.numbers(version, first, first + parts)
                first += parts
            columns["_timestamp"] = pa.array(ts, mask=ts == NO_TIMESTAMP)
            yield keys, pa.record_batch(columns)


def look_up(stores: Sequence[SavedStore], operator: str, key: str) -> list[dict[str, Any]]:
    """Look up what the ``stores`` of ``operator`` know of a left row, a dict per record.

    An empty ``operator``: the only one.  For an aggregate: what a row with that key contributes,
    and the row of a group with that key.  For a flat map: what a row with that key makes, and the
    row that is shown under that key.

    ``key``: as typed, see ``parse_key``.  Raises ``FkJoinError``.
    """
    of_stages = _stores_of(stores, operator)
    entries: list[dict[str, Any]] = []
    problem = None
    for store in (of_stages[stage] for stage in STAGES if stage in of_stages):
        described = store.described()
        try:
            asked = store.kind.asked(described, key, entries)
        except ValueError as error:
            # A row's key may be no key of a group; the last store that is asked decides.
            problem = error
            continue
        for wanted in asked:
            problem = None
            entries += _records(store, *wanted)
    if problem is not None and not entries:
        raise FkJoinError(str(problem)) from problem
    return entries


def remarks(
    stores: Sequence[SavedStore], operator: str, entries: list[dict[str, Any]]
) -> list[str]:
    """Say what a reader may miss in the ``entries`` of a join, and where it is kept."""
    asked = _stores_of(stores, operator).values()
    kinds = [store.kind for store in asked]
    joins = any(tags.RIGHT in kind.forms for kind in kinds)
    if entries and joins and not any(kind.keeps for kind in kinds):
        own = {store.operator_name for store in asked}
        others = {store.operator_name for store in stores} - own
        ask = " or ".join(f"--operator {name}" for name in sorted(others))
        return [
            "The join keeps no results, since another operator of the query reads them: "
            f"ask with {ask}."
        ]
    results = (entry for entry in entries if entry["kind"] == "result")
    if any(entry["row"] is None and not entry["gone"] for entry in results):
        return [
            "A result has its row here if the join is materialized. "
            "Else the store keeps a hash of it."
        ]
    return []


def _stores_of(stores: Sequence[SavedStore], operator: str) -> dict[str, SavedStore]:
    """The stores of an operator, by stage; ``FkJoinError`` where there are none of that name."""
    operators = list(dict.fromkeys(store.operator_name for store in stores))
    if operator not in operators and (operator or len(operators) > 1):
        has = f"no operator {operator!r}" if operator else "several operators"
        raise FkJoinError(
            f"checkpoint {stores[0].checkpoint} has {has}; add --operator with one of "
            f"{', '.join(operators)}"
        )
    name = operator or next(iter(operators), "")
    return {store.stage: store for store in stores if store.operator_name == name}


def _records(
    store: SavedStore, key: Bytes, names: tuple[bytes, ...], subscriber: Bytes | None
) -> list[dict[str, Any]]:
    """The records stored under ``names``, all in the bucket that ``key``, an array of one, has.

    ``subscriber``: the left key, if ``key`` is a foreign key, whose records may be spread.
    """
    if subscriber is None:
        (number,) = buckets_of(key, store.buckets)
    else:
        (number,) = places_of(key, subscriber, store.buckets, store.spread)
    readable = []
    for batch in store.read(bucket_ids(store.buckets)[number], Entries(store.described(), names)):
        for row in batch.to_pylist():
            readable.append(row | {name: json.loads(row[name]) for name in _JSON if row[name]})
    return readable
