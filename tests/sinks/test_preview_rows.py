"""Rows of a preview, whatever a table's changes are and however they are cut into batches; and how little it reads."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from fkjoin.analysis.aggregates import Options
from fkjoin.kafka.connection import Connection
from fkjoin.lowering.recipes import Recipe
from fkjoin.sinks import preview

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


@pytest.mark.parametrize("seed", range(4))
def test_fewer_rows_than_wanted_are_the_table_and_as_many_are_rows_of_it(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
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


def other(**named: Any) -> dict[str, Any]:
    connection, learned = named.pop("connection", None), named.pop("learned", None)
    return preview._other(Recipe(print, (), named, learned=learned, connection=connection))


def test_sources_are_read_a_little_at_a_time_whatever_the_user_said() -> None:
    topic = Connection("topic", "broker:9092", {}, 1)
    given = {"maxoffsetspertrigger": 5, "minOffsetsPerTrigger": 1, "kafka.group.id": "x"}
    assert other(options=given, connection=topic) == {"options": {"kafka.group.id": "x", "maxOffsetsPerTrigger": 10_000}}
    assert other(options=None) == {"options": {"maxBytesPerTrigger": 8 << 20}}
    assert other(options={"maxFilesPerTrigger": 1}, schema=None, learned=ROW)["schema"] == ROW


def test_nothing_waits_for_an_interval_or_for_another_query() -> None:
    assert other(emit="periodic 1 hour", deployment="staged", wire="wrapper") == {"emit": "on-change", "deployment": "fused"}
    assert other(emit="on-update", deployment="fused", name=None) == {}
    assert other(options=Options(emit="on-close")) == {"options": Options(emit="on-close")}, "an open window has no result yet"
    staged = Options("name", "periodic", "staged", "shop", "3.4", True)
    assert other(options=staged) == {"options": Options("name", "on-change", "fused", "shop", None, True)}
