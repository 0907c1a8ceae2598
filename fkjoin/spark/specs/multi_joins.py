"""The stages of a multi-way join: a left table with several right tables, by foreign keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from fkjoin.codec import tags
from fkjoin.codec.messages import CHANGE, PART, SUBSCRIPTION
from fkjoin.spark.buckets import Payload
from fkjoin.spark.specs.joins import ByForeignKey, sums
from fkjoin.spark.specs.spec import ByRow, Messages, StageSpec
from fkjoin.stages import Counters, answered, gather, scatter
from fkjoin.stages.invariants import expected_subscriptions
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.state import Store

GATHERED_BYTES = 16 << 20
"""Bytes of packed parts of rows, for which gather has the rows of all its right tables in memory at once."""


@dataclass(frozen=True, kw_only=True)
class ScatterSpec(ByRow, StageSpec):
    """scatter: left changes become subscriptions, and left rows for gather."""

    stage = "scatter"
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
class MultiSubscriptionSpec(ByForeignKey, StageSpec):
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


@dataclass(frozen=True, kw_only=True)
class GatherSpec(StageSpec):
    """gather: left rows and answers become changes of the joined table."""

    stage = "gather"
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
