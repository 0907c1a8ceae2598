"""The stages of joins, and of a right table's map of its left rows.

A multi-way join has several right tables in one store: a byte before each foreign key tells them
apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, tags, versions
from fkjoin.codec.arrays import BYTES, Bytes, Ints, first_bytes, masked, take, untagged
from fkjoin.codec.key_texts import keys_as_json, parse_key
from fkjoin.codec.messages import (
    ANSWER,
    CHANGE,
    JOINED,
    NUMBERED,
    PART,
    SUBSCRIPTION,
    SUMS,
    is_answer,
    pack,
)
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec
from fkjoin.spark.buckets import Payload, bucket_ids, places_of
from fkjoin.spark.specs import shown
from fkjoin.spark.specs.shown import Asked, Described, Shown, StoredColumns
from fkjoin.spark.specs.spec import (
    PART_BYTES,
    ByRow,
    Messages,
    RowsOrAnswers,
    StageSpec,
    StateSpec,
)
from fkjoin.stages.answer_rows import Joined, usable
from fkjoin.stages.children import Family, children, stored
from fkjoin.stages.complete import Complete
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import DIGEST_BYTES, HAS_RESULT
from fkjoin.stages.gather import gather, result_rows
from fkjoin.stages.invariants import (
    Sum,
    check_subscriptions,
    expected_subscriptions,
    live_subscriptions,
    sums_message,
)
from fkjoin.stages.join_rows import HowByKey, join_rows, structs
from fkjoin.stages.multi_join import MultiJoin, Right
from fkjoin.stages.pair import answers_by_key, pair, sides_of
from fkjoin.stages.rekey import HAS_FOREIGN_KEY, rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.retention import GONE
from fkjoin.stages.scatter import answered, scatter, scattered, tagged
from fkjoin.stages.slots import Slot
from fkjoin.stages.subscription import subscription
from fkjoin.state import Reads, Store

_T = TypeVar("_T")


def _foreign_key(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    named = masked(held.body, held.flags & HAS_FOREIGN_KEY > 0)
    foreign = keys_as_json(description.schemas["foreign_key"], named)
    return Shown(keys_as_json(description.key, keys), foreign, timed=False)


@dataclass(frozen=True, kw_only=True)
class RekeySpec(RowsOrAnswers):
    """rekey: left changes become subscriptions."""

    stage = "rekey"
    row_kinds = (CHANGE,)
    forms: ClassVar = {tags.ROW: ("left", _foreign_key)}
    subscribed_in = ("subscription", "children")
    subscriptions = staticmethod(expected_subscriptions)
    tombstones = CHANGE
    fused: bool = True
    """The next stage is in the same query, and can check what it has been told."""
    right_parts: int = 1

    @property
    def part_bytes(self) -> int | None:
        return None if self.from_answers is None else PART_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from rekey(
            self._rows(messages, count),
            store,
            count,
            right_parts=self.right_parts,
            every=self.every,
            in_order=self.in_order,
            **self._times(messages),
        )

    def validated(self, messages: Messages, store: Store, bucket: int) -> Iterator[Payload]:
        return sums(expected_subscriptions(store), bucket, self.state) if self.fused else iter(())


def _right(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    join = description.multi_join
    if join is None:
        row = shown.row_of(description, "right", held)
        return Shown(foreign_key=keys_as_json(description.key, keys), row=row)
    bodies = masked(held.body, held.flags & GONE == 0)

    def texts(right: Right, some: Ints) -> list[Any]:
        return shown.rows_as_json(right.row, take(bodies, some)).to_pylist()

    rows = pa.array(_by_right(join, keys, texts), pa.string())
    return Shown(foreign_key=shown.texts_of(_named(join, keys)), row=rows)


def _subscriber(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    foreign, left = combined_key.decode(keys)
    if description.multi_join is not None:
        names = shown.texts_of(_named(description.multi_join, foreign))
        return Shown(keys_as_json(description.multi_join.key, untagged(left)), names)
    key = keys_as_json(description.schemas["key"], left)
    row = shown.row_of(description, "left", held)
    return Shown(key, keys_as_json(description.key, foreign), row)


class ByForeignKey(StageSpec):
    """The common part of stages that join subscriptions with right changes.

    Their records are by foreign key.
    """

    takes = SUBSCRIPTION, CHANGE, SUMS
    forms: ClassVar = {
        tags.RIGHT: ("right", _right),
        tags.SUBSCRIBER: ("subscription", _subscriber),
    }
    key = "foreign_key"
    tombstones = CHANGE
    in_order: bool = True
    """rekey is in the same query."""
    rights_in_order: bool | tuple[bool, ...]
    """An operator of the query makes the right table, and rekey is there, too."""

    @property
    def highwater_tags(self) -> bytes:
        rights = tags.RIGHT * (not np.any(self.rights_in_order))
        return tags.ROW + rights + tags.SUBSCRIBER * (not self.in_order)

    @staticmethod
    def subscriptions(store: Store, rights: int) -> Iterator[Bytes]:
        return live_subscriptions(store)

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        # What rekey and scatter send left keys is on its way to this bucket.
        own = [payload for payload in payloads if not is_answer(payload)]
        return own, [payload for payload in payloads if is_answer(payload)]

    def validated(self, messages: Messages, store: Store, bucket: int) -> Iterator[Payload]:
        if self.in_order:
            name = f"{self.name}, bucket {bucket}"
            check_subscriptions(store, messages.take(SUMS), self.state.buckets, name)
        return iter(())

    @classmethod
    def asked(
        cls, description: Described, key: str, known: Sequence[Mapping[str, Any]]
    ) -> list[Asked]:
        """The records of a left row under its known foreign key, and of the right row."""
        foreign = known[0]["foreign_key"] if known else None
        if foreign is None:
            return []
        if description.multi_join is not None:
            return [*_asked_of(description.multi_join, key, foreign)]
        by = parse_key(description.key, json.dumps(foreign))
        wanted = parse_key(description.schemas["key"], key)
        return [(by, _names(by, wanted), wanted)]


def _names(by: Bytes, left: Bytes) -> tuple[bytes, ...]:
    """The names of a left row's and of a right row's record, of one foreign and one left key."""
    return tags.SUBSCRIBER + combined_key.encode(by, left)[0].as_py(), tags.RIGHT + by[0].as_py()


@dataclass(frozen=True, kw_only=True)
class SubscriptionSpec(ByForeignKey):
    """subscription: subscriptions and right changes become answers."""

    stage = "subscription"
    in_order: bool = False
    rights_in_order: bool = False
    shared_log: bool = False
    right_parts: int = 1
    every: bool = False

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from subscription(
            messages.take(SUBSCRIPTION),
            messages.take(CHANGE),
            store,
            count,
            shared_log=self.shared_log,
            in_order=self.in_order,
            rights_in_order=self.rights_in_order,
            right_parts=self.right_parts,
            every=self.every,
            **self._times(messages),
        )


def _result_or_hash(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    hashes = pc.binary_length(held.body).fill_null(0).to_numpy() <= DIGEST_BYTES
    known = held._replace(flags=np.where(hashes, 0, held.flags))
    # A hash is kept without a timestamp.
    timed = known.flags & HAS_RESULT > 0
    return shown.result(description, keys, known, store)._replace(timed=timed)


@dataclass(frozen=True, kw_only=True)
class ResolveSpec(RowsOrAnswers):
    """resolve: answers become changes of the joined table."""

    stage = "resolve"
    row_kinds = ANSWER, JOINED
    part_bytes = PART_BYTES
    forms: ClassVar = {tags.ROW: ("result", _result_or_hash)}
    keeps = True
    encoded = staticmethod(shown.behind_digest)
    how: HowByKey = "inner"
    materialized: bool = False
    """Keep the results."""
    complete: Complete | None = None
    """Function that completes rows that lack values."""
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield resolve(
            self._joined(messages, count),
            store,
            count,
            materialized=self.materialized,
            every=self.every,
            as_read=self.as_read,
            in_order=self.in_order,
            complete=self.complete,
            **self._times(messages),
        )

    def _joined(self, messages: Messages, count: Counters) -> pa.Table:
        if self.from_answers is not None:
            return self._rows(messages, count)
        tables = [join_rows(messages.take(ANSWER), self.how), messages.take(JOINED)]
        # Columns in one piece, where there is one.
        return pa.concat_tables([table for table in tables if len(table)] or tables)


def _pair(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    slots = zip(("left", "right"), sides_of(held.body).slots, strict=True)
    sides = {side: structs(description.schemas[side], slot.row) for side, slot in slots}
    schema = pa.schema([(side, rows.type) for side, rows in sides.items()])
    row = shown.as_json(schema, [*sides.values()], held.flags & GONE == 0)
    return Shown(keys_as_json(description.key, keys), row=row)


@dataclass(frozen=True, kw_only=True)
class PairSpec(StageSpec):
    """pair: the rows of two tables by one key become changes of their join.

    Or they become the answers that Spark makes rows of.
    """

    stage = "pair"
    part_bytes = PART_BYTES
    takes = (NUMBERED,)
    forms: ClassVar = {tags.ROW: ("pair", _pair)}
    keeps = True
    how: HowByKey
    parts: tuple[int, int]
    """The numbers of parts of both tables' versions."""
    in_order: tuple[bool, bool]
    """True for each table that an operator of the query makes."""
    materialized: bool = False
    every: bool = False
    makes: Joined | None = None
    """Function that makes the joined rows; None where they are both rows."""
    answers: bool = False
    """Send answers: resolve is in the same query."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        rows, times = messages.take(NUMBERED), self._times(messages)
        if self.answers:
            yield answers_by_key(
                rows, store, count, parts=self.parts, in_order=self.in_order, **times
            )
        else:
            yield pair(
                rows,
                store,
                count,
                partial(self._made, count),
                parts=self.parts,
                in_order=self.in_order,
                materialized=self.materialized,
                every=self.every,
                **times,
            )

    @staticmethod
    def slots(bodies: Bytes) -> Sequence[Slot]:
        return sides_of(bodies).slots

    @staticmethod
    def encoded(bodies: Bytes) -> Bytes:
        return shown.behind_digest(sides_of(bodies).emitted)

    def _made(self, count: Counters, answers: pa.Table) -> pa.Table:
        if self.makes is None:
            return join_rows(answers, self.how)
        return usable(self.makes, answers, count, self.state.operator)


@dataclass(frozen=True, kw_only=True)
class ChildrenSpec(ByForeignKey):
    """children: subscriptions and right changes become changes of the right rows' maps.

    rekey is always in the same query.
    """

    stage = "children"
    keeps = True
    family: Family
    rights_in_order: bool = False
    every: bool = False

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from children(
            messages.take(SUBSCRIPTION),
            messages.take(CHANGE),
            store,
            count,
            self.family,
            source=versions.identity(f"children {self.state.operator}"),
            every=self.every,
            rights_in_order=self.rights_in_order,
            **self._times(messages),
        )

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        own, _ = super().sorted_out(payloads)  # left rows without a foreign key are in no map
        return own, []

    @classmethod
    def rows(
        cls, description: Described, store: Reads, keys: Bytes | None
    ) -> Iterator[StoredColumns]:
        family = Family(*(description.schemas[name] for name in ("key", "left", "right", "result")))
        nothing = pa.array([], BYTES)
        empty = nothing, nothing, nothing, np.zeros(0, np.int64)
        right = shown.pages(store, tags.RIGHT, keys)
        for foreign, rows, version, ts in [*stored(store, family, right)] or [empty]:
            yield foreign, RowCodec(family.result).decode(rows), version, ts


def _foreign_keys(description: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    """Show foreign keys by the names of the right tables that they are keys of."""
    assert description.multi_join is not None
    names: list[dict[str, Any]] = [{} for _ in range(len(keys))]
    for foreign in scattered(held.body, len(description.multi_join.rights)):
        for row, name in zip(names, _named(description.multi_join, foreign), strict=True):
            row.update(name or {})
    return Shown(keys_as_json(description.key, keys), shown.texts_of(names), timed=False)


@dataclass(frozen=True, kw_only=True)
class ScatterSpec(ByRow):
    """scatter: left changes become subscriptions, and left rows for gather."""

    stage = "scatter"
    takes = (CHANGE,)
    forms: ClassVar = {tags.ROW: ("left", _foreign_keys)}
    subscribed_in = ("subscription",)
    subscriptions = staticmethod(expected_subscriptions)
    rights_together = True
    tombstones = CHANGE
    rights: int
    """The number of right tables."""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        changes = messages.take(CHANGE)
        yield from scatter(
            changes, store, count, self.rights, in_order=self.in_order, **self._times(messages)
        )

    def validated(self, messages: Messages, store: Store, bucket: int) -> Iterator[Payload]:
        return sums(expected_subscriptions(store, self.rights), bucket, self.state)


@dataclass(frozen=True, kw_only=True)
class MultiSubscriptionSpec(ByForeignKey):
    """subscription, with all right tables in one store.

    Foreign keys begin with a byte that tells them apart.
    """

    stage = "subscription"
    right_parts: tuple[int, ...]
    rights_in_order: tuple[bool, ...]

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        sides, times = (messages.take(SUBSCRIPTION), messages.take(CHANGE)), self._times(messages)
        yield from answered(
            *sides, store, count, self.right_parts, rights_in_order=self.rights_in_order, **times
        )

    def hot_key(self, foreign_key: bytes) -> tuple[str, bytes]:
        return f"foreign_key{foreign_key[0]}", foreign_key[1:]


@dataclass(frozen=True, kw_only=True)
class GatherSpec(StageSpec):
    """gather: left rows and answers become changes of the joined table."""

    stage = "gather"
    highwater_tags = b""
    part_bytes = 16 << 20
    """It has the rows of all its right tables in memory at once."""
    takes = (PART,)
    forms: ClassVar = {tags.ROW: ("result", shown.result)}
    keeps = True
    multi_join: MultiJoin

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield gather(
            messages.take(PART),
            store,
            count,
            self.multi_join,
            in_order=True,
            **self._times(messages),
        )

    @classmethod
    def kept(cls, description: Described, keys: Bytes, held: Records) -> tuple[Bytes, Bytes]:
        assert description.multi_join is not None
        return result_rows(keys, held, description.multi_join)


def sums(expected: Iterable[Bytes], bucket: int, state: StateSpec) -> Iterator[Payload]:
    """Sum up, for each bucket of the next stage, the subscriptions that are ``expected`` there."""
    totals = [Sum()] * state.buckets
    for combined in expected:
        numbers = places_of(*combined_key.decode(combined), state.buckets, state.spread)
        for number, total in enumerate(totals):
            totals[number] = total.plus(combined.filter(pa.array(numbers == number)))
    for bucket_id, total in zip(bucket_ids(state.buckets), totals, strict=True):
        yield bucket_id, pack(sums_message(bucket, total))


def _named(join: MultiJoin, keys: Bytes) -> list[dict[str, Any] | None]:
    """Split each key into its right table's name and the key."""

    def names(right: Right, some: Ints) -> list[dict[str, Any]]:
        texts = keys_as_json(right.key, untagged(take(keys, some))).to_pylist()
        return [{right.name: json.loads(text)} for text in texts]

    return _by_right(join, keys, names)


def _by_right(
    join: MultiJoin, keys: Bytes, read: Callable[[Right, Ints], list[_T]]
) -> list[_T | None]:
    """Collect what ``read`` makes of the keys of each right table; None for null.

    It gets the keys by their places.
    """
    values: list[_T | None] = [None] * len(keys)
    heads = first_bytes(pc.fill_null(keys, b"\xff"))
    for number, right in enumerate(join.rights):
        some = np.flatnonzero(heads == number)
        for index, value in zip(some, read(right, some), strict=True):
            values[index] = value
    return values


def _asked_of(join: MultiJoin, key: str, foreign: Mapping[str, Any]) -> Iterator[Asked]:
    """The records of a left row and of the right rows that it names."""
    wanted = parse_key(join.key, key)
    for number, right in enumerate(join.rights):
        if right.name in foreign:
            by = tagged(number, parse_key(right.key, json.dumps(foreign[right.name])))
            yield by, _names(by, tagged(number, wanted)), None
