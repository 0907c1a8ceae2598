"""The stages of a multi-way join: a left table with several right tables, by foreign keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags
from fkjoin.codec.arrays import Bytes, take, untagged, valid
from fkjoin.codec.messages import CHANGE, PART, SUBSCRIPTION
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec
from fkjoin.spark.buckets import Payload
from fkjoin.spark.keys_as_json import _text, keys_as_json
from fkjoin.spark.specs import rights
from fkjoin.spark.specs.joins import ByForeignKey, sums
from fkjoin.spark.specs.shown import Described, Form, Rows, Shown, pages, rows_as_json
from fkjoin.spark.specs.spec import ByRow, Messages, StageSpec
from fkjoin.stages import Counters, answered, gather, scatter
from fkjoin.stages.gather import result_rows
from fkjoin.stages.invariants import expected_subscriptions
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.scatter import scattered
from fkjoin.state import Reads, Store

GATHERED_BYTES = 16 << 20
"""Bytes of packed parts of rows, for which gather has the rows of all its right tables in memory at once."""


def _foreign_keys(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    """Show foreign keys by the names of the right tables that they are keys of."""
    assert of.multi_join is not None
    names: list[dict[str, Any]] = [{} for _ in range(len(keys))]
    for foreign in scattered(held.body, len(of.multi_join.rights)):
        for row, name in zip(names, rights.named(of.multi_join, foreign), strict=True):
            row.update(name)
    texts = [_text(row) if row else None for row in names]
    timeless = np.ones(len(keys), bool)  # a hash stands in the place of a timestamp
    return Shown(keys_as_json(of.key, keys), pa.array(texts, pa.string()), timeless=timeless)


@dataclass(frozen=True, kw_only=True)
class ScatterSpec(ByRow, StageSpec):
    """scatter: left changes become subscriptions, and left rows for gather."""

    stage = "scatter"
    forms: ClassVar = {tags.ROW: Form("left", _foreign_keys)}
    tombstones = CHANGE
    rights: int
    """The number of right tables."""
    in_order: bool = False

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (CHANGE,)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        changes = messages.take(CHANGE)
        yield from scatter(changes, store, count, self.rights, in_order=self.in_order, **self._times(messages))

    def validated(self, messages: Messages, store: Store, bucket: int, name: str) -> Iterator[Payload]:
        return sums(expected_subscriptions(store, self.rights), bucket, self.state)


@dataclass(frozen=True, kw_only=True)
class MultiSubscriptionSpec(ByForeignKey):
    """subscription, with all right tables in one store: foreign keys begin with a byte that tells them apart."""

    stage = "subscription"
    right_parts: tuple[int, ...]
    rights_in_order: tuple[bool, ...]

    @property
    def highwater_tags(self) -> bytes:
        return tags.ROW if any(self.rights_in_order) else tags.ROW + tags.RIGHT

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        sides, times = (messages.take(SUBSCRIPTION), messages.take(CHANGE)), self._times(messages)
        yield from answered(*sides, store, count, self.right_parts, rights_in_order=self.rights_in_order, **times)

    def hot_key(self, foreign_key: bytes) -> tuple[str, bytes]:
        return f"foreign_key{foreign_key[0]}", foreign_key[1:]


def _gathered(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    assert of.multi_join is not None
    rows, version = result_rows(keys, held, of.multi_join)
    row = rows_as_json(of.multi_join.schema, rows)
    return Shown(keys_as_json(of.key, keys), row=row, version=version)


@dataclass(frozen=True, kw_only=True)
class GatherSpec(StageSpec):
    """gather: left rows and answers become changes of the joined table."""

    stage = "gather"
    forms: ClassVar = {tags.ROW: Form("result", _gathered)}
    keeps = True
    multi_join: MultiJoin

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (PART,)

    @property
    def highwater_tags(self) -> bytes:
        return b""

    @property
    def part_bytes(self) -> int | None:
        return GATHERED_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield gather(messages.take(PART), store, count, self.multi_join, in_order=True, **self._times(messages))

    @classmethod
    def rows(cls, of: Described, store: Reads, keys: Bytes | None) -> Iterator[Rows]:
        assert of.multi_join is not None
        codec = RowCodec(of.multi_join.schema)
        for page in pages(store, tags.ROW, keys):
            held, bare = records.decode(page.values), untagged(page.keys)
            rows, version = result_rows(bare, held, of.multi_join)
            live = np.flatnonzero(valid(rows))
            yield Rows(take(bare, live), codec.decode(take(rows, live)), take(version, live), held.ts[live])
