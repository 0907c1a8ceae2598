"""A snapshot handed over to a topic: rows that are older than all changes, and events of Debezium's own snapshots.

*Law*: if the topic begins at the snapshot's moment or before it, the table ends as the history does, whatever comes first.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructType

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import JOINED
from fkjoin.kafka import Debezium
from fkjoin.kafka.formats import key_reader, reader
from fkjoin.spark.specs import ResolveSpec
from fkjoin.spark.topic_records import TopicRecords
from fkjoin.stages import Counters, resolve
from fkjoin.stages.start_over import StartOver
from fkjoin.state import MemoryStore
from tests.support.oracle import Change, Joined, apply, batch_join
from tests.support.replay.memory_join import MemoryJoin
from tests.support.sampling import examples
from tests.support.specs import STATE
from tests.support.topic_changes import STAGES, TIMES, TOPIC, Kept, Place, Sent, changes_of, version

OLDEST = Place(versions.OLDEST, 0, versions.OLDEST)
"""Place of a snapshot's rows."""


class Step(NamedTuple):
    """A change of a source: its key, whether it deletes, and by how many partitions the key's place moves before it."""

    key: int
    deletes: bool
    moves: int
    late: int
    """Milliseconds by which its producer's clock is behind."""


class Handover(NamedTuple):
    """A history, and what is read of it."""

    changes: list[Change]
    """All changes, with their places in the history as versions."""
    rows: list[Sent]
    """Rows of the snapshot."""
    records: list[Sent]
    """Records of the topic from its beginning on."""

    @property
    def final(self) -> dict[bytes, bytes]:
        last = {change.key: change.value for change in self.changes}
        return {key: value for key, value in last.items() if value is not None}


STEPS = st.lists(
    st.builds(Step, st.integers(0, 3), st.booleans(), st.sampled_from((0, 0, 0, 1)), st.integers(0, 3)), min_size=1, max_size=10
)


def handover(steps: list[Step], point: int, start: int, *, left: bool) -> Handover:
    """A snapshot after ``point`` changes, and the topic from ``start`` on; clocks are behind only where keys do not move."""
    names = b"klmn" if left else b"abcd"
    moving = {step.key for step in steps if step.moves}
    partition, ends = dict(enumerate(range(4))), dict[int, int]()
    changes, sent, state = list[Change](), list[Sent](), dict[bytes, Change]()
    rows: list[Sent] = []
    for number, step in enumerate(steps):
        if number == point:
            rows = [Sent(OLDEST, change) for change in state.values() if change.value is not None]
        partition[step.key] += step.moves
        key = b"%c" % names[step.key]
        value = None if step.deletes else b"%c%d" % (key[0], number)
        change = Change(left, key, value, number, b"%c" % b"abcd"[number % 4] if left else None)
        offset = ends.get(partition[step.key], 0)
        ends[partition[step.key]] = offset + 1
        time = number if moving else number - step.late
        changes.append(change)
        sent.append(Sent(Place(time, partition[step.key], offset), change))
        state[key] = change
    if point >= len(steps):
        rows = [Sent(OLDEST, change) for change in state.values() if change.value is not None]
    return Handover(changes, rows, sent[start:])


@st.composite
def handovers(draw: st.DrawFn, left: bool = False) -> Handover:
    steps = draw(STEPS)
    point = draw(st.integers(0, len(steps)))
    return handover(steps, point, draw(st.integers(0, point)), left=left)


def batches(read: Handover, seed: int) -> list[list[Sent]]:
    """Cut rows and records into batches: a partition's records in their order, rows anywhere, some of each again."""
    rng = random.Random(seed)
    waiting: dict[Any, list[Sent]] = defaultdict(list)
    for one in read.records:
        waiting[one.place.partition].append(one)
    for number, row in enumerate(read.rows):
        waiting["row", number].append(row)
    came: list[Sent] = []
    found = []
    while any(waiting.values()):
        batch: list[Sent] = []
        for name in rng.sample(list(waiting), len(waiting)):
            size = rng.choice((0, 1, 2, 50))
            batch += waiting[name][:size]
            del waiting[name][:size]
        batch += rng.sample(came, min(len(came), rng.choice((0, 0, 1))))
        came += batch
        rng.shuffle(batch)
        found.append(batch)
    return found


