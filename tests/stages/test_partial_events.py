"""Events that lack values: the table is as if each had carried its whole row."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import Table
from fkjoin.analysis.planned import Settings
from fkjoin.analysis.views import completed
from fkjoin.codec import tags, versions
from fkjoin.codec.arrays import as_bytes, masked
from fkjoin.codec.messages import JOINED, table
from fkjoin.codec.rows import RowCodec
from fkjoin.stages import counters
from fkjoin.stages.complete import UNAVAILABLE, Complete
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.resolve import resolve
from fkjoin.state import MemoryStore
from fkjoin.testing import Driver
from tests.support.changes import take
from tests.support.driven import feed_lines
from tests.support.laws import law

WHOLE = pa.schema([("bio", pa.string()), ("n", pa.int64()), ("list", pa.list_(pa.string()))])
CAME = WHOLE.append(pa.field(UNAVAILABLE, pa.list_(pa.int32())))
TIMES: Any = {"now_ms": 0, "retention_ms": 1000, "materialized": True}

Row = tuple[Any, ...]
Event = tuple[str, Row | None, list[int]]
"""A key, its whole row, and the places of columns that the event lacks."""

rows = st.tuples(
    st.none() | st.text(max_size=2), st.none() | st.integers(0, 3), st.none() | st.lists(st.text("ab"), max_size=2)
)
events = st.lists(st.tuples(st.sampled_from("abc"), st.none() | rows, st.sets(st.integers(0, 2))), max_size=14)


def history(drawn: list[tuple[str, Row | None, set[int]]]) -> list[Event]:
    """Fill what each event lacks from its key's row before it; an event of a key without a row lacks nothing."""
    now: dict[str, Row | None] = {}
    found: list[Event] = []
    for key, row, lacking in drawn:
        before = now.get(key)
        if row is not None and before is not None:
            row = tuple(before[at] if at in lacking else value for at, value in enumerate(row))
        now[key] = row
        found.append((key, row, sorted(lacking) if row is not None and before is not None else []))
    return found


def messages(some: list[tuple[int, Event]], *, whole: bool = False, version: pa.Array | None = None) -> pa.Table:
    keys = as_bytes(pa.array([key for _, (key, _, _) in some], pa.string()))
    schema = WHOLE if whole else CAME
    columns: list[list[Any]] = [[] for _ in schema]
    for _, (_, row, lacking) in some:
        shown = [None if row is None or (at in lacking and not whole) else row[at] for at in range(3)]
        for column, value in zip(columns, [*shown, lacking or None], strict=False):
            column.append(value)
    made = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    there = np.array([row is not None for _, (_, row, _) in some], bool)
    at = np.array([number for number, _ in some], np.int64)
    version = versions.encode(b"a-source", [at]) if version is None else version
    value = masked(RowCodec(schema).encode(made, len(some)), there)
    return table(JOINED, keys, version, value, ~there, at)


class People:
    """The stage over memory, and the rows that a reader of its results has."""

    def __init__(self, **how: Any) -> None:
        self.store, self.count, self.how = GuardedStore(MemoryStore(), "people"), Counters(), {**TIMES, **how}
        self.shown: dict[str, Row] = {}

    def batch(self, came: pa.Table) -> None:
        made = resolve(came, self.store, self.count, **self.how, complete=Complete(CAME))
        columns = RowCodec(WHOLE).decode(as_bytes(made.column("value")))
        for at, one in enumerate(made.to_pylist()):
            row = None if one["value"] is None else tuple(column[at].as_py() for column in columns)
            take(self.shown, one["key"].decode(), one["operation"], row)


@law(100, events, st.lists(st.integers(0, 14), max_size=4), st.randoms(use_true_random=False))
def test_the_table_is_as_if_every_event_had_its_whole_row(drawn: Any, cuts: list[int], rng: Any) -> None:
    numbered = list(enumerate(history(drawn)))
    stores, counts = (MemoryStore(), MemoryStore()), (Counters(), Counters())
    bounds = sorted({0, len(numbered), *(cut for cut in cuts if cut < len(numbered))})
    for start, end in itertools.pairwise(bounds):
        batch = numbered[start:end] * 2  # each comes twice, in any order
        rng.shuffle(batch)
        wanted = resolve(messages(batch, whole=True), stores[0], counts[0], **TIMES)
        found = resolve(messages(batch), stores[1], counts[1], **TIMES, complete=Complete(CAME))
        assert found.equals(wanted)
    assert counts[0] == counts[1]
    rows, completed_rows = (dict(store.items()) for store in stores)
    borrowed = {key for key in completed_rows if key.startswith(tags.BORROWED)}
    assert {key: value for key, value in completed_rows.items() if key not in borrowed} == rows


