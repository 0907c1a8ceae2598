"""Changes of a key with one version: the content decides, whatever their order, their batches and how often they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fkjoin import fk_join
from fkjoin.codec.messages import JOINED, LEFT
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.merge import merge
from fkjoin.stages.resolve import resolve
from fkjoin.state import MemoryStore
from fkjoin.testing import REORDER, AggregateTest, Change, Driver, EnrichTest, FlatMapTest, JoinTest, KeyJoinTest, event
from tests.support import merging, multi_join
from tests.support.driven import feed_lines
from tests.support.laws import law
from tests.support.plans.topologies import Sources
from tests.support.versions import message_table, version

TIMES: Any = {"now_ms": 0, "retention_ms": 1000}
NAMES = [{"to": "b", "n": 1}, {"to": "b", "n": 2}, {"to": "c", "n": 1}, None]
ROWS = st.sampled_from(NAMES)
SOME = st.lists(st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("bc"), st.integers(1, 2), ROWS), max_size=7)

Run = Callable[[list[list[Change]]], tuple[Any, Counters]]


def of_kit(make: Callable[[], Any], side: str | None, *ends: Any) -> Run:
    """A kit that is fed with the changes of one side, or of both."""

    def run(batches: list[list[Change]]) -> tuple[Any, Counters]:
        kit = make()
        for batch in batches:
            kit.feed(*(one for one in batch if side in (None, one.side)), *ends)
        if isinstance(kit, EnrichTest):
            return kit.feed(event({"to": "b"}), event({"to": "c"})), kit.count
        return kit.table, kit.count

    return run


def merged(batches: list[list[Change]]) -> tuple[Any, Counters]:
    store, count, rows = MemoryStore(), Counters(), dict[str, bytes]()
    for batch in batches:
        events = [(int(one.side == "right"), one.key, one.version or 0, _bytes(one)) for one in batch]
        merging.apply(merge(merging.messages(events), store, count, 2, source=b"a-source", **TIMES), rows)
    return rows, count


def viewed(batches: list[list[Change]]) -> tuple[Any, Counters]:
    """A table whose rows are kept as hashes."""
    store, count, rows = MemoryStore(), Counters(), dict[str, bytes]()
    for batch in batches:
        came = []
        for change in batch:
            mark = version(change.version or 0, source=b"a-source", tied=True)
            came.append((change.key, mark, _bytes(change), change.row is None, 0))
        read = message_table(JOINED, came)
        merging.apply(resolve(read, store, count, as_read=True, **TIMES), rows)
    return rows, count


def joined_at_once(batches: list[list[Change]]) -> tuple[Any, Counters]:
    join = multi_join.MemoryMultiJoin(("left", "left"), in_order=True)
    for batch in batches:
        changes = []
        for one in batch:
            number = LEFT if one.side == "left" else int(one.key == "c")
            text, foreign = None, (None, None)
            if one.row is not None:
                text, foreign = str(one.row["n"]), (one.row["to"], "c")
            changes.append(multi_join.Change(number, one.key, one.version or 0, text, foreign))
        join.batch(changes)
    return dict(join.joined), join.count


def _bytes(change: Change) -> bytes | None:
    return None if change.row is None else str(change.row).encode()


def _count(key: str, row: Any, n: int) -> int:
    return n + int(row["n"])


RUNS: dict[str, Run] = {
    "join": of_kit(lambda: JoinTest("to", how="left"), None),
    "staged join": of_kit(lambda: JoinTest("to", how="left"), None, REORDER),
    "join by primary key": of_kit(lambda: KeyJoinTest(how="outer"), None),
    "aggregate": of_kit(lambda: AggregateTest("to", 0, _count, lambda key, row, n: n - int(row["n"])), "left"),
    "flat map": of_kit(lambda: FlatMapTest(lambda key, row: [row], "to"), "left"),
    "enrich": of_kit(lambda: EnrichTest(on="to", how="left"), "left"),
    "merge": merged,
    "view": viewed,
    "multi-way join": joined_at_once,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@law(36, drawn=SOME, cuts=st.sets(st.integers(1, 6)), data=st.data())
def test_the_order_of_changes_with_one_version_makes_no_difference(run: Run, drawn: Any, cuts: set[int], data: Any) -> None:
    changes = [Change(side, key, row, version) for side, key, version, row in drawn]
    wanted, _ = run([sorted(changes, key=str)])
    shuffled = data.draw(st.permutations(changes))
    bounds = [0, *sorted(cut for cut in cuts if cut < len(changes)), len(changes)]
    batches = [shuffled[start:end] for start, end in itertools.pairwise(bounds)]
    assert run(batches)[0] == wanted
    assert run([*batches, *batches])[0] == wanted


def test_ties_are_counted_and_repeats_are_none() -> None:
    one, other, gone = (Change("left", "a", row, 1) for row in (*NAMES[:2], None))
    feed = RUNS["join"]
    for batches, ties, stale in (([[one], [one]], 0, 1), ([[one], [one], [other]], 1, 2), ([[one, other, one]], 1, 2)):
        _, count = feed(batches)
        assert (count[counters.TIES], count[counters.STALE]) == (ties, stale)
    for batches in ([[one], [gone]], [[gone], [one]]):
        table, _ = feed(batches)
        assert set(table) == {"a"}, "a row wins over a deletion with its version"


def test_rows_of_a_file_end_alike_in_whatever_order_their_lines_come(spark: SparkSession, tmp_path: Path) -> None:
    lines = [{"to": to, "n": n, "lsn": 7} for to, n in (("a", 1), ("b", 2), ("b", 3))]
    orders = Sources(spark, tmp_path, {}).files("orders", "id", "id int, to string, n int")
    driver = Driver(fk_join(orders, orders, "n", how="left", joiner=["left.to", "left.n"], name="joined"))
    for key, rows in ((1, lines), (2, lines[::-1])):
        feed_lines(driver, "orders", [{"id": key, **row} for row in rows])
    driver.run()
    assert driver.table[1] == driver.table[2]