BEFORE_ITS_ROW = handover([Step(0, False, 0, 0), Step(0, True, 0, 0)], 1, 1, left=False)
"""A row of the snapshot that the topic's first record deletes."""


@pytest.mark.parametrize("stage", STAGES)
@settings(max_examples=examples(200))
@given(handovers(), st.integers(0, 1 << 32))
@example(BEFORE_ITS_ROW, 1)
def test_every_stage_that_reads_a_topic_ends_as_the_history_does(stage: str, read: Handover, seed: int) -> None:
    kept = Kept(stage)
    for batch in batches(read, seed):
        kept.batch(batch)
    assert {key: value for key, value in kept.rows.items() if value is not None} == read.final
    assert kept.count["source-restarts"] == 0


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=examples(200))
@given(handovers(left=True), handovers(), st.integers(0, 1 << 32))
def test_a_join_of_tables_that_begin_with_snapshots_is_that_of_their_histories(
    how: Any, left: Handover, right: Handover, seed: int
) -> None:
    rng = random.Random(seed)
    joined, join, waiting = Joined(), MemoryJoin(how), [batches(left, seed), batches(right, seed + 1)]
    while any(waiting):
        now = [parts.pop(0) if parts and rng.random() < 0.7 else [] for parts in waiting]
        apply(join.process(*map(changes_of, now)), joined)
    assert joined == batch_join([*left.changes, *right.changes], how)


@settings(max_examples=examples(200))
@given(handovers(), st.data())
def test_with_versions_of_the_users_changes_may_come_in_any_order_too(read: Handover, data: st.DataObject) -> None:
    store, rows = MemoryStore(), dict[bytes, bytes | None]()
    for one in data.draw(st.permutations([*read.rows, *read.records])):
        number = versions.OLDEST if one.place == OLDEST else one.change.version
        place = OLDEST if one.place == OLDEST else Place(0, number % 3, 0)
        gone = pa.array([one.change.value is None])
        key, value = pa.array([one.change.key], BYTES), pa.array([one.change.value], BYTES)
        came = pa.table([key, version(place, before=(number,)), value, gone, pa.array([0], pa.int64())], schema=JOINED)
        made = resolve(came, store, Counters(), materialized=True, as_read=True, **TIMES)
        rows |= dict(zip(made.column("key").to_pylist(), made.column("value").to_pylist(), strict=True))
    assert {key: value for key, value in rows.items() if value is not None} == read.final


def test_a_topic_that_begins_after_the_snapshot_leaves_a_row_that_was_deleted_between() -> None:
    gap = handover([Step(0, False, 0, 0), Step(0, True, 0, 0), Step(1, False, 0, 0)], 1, 2, left=False)
    kept = Kept("resolve")
    for batch in batches(gap, 0):
        kept.batch(batch)
    assert (gap.final, kept.rows) == ({b"b": b"b2"}, {b"a": b"a0", b"b": b"b2"}), "the law needs the topic's beginning"


def test_a_topic_made_anew_deletes_rows_of_the_snapshot_that_it_lacks() -> None:
    store = MemoryStore()
    begun = [Sent(OLDEST, Change(False, key, key, 0)) for key in (b"a", b"b")]
    resolve(joined_of(changes_of(begun)), store, Counters(), materialized=True, as_read=True, **TIMES)
    anew = versions.topic_identity("orders", "id of orders", 1)
    came = changes_of([Sent(Place(5, 0, 0), Change(False, b"a", b"new", 0))], anew)
    resolve(joined_of(came), store, Counters(), materialized=True, as_read=True, **TIMES)
    (gone,) = ResolveSpec(STATE).left_behind(store, StartOver(anew, ()))
    assert gone.column("key").to_pylist() == [b"b"]


def joined_of(read: pa.Table) -> pa.Table:
    columns = [read.column(name).combine_chunks() for name in ("key", "version", "value")]
    return pa.table([*columns, read.column("value").is_null().combine_chunks(), read.column("ts")], schema=JOINED)


