"""Rows of a preview, whatever a table's changes are and however they are cut into batches; and how little it reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from fkjoin.analysis.emission import Emission
from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned, SourceBound, Undecoded, rebuilt
from fkjoin.plan.nodes import Join, Source
from fkjoin.plan.physical import Read, by_spark, reads
from fkjoin.sinks import preview
from tests.support.sampling import examples

SOURCE = Source("orders", ("id",), ("lsn",), None, None, ("n",), "files")
KEY = StructType().add("id", StringType()).add("at", LongType())
ROW = StructType([*KEY, *StructType().add("n", LongType())])
CHANGES = pa.schema([("id", pa.string()), ("at", pa.int64()), ("n", pa.int64()), ("_operation", pa.string())])


KEYS = st.sampled_from([*product("ab", range(2))])
HISTORIES = st.lists(st.dictionaries(KEYS, st.sampled_from((None, 1, 2))), max_size=14)
"""Batches, each with changes of some keys: at most one of each row, and None deletes it."""


def batch_of(changes: dict[tuple[str, int], int | None]) -> Any:
    rows = [dict(zip(CHANGES.names, (*key, n, "update"), strict=True)) for key, n in changes.items()]
    for row in rows:
        if row["n"] is None:
            row["_operation"] = "delete"
    changed = pa.Table.from_pylist(rows, CHANGES)
    return SimpleNamespace(changes=SimpleNamespace(toArrow=lambda: changed))


@settings(max_examples=examples(1800))
@given(history=HISTORIES, n=st.integers(1, 4))
def test_fewer_rows_than_wanted_are_the_table_and_as_many_are_rows_of_it(history: list[Any], n: int) -> None:
    plan: Any = SimpleNamespace(key_type=KEY, key=tuple(KEY.names))
    rows, table, read = preview._Rows(plan, ROW, n), dict[tuple[str, int], int](), 0
    for number, changes in enumerate(history):
        if not rows.ended.is_set():  # later ones do not count
            read += 1
            table = {key: n for key, n in {**table, **changes}.items() if n is not None}
        rows.write(batch_of(changes), "query", number)
    shown = {(row["id"], row["at"]): row["n"] for row in rows.table.to_pylist()}
    assert len(rows.table) == len(shown) == min(n, len(table))
    assert shown.items() <= table.items()
    assert read <= preview.MOST_BATCHES
    assert rows.ended.is_set() == (len(table) >= n or read == preview.MOST_BATCHES)


def bounded(node: Any, bound: Any) -> Planned:
    planned = Planned(node, KEY, ROW, cast(Any, None), bound)
    return rebuilt(planned, partial(preview._bounded, {}))


def test_sources_are_read_a_little_at_a_time_whatever_the_user_said() -> None:
    given = {"maxoffsetspertrigger": "5", "minOffsetsPerTrigger": "1", "kafka.group.id": "x"}
    topic, files = Read("kafka", given), Read("json", {"maxFilesPerTrigger": "1"}, "orders")
    rows = by_spark(lambda frame: frame, topic)
    source = bounded(SOURCE, SourceBound(rows, undecoded=Undecoded(topic, None, files))).bound
    (of_rows,), (of_lines,) = reads(source.rows), reads(source.undecoded.lines)
    assert of_rows is of_lines, "a source is read once"
    assert of_rows.options == {"kafka.group.id": "x", "maxOffsetsPerTrigger": "10000"}
    assert source.undecoded.snapshot.options == {"maxBytesPerTrigger": str(8 << 20)}


def test_nothing_waits_for_an_interval_or_for_another_query() -> None:
    node = Join("joined", SOURCE, SOURCE, "inner", "x", None, ("to", "back"), "periodic 1 hour")
    staged: Any = "topics"
    bound = JoinBound(cast(Any, None), cast(Any, None), None, {}, Emission.of(node.emit), staged, cast(Any, None))
    made = bounded(node, bound)
    assert (made.node.topics, made.node.emit) == (None, "on-change")
    assert (made.bound.topics, made.bound.emission) == (None, Emission())
    update = replace(node, emit="on-update", topics=None)
    kept = bounded(update, replace(bound, emission=Emission.of("on-update"), topics=None))
    assert (kept.node, kept.bound.emission.every) == (update, True)
