"""Several tables as one: laid over one another, whatever comes first, twice or delayed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.checkpoint.entries import Entries, StoredRows
from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import NUMBERED, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.kafka.positions import OriginsOf, RootsOf
from fkjoin.spark.specs import STAGES
from fkjoin.spark.specs.shown import Described
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.merge import merge
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.merging import ROWS, Event, apply, messages, overlaid

EVENT = st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 12)).map(lambda one: (*one, ROWS[one[2] % 4]))


class Merging:
    """The stage over memory, and the table that a reader of its changes has."""

    def __init__(self, **how: Any) -> None:
        self.memory, self.count, self.how = MemoryStore(), Counters(), {"retention_ms": 1000, "now_ms": 0, **how}
        self.table: dict[str, bytes] = {}
        self.versions: dict[str, list[int]] = {}

    def batch(self, events: list[Event]) -> None:
        store = GuardedStore(self.memory, "merge")
        made = merge(messages(events), store, self.count, 3, source=b"a-merged", **self.how)
        apply(made, self.table)
        for one in made.to_pylist():
            (number,) = versions.decode(one["version"])[0][1]
            self.versions.setdefault(one["key"].decode(), []).append(number)


@law(100, events=st.lists(EVENT, max_size=40), cut=st.integers(1, 9))
def test_the_merged_table_is_the_tables_laid_over_one_another(events: list[Event], cut: int) -> None:
    """Versions in any order, and records twice."""
    merging = Merging()
    for start in range(0, len(events), cut):
        merging.batch(events[start : start + cut])
        assert merging.table == overlaid(events[: start + cut])
    assert all(numbers == sorted(set(numbers)) for numbers in merging.versions.values()), "versions only grow"


def placed(events: list[Event]) -> pa.Table:
    """Messages of rows that were read from a topic for each table."""
    made = messages(events)
    at = np.array([version for _, _, version, _ in events], np.int64)
    topics = pa.array([versions.topic_identity(f"topic-{number}", None) for number, *_ in events], BYTES)
    place = versions.encode(topics, [at, np.zeros(len(at), np.int64), at], placed=True)
    return made.set_column(1, made.schema.field("version"), place)


def as_read(text: str) -> bytes:
    """The version that a reader of the header makes of it (``fkjoin.kafka.positions.version``)."""
    parts = []
    for chain in json.loads(text):
        if chain is None:
            parts.append(versions.absent(1))
            continue
        stem = bytes((0x83,)) + hashlib.md5(chain[0]["topic"].encode()).digest()[:4] + bytes(4)
        parts.append(stem + b"".join((chain[0][name] + (1 << 63)).to_bytes(8, "big") for name in versions.PLACE))
    return b"".join(parts)


@law(
    96,
    events=st.lists(EVENT, max_size=30),
    cut=st.integers(1, 9),
    read=st.integers(1, 9),
    rng=st.randoms(use_true_random=False),
)
def test_a_reader_of_the_positions_of_a_merge_ends_with_its_rows(events: list[Event], cut: int, read: int, rng: Any) -> None:
    """Batches are cut anywhere, and records are published again; positions tell which table's row is shown."""
    events = [(number, *rest, None if row is None else b"%d %s" % (number, row)) for number, *rest, row in events]
    texts = OriginsOf((1, 1, 1), RootsOf.topics(3, [f"topic-{number}" for number in range(3)]).known)
    store, published = GuardedStore(MemoryStore(), "merge"), []
    how: Any = {"source": b"a-merged", "now_ms": 0, "retention_ms": 1000}
    for start in range(0, len(events), cut):
        made = merge(placed(events[start : start + cut]), store, Counters(), 3, origins=(1, 1, 1), **how)
        for one, text in zip(made.to_pylist(), texts(column(made, "version")).to_pylist(), strict=True):
            published.append((one["key"], one["value"], as_read(text)))
            chains = json.loads(text)
            shown = [number for number, chain in enumerate(chains) if chain is not None and chain[0].get("shown")]
            assert shown == ([] if one["value"] is None else [int(one["value"][:1])])
            assert all(chain[0]["topic"] == f"topic-{number}" for number, chain in enumerate(chains) if chain is not None)
    published += published[rng.randrange(len(published) + 1) :]
    seen, found = GuardedStore(MemoryStore(), "merge"), dict[str, bytes]()
    for start in range(0, len(published), read):
        key, value, version = zip(*rng.sample(batch := published[start : start + read], len(batch)), strict=True)
        columns = [pa.array(key, BYTES), pa.array(version, BYTES), pa.array(value, BYTES)]
        gone, ts = columns[2].is_null(), np.zeros(len(key), np.int64)
        apply(merge(table(NUMBERED, *columns, gone, ts, np.zeros(len(key), np.int8)), seen, Counters(), 1, **how), found)
    assert found == overlaid(events)


@pytest.mark.parametrize("every", [False, True])
def test_what_is_not_sent_is_counted_and_every_update_is_sent_if_wanted(every: bool) -> None:
    merging = Merging(every=every)
    merging.batch([(0, "k", 1, b"eu")])
    more = messages([(1, "k", 1, b"us"), (0, "j", 1, None)])
    results = merge(more, merging.memory, merging.count, 3, source=b"a-merged", **merging.how)
    assert results.column("value").to_pylist() == [b"eu"] * every
    names = ("out", "idempotent-update-skip", "tombstones-suppressed")
    assert [merging.count[name] for name in names] == [1 + every, 1 - every, 1]


def test_rows_of_a_merged_table_are_shown() -> None:
    key, row = pa.schema([("id", pa.string())]), pa.schema([("items", pa.int64())])
    first, second = RowCodec(row).encode([pa.array([1, 2])], 2).to_pylist()
    merging = Merging()
    merging.batch([(0, "1", 1, first), (1, "1", 10, second), (2, "3", 30, second)])
    described = Described("all-merge", STAGES["merge"], {"key": key, "result": row}, False, (("version", 1),))
    store: Any = merging.memory
    lines = [line for batch in Entries(described)(store, 0) for line in batch.to_pylist()]
    assert [(line["kind"], line["key"], line["row"], line["gone"]) for line in lines] == [
        ("merged", '"1"', '{"items": 1}', False),
        ("merged", '"3"', '{"items": 2}', False),
    ]
    rows = [row for batch in StoredRows(described)(store, 0) for row in batch.to_pylist()]
    assert [(row["id"], row["items"]) for row in rows] == [("1", 1), ("3", 2)]


def regional(spark: SparkSession, folder: Path, name: str, key: str = "id") -> Table:
    schema = "id string, customer string, lsn bigint"
    return Table.from_files(spark, folder / name, key=key, version="lsn", format="json", schema=schema)


def test_what_cannot_be_merged_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("eu", "us", "asia"):
        (tmp_path / name).mkdir()
    eu, us = regional(spark, tmp_path, "eu"), regional(spark, tmp_path, "us")
    with pytest.raises(TopologyError, match="merge: 1 to 99 other tables are needed, these are 0"):
        eu.merge()
    with pytest.raises(TopologyError, match=r"others\[0\]: a Table is needed, this is a str"):
        eu.merge("us")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"others\[0\]: the key of asia is customer string, and the key of eu is"):
        eu.merge(regional(spark, tmp_path, "asia", "customer"))
    with pytest.raises(TopologyError, match="positions: eu is not read from a topic"):
        eu.merge(us).to_kafka("t", "b", checkpoint="c", positions=True)
