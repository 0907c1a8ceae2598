"""Rows of a preview, whatever a table's changes are and however they are cut into batches; and how little it reads."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
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


def batch_of(changes: dict[tuple[str, int], int | None]) -> Any:
    """A batch as a query gives it: at most one change of each row."""
    rows = [
        {"id": key[0], "at": key[1], "n": n, "_operation": "delete" if n is None else "update"} for key, n in changes.items()
    ]
    changed = pa.Table.from_pylist(rows, CHANGES)
    return SimpleNamespace(changes=SimpleNamespace(toArrow=lambda: changed))


def history_of(chance: random.Random) -> list[dict[tuple[str, int], int | None]]:
    """Batches, each with changes of some keys in any order."""
    keys = [*product("ab", range(2))]
    batches = [chance.sample(keys, chance.randint(0, len(keys))) for _ in range(chance.choice((2, 3, 14)))]
    return [{key: chance.choice((None, None, 1, 2)) for key in batch} for batch in batches]


@pytest.mark.faults
def test_fewer_rows_than_wanted_are_the_table_and_as_many_are_rows_of_it() -> None:
    chance = random.Random(0)
    for _ in range(examples(1800)):
        check(history_of(chance), chance.randint(1, 4))


def check(history: list[dict[tuple[str, int], int | None]], n: int) -> None:
    of: Any = SimpleNamespace(key_type=KEY, key=tuple(KEY.names))
    rows, table, read = preview._Rows(of, ROW, n), dict[tuple[str, int], int](), 0
    for number, changes in enumerate(history):
        if rows.ended.is_set():
            rows.write(batch_of(changes), "query", number)  # is none of those that count
            continue
        read += 1
        table = {key: n for key, n in {**table, **changes}.items() if n is not None}
        rows.write(batch_of(changes), "query", number)
    found = {(row["id"], row["at"]): row["n"] for row in rows.table.to_pylist()}
    assert len(rows.table) == len(found) == min(n, len(table))
    assert found.items() <= table.items()
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
