"""Events of Debezium's own snapshots among changes; ``test_record_order`` has the rows of a snapshot among records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructType

from fkjoin.codec.arrays import BYTES
from fkjoin.codec.messages import JOINED
from fkjoin.kafka import Debezium
from fkjoin.kafka.formats import key_reader, reader
from fkjoin.spark.topic_records import TopicRecords
from tests.support.laws import law
from tests.support.topic_changes import TOPIC, Kept, Place, version


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


@law(120, st.tuples(CHANGES, CHANGES, CHANGES, CHANGES, CHANGES), st.data())
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
    kept = Kept("resolve")
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
        kept.take(pa.table([key, version(*places), value, gone, read.column("ts")], schema=JOINED))
    assert {int(key): int(value) for key, value in kept.live.items()} == capture.table


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