def newest_values(events: list[tuple[int, Event]]) -> dict[str, Row]:
    """The rows of keys whose newest event deletes none, each value of the newest event since the last delete that has it."""
    rows: dict[str, dict[int, Any] | None] = {}
    for _, (key, row, lacking) in sorted(events, key=lambda one: one[0]):
        before = rows.get(key) or {}
        rows[key] = None if row is None else before | {at: row[at] for at in range(3) if at not in lacking}
    return {key: (row[0], row[1], row[2]) for key, row in rows.items() if row is not None and len(row) == 3}


@law(120, drawn=events, cuts=st.sets(st.integers(1, 13)), data=st.data())
def test_in_every_order_a_row_has_the_newest_values(drawn: Any, cuts: set[int], data: Any) -> None:
    """Values may never come; then the row is not shown."""
    numbered = [(at, (key, row, sorted(lacking) if row else [])) for at, (key, row, lacking) in enumerate(drawn)]
    shuffled = data.draw(
        st.permutations(numbered + data.draw(st.lists(st.sampled_from(numbered), max_size=3)) if drawn else [])
    )
    bounds = [0, *sorted(cut for cut in cuts if cut < len(shuffled)), len(shuffled)]
    people = People()
    for start, end in itertools.pairwise(bounds):
        people.batch(messages(shuffled[start:end]))
        assert people.shown == newest_values(shuffled[:end])


Record = tuple[int, int, int, int | None, list[int]]
"""Partition, offset, time, number (null: a delete), and the places of columns that are lacking."""

CAME_BACK: Record = (1, 1, 1, 11, [0])
"""A record whose clock went back: it counts as no older than the one before it in its partition."""
FIRST: list[Record] = [(0, 0, 4, None, []), (2, 0, 3, 20, []), (1, 0, 7, 10, [])]
LAST: Record = (2, 1, 9, 21, [1])


def row_of_topic(*batches: list[Record]) -> Row | None:
    """The row that records of a topic lead to."""
    people = People(as_read=True)
    for records in batches:
        events: list[tuple[int, Event]] = [
            (0, ("k", None if n is None else (f"{p}.{o}", n, None), lacks)) for p, o, _, n, lacks in records
        ]
        places = [np.array(column) for column in zip(*((time, p, o) for p, o, time, _, _ in records), strict=True)]
        version = versions.encode(versions.topic_identity("t", None), places, placed=True)
        people.batch(messages(events, version=version))
    return people.shown.get("k")


def test_a_record_whose_clock_went_back_gives_its_value_before_and_after_the_one_that_lacks_it() -> None:
    in_order = row_of_topic([*FIRST, CAME_BACK], [LAST])
    assert in_order == ("2.1", 11, None)
    assert row_of_topic(FIRST, [LAST, CAME_BACK]) == in_order
    assert row_of_topic(FIRST[:2], [LAST], [FIRST[2], CAME_BACK]) == in_order


def test_what_lacks_a_value_waits_for_it() -> None:
    people = People()
    people.batch(messages([(3, ("a", ("?", 3, None), [0]))]))
    assert people.shown == {}
    assert people.count[counters.UNAVAILABLE_VALUES] == 1
    people.batch(messages([(1, ("a", ("x", 1, None), []))]))
    assert people.shown == {"a": ("x", 3, None)}
    assert people.count[counters.STALE] == 0, "it gave a value"


def test_a_table_keeps_what_its_events_lack(spark: SparkSession, tmp_path: Path) -> None:
    """Queries, restarts, and joins of such tables are in integration/test_topic_order.py."""
    schema = f"id int, bio string, n int, {UNAVAILABLE} array<int>, lsn bigint"
    read = Table.from_files(spark, tmp_path, key="id", version="lsn", schema=schema, format="json", name="people")
    people = Table._of(completed(read._planned, Settings.of(spark)))
    assert people._planned.row_type.names == ["id", "bio", "n"]
    assert "values that an event lacks are those of the row before" in people.describe()
    driver = Driver(people)
    lines = [
        {"id": 1, "bio": "long", "n": 1, UNAVAILABLE: None, "lsn": 1},
        {"id": 2, "bio": None, "n": 1, UNAVAILABLE: [1], "lsn": 2},
        {"id": 1, "bio": None, "n": 2, UNAVAILABLE: [1], "lsn": 3},
        {"id": 2, "bio": "short", "n": 1, UNAVAILABLE: None, "lsn": 4},
    ]
    feed_lines(driver, "people", lines)
    driver.run()
    assert driver.table == {1: {"bio": "long", "n": 2}, 2: {"bio": "short", "n": 1}}
