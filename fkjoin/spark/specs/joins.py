"""The stages of joins, and of a right table's map of its left rows.

A multi-way join has several right tables in one store: a byte before each foreign key tells them apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import combined_key, records, tags, versions
from fkjoin.codec.arrays import BYTES, Bytes, Ints, masked, take, untagged, valid
from fkjoin.codec.key_texts import parse_key
from fkjoin.codec.messages import ANSWER, CHANGE, JOINED, NUMBERED, PART, SUBSCRIPTION, SUMS, is_answer, pack
from fkjoin.codec.records import Records
from fkjoin.codec.rows import RowCodec
from fkjoin.spark.buckets import Payload, bucket_ids, places_of
from fkjoin.spark.keys_as_json import _text, keys_as_json
from fkjoin.spark.specs import shown
from fkjoin.spark.specs.shown import Asked, Described, Form, Rows, Shown, as_json, pages, rows_as_json
from fkjoin.spark.specs.spec import PART_BYTES, ByRow, Messages, StageSpec, StateSpec
from fkjoin.stages import (
    Counters,
    HowByKey,
    answered,
    answers_by_key,
    children,
    gather,
    join_rows,
    pair,
    rekey,
    resolve,
    scatter,
    subscription,
)
from fkjoin.stages.answer_rows import CarryRows, Joined, usable
from fkjoin.stages.children import Family, stored
from fkjoin.stages.complete import Complete
from fkjoin.stages.contribute import Carry
from fkjoin.stages.emit_on_change import DIGEST_BYTES, HAS_RESULT
from fkjoin.stages.gather import result_rows
from fkjoin.stages.invariants import Sum, check_subscriptions, expected_subscriptions, sums_message
from fkjoin.stages.join_rows import structs
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.pair import sides_of
from fkjoin.stages.rekey import HAS_FOREIGN_KEY
from fkjoin.stages.retention import GONE
from fkjoin.stages.scatter import scattered, tagged
from fkjoin.stages.start_over import StartOver, left_behind
from fkjoin.state import Reads, Store


def _foreign_key(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    named = masked(held.body, held.flags & HAS_FOREIGN_KEY > 0)
    timeless = np.ones(len(keys), bool)  # a hash stands in the place of a timestamp
    return Shown(keys_as_json(of.key, keys), keys_as_json(of.schemas["foreign_key"], named), timeless=timeless)


@dataclass(frozen=True, kw_only=True)
class RekeySpec(ByRow, StageSpec):
    """rekey: left changes become subscriptions."""

    stage = "rekey"
    forms: ClassVar = {tags.ROW: Form("left", _foreign_key)}
    tombstones = CHANGE
    in_order: bool = False
    fused: bool = True
    """The next stage is in the same query, and can check what it has been told."""
    right_parts: int = 1
    every: bool = False
    """Send what is unchanged, too, as for all ``every``."""
    from_answers: Carry | CarryRows | None = None
    """Function that turns another join's answers into changes, where those come."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (CHANGE,) if self.from_answers is None else (ANSWER,)

    @property
    def part_bytes(self) -> int | None:
        return None if self.from_answers is None else PART_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        changes, times = self._rows(CHANGE, self.from_answers, messages, count), self._times(messages)
        yield from rekey(changes, store, count, right_parts=self.right_parts, every=self.every, in_order=self.in_order, **times)

    def validated(self, messages: Messages, store: Store, bucket: int, name: str) -> Iterator[Payload]:
        return sums(expected_subscriptions(store), bucket, self.state) if self.fused else iter(())