class Capture:
    """Debezium's log of a table: changes in their order, and chunks of an incremental snapshot between two watermarks.

    A row of a chunk is written at the high watermark, unless a change of its key was written since the low one.
    """

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.log: list[tuple[int, dict[str, Any] | None]] = []
        self._chunk: dict[int, int] | None = None
        self._since: set[int] = set()

    def change(self, key: int, value: int | None, captured: bool) -> None:
        """Change a row; ``captured``: the connector is there already."""
        op = "d" if value is None else "u" if key in self.table else "c"
        if value is None:
            self.table.pop(key, None)
        else:
            self.table[key] = value
        if captured:
            self._since.add(key)
            after = None if value is None else {"id": key, "n": value}
            self.log.append((key, {"op": op, "before": None, "after": after, "source": {"snapshot": "false"}}))
            self.log += [(key, None)] * (value is None)

    def low(self) -> None:
        self._since = set()

    def select(self) -> None:
        self._chunk = dict(self.table)

    def high(self) -> None:
        for key, value in (self._chunk or {}).items():
            if key not in self._since:
                event = {"op": "r", "before": None, "after": {"id": key, "n": value}, "source": {"snapshot": "incremental"}}
                self.log.append((key, event))
        self._chunk = None


PEOPLE_KEY = StructType().add("id", IntegerType())
PEOPLE = StructType().add("id", IntegerType()).add("n", IntegerType())
CHANGES = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 9))), max_size=4)


@settings(max_examples=examples(200))
@given(st.tuples(CHANGES, CHANGES, CHANGES, CHANGES, CHANGES), st.data())
def test_an_incremental_snapshot_of_debezium_among_changes_ends_as_the_database(
    parts: tuple[list[Any], ...], data: st.DataObject
) -> None:
    capture = Capture()
    steps = [lambda: None, capture.low, capture.select, capture.high, lambda: None]
    for number, (changes, then) in enumerate(zip(parts, steps, strict=True)):
        for key, value in changes:
            capture.change(key, value, captured=number > 0)
        then()
    key_of, row_of = key_reader(Debezium(PEOPLE_KEY)), reader(Debezium(PEOPLE))
    assert key_of is not None
    assert row_of is not None
    reading = TopicRecords("people", key_of, row_of, TOPIC, fail=True)
    store, rows = MemoryStore(), dict[bytes, bytes | None]()
    log = [(at, *one) for at, one in enumerate(capture.log)]
    while log:
        size = data.draw(st.integers(1, len(log)))
        now, log = log[:size], log[size:]
        read = reading.changes(records(now))
        key = pa.array([str(row["id"]).encode() for row in read.column("key").to_pylist()], BYTES)
        gone = read.column("deleted").fill_null(False)
        values = zip(read.column("row").to_pylist(), gone.to_pylist(), strict=True)
        value = pa.array([None if deletes else str(row["n"]).encode() for row, deletes in values], BYTES)
        places = [Place(*one.values()) for one in read.column("version").to_pylist()]
        came = pa.table([key, version(*places), value, gone, read.column("ts")], schema=JOINED)
        made = resolve(came, store, Counters(), materialized=True, as_read=True, **TIMES)
        rows |= dict(zip(made.column("key").to_pylist(), made.column("value").to_pylist(), strict=True))
    found = {int(key): int(value) for key, value in rows.items() if value is not None}
    assert found == capture.table


def records(log: list[tuple[int, int, dict[str, Any] | None]]) -> pa.RecordBatch:
    """The log as Spark's Kafka source gives it, all in one partition."""
    return pa.record_batch(
        {
            "partition": pa.array(np.zeros(len(log)), pa.int32()),
            "offset": pa.array([at for at, *_ in log], pa.int64()),
            "timestamp": pa.array([at * 1000 for at, *_ in log], pa.timestamp("us", "UTC")),
            "key": pa.array([json.dumps({"id": key}).encode() for _, key, _ in log], pa.binary()),
            "value": pa.array([None if event is None else json.dumps(event).encode() for *_, event in log], pa.binary()),
        }
    )
