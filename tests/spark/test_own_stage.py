"""A stage outside of fkjoin: one class and one entry in ``STAGES``, and all that shows, counts and reads stages knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fkjoin.checkpoint.entries import Entries, StoredRows, look_up
from fkjoin.checkpoint.stores import Identified, StoreReader, kept_as
from fkjoin.codec import messages, records, tags, versions
from fkjoin.codec.arrays import BYTES, as_bytes, prefixed, take, valid
from fkjoin.codec.messages import ANSWER, JOINED, column, pack, unpack
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.errors import FkJoinError, FormatError
from fkjoin.metrics.families import families_of
from fkjoin.metrics.report import JobReport
from fkjoin.plan.physical import Counted
from fkjoin.spark import on_spark
from fkjoin.spark.bucket_run import InMemoryRun
from fkjoin.spark.buckets import BATCH_MS, bucket_ids, buckets_of
from fkjoin.spark.identity import identity_text, read_identity
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.specs import STAGES, Messages, StageSpec, StateSpec
from fkjoin.spark.specs.shown import Described, result
from fkjoin.stages import Counters
from fkjoin.stages.emit_on_change import HAS_RESULT
from fkjoin.stages.start_over import StartOver
from fkjoin.state import MemoryStore, Store

KEY = pa.schema([("name", pa.string())])
ROW = pa.schema([("name", pa.string()), ("n", pa.int64())])
FIRST = pa.schema([("key", BYTES), ("first", BYTES)])
"""A kind of messages of the stage's own: a row whose key was not known."""

SOURCE = versions.identity("names")


@dataclass(frozen=True, kw_only=True)
class DistinctSpec(StageSpec):
    """distinct: rows whose key is new are let through, and kept."""

    stage = "distinct"
    takes = (JOINED,)
    counts: ClassVar = {"seen-again": "Rows whose key was known."}
    greatest = ("longest-key",)
    forms: ClassVar = {tags.ROW: ("first", result)}
    keeps = True

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        rows = messages.take(JOINED)
        keys, version = as_bytes(column(rows, "key")), as_bytes(column(rows, "version"))
        names, bodies = prefixed(tags.ROW, keys), as_bytes(column(rows, "value"))
        new = np.flatnonzero(~valid(store.get_many(names)))
        count["seen-again"] += len(rows) - len(new)
        ts = column(rows, "ts").to_numpy()[new]
        flags = np.full(len(new), HAS_RESULT, np.uint8)
        store.write(take(names, new), records.encode(flags, ts, take(version, new), take(bodies, new)))
        yield pa.table([take(keys, new), take(bodies, new)], schema=FIRST)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "distinct", DistinctSpec)
    monkeypatch.setitem(messages.KINDS, 200, (FIRST, "first rows"))


def spec() -> DistinctSpec:
    facts = {"join": "names", "stage": "distinct", "buckets": 2, "materialized": "firsts"}
    kinds: dict[str, Any] = {name: json.loads(spark_schema(kind).json()) for name, kind in (("key", KEY), ("result", ROW))}
    return DistinctSpec(StateSpec("names", 2, 0, "/none", identity_text(facts, {**kinds, "versions": [["version", 1]]})))


def rows(*named: tuple[str, int]) -> pa.Table:
    name, number = pa.array([name for name, _ in named]), pa.array([n for _, n in named], pa.int64())
    key, value = KeyCodec(KEY).encode([name], len(named)), RowCodec(ROW).encode([name, number], len(named))
    version = versions.encode(SOURCE, [np.arange(len(named))])
    return messages.table(JOINED, key, version, value, np.zeros(len(named), bool), np.arange(7, 7 + len(named)))


@dataclass
class InMemoryStore(Identified):
    """The operator's store, a bucket's each."""

    spec: DistinctSpec
    buckets_of: dict[int, MemoryStore]
    checkpoint = "the test"

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.spec.state.identity.encode())

    def read(self, bucket: int, reader: StoreReader) -> list[pa.RecordBatch]:
        return list(reader(self.buckets_of[bucket], bucket))


def ran(store: InMemoryStore, batch: pa.Table) -> tuple[list[dict[str, Any]], Counters]:
    """Run a batch; returns what was sent, and what was counted."""
    sent, count = list[dict[str, Any]](), Counters()
    numbers = buckets_of(as_bytes(column(batch, "key")), 2)
    for number, bucket in enumerate(bucket_ids(2)):
        some = batch.filter(pa.array(numbers == number))
        frame = pd.DataFrame({"payload": [pack(some)], "counter": [None], "count": [0], BATCH_MS: [1]})
        for envelopes in InMemoryRun(store.spec, bucket, store.buckets_of.setdefault(bucket, MemoryStore())).process(
            iter([frame])
        ):
            for payload, name, value in zip(envelopes["payload"], envelopes["counter"], envelopes["count"], strict=True):
                if isinstance(name, str):
                    count[name] += value
                elif payload:
                    sent += unpack(payload).to_pylist()
    return sent, count


