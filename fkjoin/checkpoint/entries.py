"""Readable forms of the stores' bytes, for people that look at the state of a join; the join itself never uses them."""

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


_JSON = "key", "foreign_key", "version", "row"
"""Columns of readable records that are JSON."""


@dataclass(frozen=True)
class Entries:
    """Records of a store, readable (``ENTRIES``); all of them, or those stored under ``names``."""

    of: Described
    names: tuple[bytes, ...] | None = None

    def __call__(self, store: BucketStore, bucket: int) -> Iterator[pa.RecordBatch]:
        for tag, form in self.of.stage.forms.items():
            for page in pages_of(store, tag, self.names):
                yield self._readable(page, store, form, bucket)

    def _readable(self, page: Page, store: Reads, form: RecordForm, bucket: int) -> pa.RecordBatch:
        (kind, show), rows, held = form, len(page.keys), records.decode(page.values)
        shown = show(self.of, untagged(page.keys), held, store)
        marks = held.version if shown.version is None else shown.version
        version = [
            json.dumps([part for _, part in versions.decode(mark)]) for mark in marks.to_pylist()
        ]
        gone = held.flags & GONE > 0
        timed = (held.ts != NO_TIMESTAMP) & ~gone & shown.timed
        nothing = pa.nulls(rows, pa.string())
        columns = {
            "store": pa.repeat(self.of.name, rows),
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
        of = self.of
        for keys, rows, version, ts in of.stage.rows(of, store, self.keys):
            columns = dict(zip(of.key.names, KeyCodec(of.key).decode(keys), strict=True))
            for name, column in zip(of.schemas["result"].names, rows, strict=True):
                columns.setdefault(name, column)
            first = 0
            for name, parts in of.versions:
                columns[f"_{name}"] = versions.numbers(version, first, first + parts)
                first += parts
            columns["_timestamp"] = pa.array(ts, mask=ts == NO_TIMESTAMP)
            yield keys, pa.record_batch(columns)


def look_up(stores: Sequence[SavedStore], operator: str, key: str) -> list[dict[str, Any]]:
    """Look up what the ``stores`` of ``operator`` (empty: of the only one) know of a left row, a dict per record.

    For an aggregate: what a row with that key contributes, and the row of a group with that key.  For a flat map: what a row
    with that key makes, and the row that is shown under that key.

    ``key``: as typed, see ``parse_key``.  Raises ``FkJoinError``.
    """
    of_stages = _stores_of(stores, operator)
    found: list[dict[str, Any]] = []
    problem = None
    for store in (of_stages[stage] for stage in STAGES if stage in of_stages):
        described = store.described()
        try:
            asked = store.kind.asked(described, key, found)
        except (
            ValueError
        ) as error:  # a row's key may be no key of a group; the last store that is asked decides
            problem = error
            continue
        for wanted in asked:
            problem = None
            found += _records(store, *wanted)
    if problem is not None and not found:
        raise FkJoinError(str(problem)) from problem
    return found


def remarks(stores: Sequence[SavedStore], operator: str, found: list[dict[str, Any]]) -> list[str]:
    """Say what a reader may miss in the records ``found`` of a join, and where it is kept."""
    asked = _stores_of(stores, operator).values()
    kinds = [store.kind for store in asked]
    joins = any(tags.RIGHT in kind.forms for kind in kinds)
    if found and joins and not any(kind.keeps for kind in kinds):
        others = {store.operator_name for store in stores} - {
            store.operator_name for store in asked
        }
        ask = " or ".join(f"--operator {name}" for name in sorted(others))
        return [
            f"The join keeps no results, since another operator of the query reads them: ask with {ask}."
        ]
    if any(
        entry["kind"] == "result" and entry["row"] is None and not entry["gone"] for entry in found
    ):
        return [
            "A result has its row here if the join is materialized. Else the store keeps a hash of it."
        ]
    return []


def _stores_of(stores: Sequence[SavedStore], operator: str) -> dict[str, SavedStore]:
    """The stores of an operator, by stage; ``FkJoinError`` where the checkpoint has none of that name."""
    operators = list(dict.fromkeys(store.operator_name for store in stores))
    if operator not in operators and (operator or len(operators) > 1):
        has = f"no operator {operator!r}" if operator else "several operators"
        raise FkJoinError(
            f"checkpoint {stores[0].checkpoint} has {has}; add --operator with one of {', '.join(operators)}"
        )
    return {
        store.stage: store for store in stores if store.operator_name == (operator or operators[0])
    }


def _records(
    store: SavedStore, of: Bytes, names: tuple[bytes, ...], subscriber: Bytes | None
) -> list[dict[str, Any]]:
    """The records stored under ``names``, all in the bucket that the one key of ``of`` belongs to.

    ``subscriber``: the left key, if ``of`` is a foreign key, whose records may be spread.
    """
    if subscriber is None:
        (number,) = buckets_of(of, store.buckets)
    else:
        (number,) = places_of(of, subscriber, store.buckets, store.spread)
    readable = []
    for batch in store.read(bucket_ids(store.buckets)[number], Entries(store.described(), names)):
        for row in batch.to_pylist():
            readable.append(row | {name: json.loads(row[name]) for name in _JSON if row[name]})
    return readable