def _right(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    rows = masked(held.body, held.flags & GONE == 0)
    if of.multi_join is not None:
        names = _names_as_json(of.multi_join, keys)
        return Shown(foreign_key=names, row=_right_rows(of.multi_join, keys, rows))
    return Shown(foreign_key=keys_as_json(of.key, keys), row=rows_as_json(of.schemas["right"], rows))


def _subscriber(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    foreign, left = combined_key.decode(keys)
    if of.multi_join is not None:
        names = _names_as_json(of.multi_join, foreign)
        return Shown(keys_as_json(of.multi_join.key, untagged(left)), names)
    rows = rows_as_json(of.schemas["left"], masked(held.body, held.flags & GONE == 0))
    return Shown(keys_as_json(of.schemas["key"], left), keys_as_json(of.key, foreign), rows)


class ByForeignKey(StageSpec):
    """The common part of stages that join subscriptions with right changes: their records are by foreign key."""

    takes = SUBSCRIPTION, CHANGE, SUMS
    forms: ClassVar = {tags.RIGHT: Form("right", _right), tags.SUBSCRIBER: Form("subscription", _subscriber)}
    key = "foreign_key"
    tombstones = CHANGE

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        return without_answers(payloads)

    def validated(self, messages: Messages, store: Store, bucket: int, name: str) -> Iterator[Payload]:
        check_subscriptions(store, messages.take(SUMS), self.state.buckets, name)
        return iter(())

    @classmethod
    def asked(cls, of: Described, key: str, known: Sequence[Mapping[str, Any]]) -> list[Asked]:
        """The records of a left row under the foreign key that it is known to have, and of the right row."""
        foreign = known[0]["foreign_key"] if known else None
        if foreign is None:
            return []
        if of.multi_join is not None:
            return [*_asked_of(of.multi_join, key, foreign)]
        by, wanted = parse_key(of.key, json.dumps(foreign)), parse_key(of.schemas["key"], key)
        combined = combined_key.encode(by, wanted)[0].as_py()
        return [Asked(by, (tags.SUBSCRIBER + combined, tags.RIGHT + by[0].as_py()), wanted)]


@dataclass(frozen=True, kw_only=True)
class SubscriptionSpec(ByForeignKey):
    """subscription: subscriptions and right changes become answers."""

    stage = "subscription"
    in_order: bool = False
    """rekey is in the same query."""
    rights_in_order: bool = False
    """An operator of the query makes the right table, and rekey is there, too."""
    shared_log: bool = False
    right_parts: int = 1
    every: bool = False

    @property
    def highwater_tags(self) -> bytes:
        return tags.ROW + tags.RIGHT * (not self.rights_in_order) + tags.SUBSCRIBER * (not self.in_order)

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

    def validated(self, messages: Messages, store: Store, bucket: int, name: str) -> Iterator[Payload]:
        return super().validated(messages, store, bucket, name) if self.in_order else iter(())


def _result_or_hash(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    hashes = pc.binary_length(held.body).fill_null(0).to_numpy() <= DIGEST_BYTES
    known = held._replace(flags=np.where(hashes, 0, held.flags))
    # A hash is kept without a timestamp.
    return shown.result(of, keys, known, store)._replace(timeless=known.flags & HAS_RESULT == 0)


@dataclass(frozen=True, kw_only=True)
class ResolveSpec(ByRow, StageSpec):
    """resolve: answers become changes of the joined table."""

    stage = "resolve"
    part_bytes = PART_BYTES
    forms: ClassVar = {tags.ROW: Form("result", _result_or_hash)}
    keeps = True
    encoded = staticmethod(shown.behind_digest)
    how: HowByKey = "inner"
    materialized: bool = False
    """Keep the results."""
    complete: Complete | None = None
    """Function that completes rows that lack values."""
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""
    in_order: bool = False
    every: bool = False
    from_answers: Joined | None = None
    """Function that makes the joined rows, where answers alone come."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (ANSWER, JOINED) if self.from_answers is None else (ANSWER,)

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
            return self._rows(JOINED, self.from_answers, messages, count)
        made = [join_rows(messages.take(ANSWER), self.how), messages.take(JOINED)]
        return pa.concat_tables([table for table in made if len(table)] or made)  # columns in one piece, where there is one


def _pair(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    slots = zip(("left", "right"), sides_of(held.body).slots, strict=True)
    sides = {side: structs(of.schemas[side], slot.row) for side, slot in slots}
    schema = pa.schema([(side, rows.type) for side, rows in sides.items()])
    row = as_json(schema, [*sides.values()], held.flags & GONE == 0)
    return Shown(keys_as_json(of.key, keys), row=row)


@dataclass(frozen=True, kw_only=True)
class PairSpec(StageSpec):
    """pair: the rows of two tables by one key become changes of their join, or the answers that Spark makes rows of."""

    stage = "pair"
    part_bytes = PART_BYTES
    takes = (NUMBERED,)
    forms: ClassVar = {tags.ROW: Form("pair", _pair)}
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
        how: Any = {"parts": self.parts, "in_order": self.in_order, **self._times(messages)}
        rows = messages.take(NUMBERED)
        if self.answers:
            yield answers_by_key(rows, store, count, **how)
        else:
            kept: Any = {"materialized": self.materialized, "every": self.every}
            yield pair(rows, store, count, partial(self._made, count), **kept, **how)

    def left_behind(self, store: Store, topic: StartOver) -> Iterator[pa.Table]:
        return left_behind(store, topic, slots_of=lambda bodies: sides_of(bodies).slots)

    @staticmethod
    def encoded(bodies: Bytes) -> Bytes:
        return shown.behind_digest(sides_of(bodies).emitted)

    def _made(self, count: Counters, answers: pa.Table) -> pa.Table:
        if self.makes is None:
            return join_rows(answers, self.how)
        return usable(self.makes, answers, count, self.state.operator)


@dataclass(frozen=True, kw_only=True)
class ChildrenSpec(ByForeignKey):
    """children: subscriptions and right changes become changes of the right rows' maps; rekey is always in the same query."""

    stage = "children"
    keeps = True
    family: Family
    rights_in_order: bool = False
    every: bool = False

    @property
    def highwater_tags(self) -> bytes:
        return tags.ROW if self.rights_in_order else tags.ROW + tags.RIGHT

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from children(
            messages.take(SUBSCRIPTION),
            messages.take(CHANGE),
            store,
            count,
            self.family,
            source=versions.identity(f"children {self.state.operator}"),
            every=self.every,
            in_order=True,
            rights_in_order=self.rights_in_order,
            **self._times(messages),
        )

    def sorted_out(self, payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        own, _ = without_answers(payloads)  # left rows without a foreign key are in no map
        return own, []

    @classmethod
    def rows(cls, of: Described, store: Reads, keys: Bytes | None) -> Iterator[Rows]:
        family = Family(*(of.schemas[name] for name in ("key", "left", "right", "result")))
        nothing = pa.array([], BYTES)
        empty = nothing, nothing, nothing, np.zeros(0, np.int64)
        right = pages(store, tags.RIGHT, keys)
        for foreign, rows, version, ts in [*stored(store, family, right)] or [empty]:
            yield Rows(foreign, RowCodec(family.result).decode(rows), version, ts)


def _foreign_keys(of: Described, keys: Bytes, held: Records, store: Reads) -> Shown:
    """Show foreign keys by the names of the right tables that they are keys of."""
    assert of.multi_join is not None
    names: list[dict[str, Any]] = [{} for _ in range(len(keys))]
    for foreign in scattered(held.body, len(of.multi_join.rights)):
        for row, name in zip(names, _named(of.multi_join, foreign), strict=True):
            row.update(name)
    texts = [_text(row) if row else None for row in names]
    timeless = np.ones(len(keys), bool)  # a hash stands in the place of a timestamp
    return Shown(keys_as_json(of.key, keys), pa.array(texts, pa.string()), timeless=timeless)


@dataclass(frozen=True, kw_only=True)
class ScatterSpec(ByRow, StageSpec):
    """scatter: left changes become subscriptions, and left rows for gather."""

    stage = "scatter"
    takes = (CHANGE,)
    forms: ClassVar = {tags.ROW: Form("left", _foreign_keys)}
    tombstones = CHANGE
    rights: int
    """The number of right tables."""
    in_order: bool = False

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
    highwater_tags = b""
    part_bytes = 16 << 20
    """It has the rows of all its right tables in memory at once."""
    takes = (PART,)
    forms: ClassVar = {tags.ROW: Form("result", _gathered)}
    keeps = True
    multi_join: MultiJoin

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


def without_answers(payloads: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The payloads for foreign keys, and those for left keys: what rekey and scatter send them is on its way to this bucket."""
    return [one for one in payloads if not is_answer(one)], [one for one in payloads if is_answer(one)]


def sums(expected: Iterable[Bytes], bucket: int, state: StateSpec) -> Iterator[Payload]:
    """Sum up, for each bucket of the next stage, the subscriptions that are ``expected`` there."""
    found = [Sum()] * state.buckets
    for combined in expected:
        numbers = places_of(*combined_key.decode(combined), state.buckets, state.spread)
        found = [had.plus(combined.filter(pa.array(numbers == at))) for at, had in enumerate(found)]
    for of, summed in zip(bucket_ids(state.buckets), found, strict=True):
        yield of, pack(sums_message(bucket, summed))


def _names_as_json(multi_join: MultiJoin, keys: Bytes) -> pa.Array:
    """Keys as JSON objects: the name of the right table, and its key."""
    return pa.array(map(_text, _named(multi_join, keys)), pa.string())


def _named(multi_join: MultiJoin, keys: Bytes) -> list[dict[str, Any]]:
    """Split each key into its right table's name and the key; nothing for null."""
    names: list[dict[str, Any]] = [{} for _ in range(len(keys))]
    for number, rows in _by_right(keys):
        right = multi_join.rights[number]
        texts = keys_as_json(right.key, untagged(take(keys, rows))).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            names[row] = {right.name: json.loads(text)}
    return names


def _right_rows(multi_join: MultiJoin, keys: Bytes, bodies: Bytes) -> pa.Array:
    """Encoded rows of the right tables that have these keys, as JSON objects; null for null."""
    lines: list[str | None] = [None] * len(keys)
    for number, rows in _by_right(keys):
        texts = rows_as_json(multi_join.rights[number].row, take(bodies, rows)).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            lines[row] = text
    return pa.array(lines, pa.string())


def _asked_of(multi_join: MultiJoin, key: str, foreign: Mapping[str, Any]) -> Iterator[Asked]:
    """The records of a left row and of the right rows that it names."""
    wanted = parse_key(multi_join.key, key)
    for number, right in enumerate(multi_join.rights):
        if right.name in foreign:
            by = tagged(number, parse_key(right.key, json.dumps(foreign[right.name])))
            combined = combined_key.encode(by, tagged(number, wanted))[0].as_py()
            yield Asked(by, (tags.SUBSCRIBER + combined, tags.RIGHT + by[0].as_py()))


def _by_right(keys: Bytes) -> list[tuple[int, Ints]]:
    """Find the right tables whose keys these are, by number, and their rows; nulls are of none."""
    heads = np.array([-1 if key is None else key[0] for key in keys.to_pylist()], np.int64)
    return [(int(number), np.flatnonzero(heads == number)) for number in np.unique(heads[heads >= 0])]