@pytest.fixture
def store() -> InMemoryStore:
    store = InMemoryStore(spec(), {})
    sent, count = ran(store, rows(("a", 1), ("b", 2)))
    assert (len(sent), count["seen-again"]) == (2, 0)
    sent, count = ran(store, rows(("a", 3), ("c", 4)))
    ((name, number),) = zip(*RowCodec(ROW).decode(pa.array([row["first"] for row in sent], BYTES)), strict=True)
    assert (name.as_py(), number.as_py(), count["seen-again"]) == ("c", 4, 1)
    return store


def test_its_records_are_shown(store: InMemoryStore) -> None:
    entries: Any = Entries(store.described())
    shown = [row for bucket, one in store.buckets_of.items() for batch in entries(one, bucket) for row in batch.to_pylist()]
    assert sorted((row["kind"], row["key"], row["row"], row["version"], row["timestamp"]) for row in shown) == [
        ("first", '"a"', '{"name": "a", "n": 1}', "[[0]]", 7),
        ("first", '"b"', '{"name": "b", "n": 2}', "[[1]]", 8),
        ("first", '"c"', '{"name": "c", "n": 4}', "[[1]]", 8),
    ]
    assert {row["store"] for row in shown} == {"names-distinct"}


def test_the_rows_that_it_keeps_are_read(store: InMemoryStore) -> None:
    assert kept_as("firsts", [store], "the test") is store
    stored = StoredRows(store.described())
    read = [row for one in store.buckets_of.values() for batch in stored(one, 0) for row in batch.to_pylist()]
    assert sorted((row["name"], row["n"], row["_version"], row["_timestamp"]) for row in read) == [
        ("a", 1, [0], 7),
        ("b", 2, [1], 8),
        ("c", 4, [1], 8),
    ]


def test_a_key_is_looked_up(store: InMemoryStore) -> None:
    stores: Any = [store]
    (found,) = look_up(stores, "names", "b")
    assert (found["kind"], found["key"], found["row"]) == ("first", "b", {"name": "b", "n": 2})
    assert look_up(stores, "", "d") == []
    with pytest.raises(FkJoinError, match="a JSON list is needed, of name"):
        look_up(stores, "names", '["a", "b"]')


def test_its_counters_are_summed_and_have_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = MagicMock()
    monkeypatch.setattr(on_spark, "F", functions)
    on_spark._counted(MagicMock(), Counted(MagicMock(), "names", ("distinct",)), MagicMock())
    summed = [call.args[0] for call in functions.sum.return_value.alias.call_args_list]
    most = [call.args[0] for call in functions.max.return_value.alias.call_args_list]
    assert {"stale-dropped", "seen-again", "distinct-ms"} <= set(summed)
    assert "longest-key" in most
    texts = {family.name: family.documentation for family in families_of(JobReport(0))}
    assert texts["fkjoin_seen_again"] == "Rows whose key was known."


def test_its_messages_have_a_name() -> None:
    assert unpack(pack(FIRST.empty_table())).schema == FIRST
    with pytest.raises(FormatError, match="a distinct stage takes joined rows, but first rows came"):
        spec().run(Messages([FIRST.empty_table()], 0), MemoryStore(), Counters())
    with pytest.raises(FormatError, match="but answers came"):
        spec().run(Messages([ANSWER.empty_table()], 0), MemoryStore(), Counters())


def test_rows_of_a_source_that_starts_over_go() -> None:
    before, anew = (versions.topic_identity("names", "id", generation) for generation in (0, 1))
    store, key = MemoryStore(), KeyCodec(KEY).encode([pa.array(["a"])], 1)
    place = versions.encode(before, [np.zeros(1, np.int64)] * 3, placed=True)
    flags, ts = np.full(1, HAS_RESULT, np.uint8), np.zeros(1, np.int64)
    store.write(prefixed(tags.ROW, key), records.encode(flags, ts, place, key))
    (gone,) = spec().left_behind(store, StartOver(anew, ()))
    assert (gone.schema, gone.column("key").to_pylist(), gone.column("gone").to_pylist()) == (JOINED, key.to_pylist(), [True])


def test_a_stage_that_is_not_known_is_named(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(STAGES, "distinct")
    with pytest.raises(FkJoinError, match="^store names-distinct in the test is of a stage that this release does not know$"):
        store.described()


def test_a_row_of_no_columns_is_shown() -> None:
    """An aggregate that only counts keeps none of its rows' columns."""
    nothing, store = pa.schema([]), MemoryStore()
    group = KeyCodec(KEY).encode([pa.array(["g"])], 1)
    body = pa.array([len(group[0].as_py()).to_bytes(4, "little") + group[0].as_py()], BYTES)
    flags, ts = np.full(1, HAS_RESULT, np.uint8), np.zeros(1, np.int64)
    store.write(prefixed(tags.ROW, group), records.encode(flags, ts, versions.encode(SOURCE, [ts]), body))
    schemas = {"key": KEY, "row_key": KEY, "value": nothing}
    entries: Any = Entries(Described("n-regroup", STAGES["regroup"], schemas, False, (("version", 1),)))
    (found,) = [row for batch in entries(store, 0) for row in batch.to_pylist()]
    assert (found["kind"], found["key"], found["foreign_key"], found["row"]) == ("contribution", '"g"', '"g"', "{}")
