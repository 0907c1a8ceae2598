"""Rows that become rows under keys of their own: the stages spread and owners, against a plain recomputation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.codec import pairs, versions
from fkjoin.codec.messages import GROUPED, unpack
from fkjoin.codec.pairs import Pairs
from fkjoin.errors import FkJoinError
from fkjoin.spark.packing_outputs import Gather, OutputLetters, PackOutputs
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.invariants import GuardedStore
from fkjoin.stages.owners import owners, shown_outputs
from fkjoin.stages.spread import spread
from fkjoin.state import MemoryStore
from tests.support.changes import take
from tests.support.flat_maps import Change, messages, recomputed
from tests.support.laws import law
from tests.support.versions import message_table, version

OUTPUTS = st.dictionaries(st.sampled_from(["a", "b", "c", ""]), st.sampled_from([b"x", b"y", b""]), max_size=3)


@st.composite
def histories(draw: Any) -> list[Change]:
    """Changes of a few rows; all changes of one version of a row are the same."""
    made = draw(
        st.dictionaries(st.tuples(st.sampled_from("pqr"), st.integers(0, 6)), st.none() | OUTPUTS, min_size=4, max_size=14)
    )
    known = [Change(key, version, outputs) for (key, version), outputs in made.items()]
    return draw(st.lists(st.sampled_from(known), min_size=6, max_size=30))


class FlatMap:
    """Both stages over memory, and the table that a reader of its changes has."""

    def __init__(self, *, every: bool = False) -> None:
        self.stores, self.count, self.every = (MemoryStore(), MemoryStore()), Counters(), every
        self.table: dict[str, bytes] = {}
        self.versions: dict[str, list[int]] = defaultdict(list)

    def batch(self, changes: Sequence[Change], now_ms: int = 0) -> list[dict[str, Any]]:
        how: Any = {"now_ms": now_ms, "retention_ms": 1000, "every": self.every}
        first, second = (GuardedStore(store, "flat") for store in self.stores)
        outputs = spread(messages(changes), first, self.count, as_read=True, **how)
        assert outputs.schema == GROUPED
        made = owners(outputs, second, self.count, source=b"a-mapped", **how).to_pylist()
        for one in made:
            key = one["key"].decode()
            take(self.table, key, one["operation"], one["value"], every=self.every)
            self.versions[key].append(versions.decode(one["version"])[0][1][0])
        return made


@law(120, changes=histories(), cut=st.integers(1, 9), every=st.booleans())
def test_the_table_is_what_the_rows_of_the_moment_make(changes: list[Change], cut: int, every: bool) -> None:
    """Versions in any order, changes twice, batches cut anywhere."""
    mapping = FlatMap(every=every)
    for start in range(0, len(changes), cut):
        mapping.batch(changes[start : start + cut])
        assert mapping.table == recomputed(changes[: start + cut])
        assert mapping.batch(changes[: start + cut]) == [], "what comes again changes nothing"
    assert all(numbers == sorted(set(numbers)) for numbers in mapping.versions.values()), "versions only grow"


def test_a_row_that_another_hides_is_counted() -> None:
    mapping = FlatMap()
    mapping.batch([Change("q", 9, {"k": b"of q"})])
    assert mapping.count[counters.HIDDEN] == 0
    mapping.batch([Change("p", 1, {"k": b"of p"})])
    assert mapping.table == {"k": b"of p"}
    assert mapping.count[counters.HIDDEN] == 1


def test_of_two_changes_of_an_output_the_newer_counts() -> None:
    rows = [("k", "p", version(number), None, body, number) for number, body in ((2, "new"), (1, "old"))]
    changes = message_table(GROUPED, rows)
    for came in (changes, changes.take([1, 0])):
        (made,) = owners(came, MemoryStore(), Counters(), source=b"a-mapped", now_ms=0, retention_ms=1).to_pylist()
        assert (made["value"], made["ts"]) == (b"new", 2)


def test_marks_end_and_versions_go_on() -> None:
    mapping = FlatMap()
    mapping.batch([Change("p", 1, {"k": b"x"})], now_ms=5)
    mapping.batch([Change("p", 2, None)], now_ms=6)
    assert mapping.batch([Change("p", 1, {"k": b"x"})], now_ms=1000) == []
    assert all(len(list(store.items())) == 2 for store in mapping.stores), "a marker and its due entry"
    mapping.batch([Change("q", 1, {"l": b"x"})], now_ms=2000)
    assert [len(list(store.items())) for store in mapping.stores] == [1, 1]
    mapping.batch([Change("p", 3, {"k": b"x"})], now_ms=2001)
    assert mapping.versions["k"] == [5, 6, 2001]


def test_every_update_is_sent_if_wanted() -> None:
    mapping = FlatMap(every=True)
    mapping.batch([Change("p", 1, {"k": b"x", "l": b"x"})])
    made = mapping.batch([Change("p", 2, {"k": b"x"})])
    assert {(one["key"], one["value"]) for one in made} == {(b"k", b"x"), (b"l", None)}


def row_batches(rows: Sequence[tuple[str, Sequence[tuple[str | None, str | None]]]], cut: int) -> Iterator[pa.RecordBatch]:
    """Rows as Spark gives them to Python: one line for each output or for a row without any, cut anywhere."""
    lines = [line for key, made in rows for line in ([(key, at, one) for at, one in enumerate(made)] or [(key, None, None)])]
    keys, places, made = ([line[at] for line in lines] for at in range(3))
    columns: dict[str, pa.Array] = {
        "key": pa.array([{"id": key} for key in keys], pa.struct([("id", pa.string())])),
        "deleted": pa.array([False] * len(lines)),
        "version": pa.array([{"v0": 1}] * len(lines), pa.struct([("v0", pa.int64())])),
        "source": pa.array([b"a-source"] * len(lines), pa.binary()),
        "ts": pa.array([None] * len(lines), pa.int64()),
        "problem": pa.array([one[1] if one else None for one in made], pa.string()),
        "place": pa.array(places, pa.int32()),
        "output": pa.array([{"k": one[0] if one else None} for one in made], pa.struct([("k", pa.string())])),
        "row": pa.array([{"k": one[0]} if one else None for one in made], pa.struct([("k", pa.string())])),
    }
    batch = pa.record_batch(columns)
    for start in range(0, len(lines), cut):
        yield batch.slice(start, cut)


KEY, TEXT = pa.schema([("id", pa.string())]), pa.schema([("k", pa.string())])


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 100])
def test_outputs_are_put_together_wherever_spark_cuts_them(cut: int) -> None:
    """Outputs of a row have a key twice, a null key or an error, or there are none."""
    given_rows = [
        ("1", [("a", None), ("b", None), ("c", None)]),
        ("2", []),
        ("3", [("a", None), ("b", None), ("a", None)]),
        ("4", [("a", None), ("x", "it throws"), ("y", "it throws, too")]),
        ("5", [(None, None), ("b", None)]),
        ("6", []),
    ]
    pack = PackOutputs(KEY, Gather(TEXT, TEXT, "flat_map"), 1)
    found, counted = dict[str, list[str]](), Counters()
    for batch in pack(row_batches(given_rows, cut)):
        for line in batch.to_pylist():
            if line["counter"] is not None:
                counted[line["counter"]] += line["count"]
            elif line["payload"]:
                for one in unpack(line["payload"]).to_pylist():
                    outputs = pairs.decode(pa.array([one["value"]], pa.large_binary()))
                    found[one["key"].decode()] = [key.decode() for key in outputs.first.to_pylist()]
    assert found == {"1": ["a", "b", "c"], "2": [], "5": ["b"], "6": []}
    reasons = {name.removeprefix("dead-letter:") for name in counted} - {"dead-letters", "null-key-dropped"}
    assert (counted["dead-letters"], counted["null-key-dropped"]) == (2, 1)
    twice = "flat_map: two of its rows have the key a; number them, as in transform(items, (item, n) -> …)"
    assert twice in reasons, "the commonest, or the first of them"
    assert reasons <= {twice, "it throws"}, "of each batch that Spark cuts"
    raw = [batch.append_column("raw", batch.column("key")) for batch in row_batches(given_rows, cut)]
    letters = OutputLetters(pa.schema([("raw", pa.struct([("id", pa.string())])), ("problem", pa.string())]), pack.gather)
    assert [(line["raw"]["id"], line["problem"]) for batch in letters(iter(raw)) for line in batch.to_pylist()] == [
        ("3", twice),
        ("4", "it throws"),
    ]
    failing = replace(pack, failing="flat_map of orders")
    with pytest.raises(FkJoinError, match=r"^flat_map of orders, key 3: two of its rows .* are set aside$"):
        list(failing(row_batches(given_rows, cut)))


@law(
    100,
    made=st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=5), st.binary(max_size=3)), unique_by=lambda one: one[:2]),
)
def test_lists_of_pairs_are_sets(made: list[tuple[int, bytes, bytes]]) -> None:
    def encoded(given: list[tuple[int, bytes, bytes]]) -> pa.Array:
        columns = [pa.array([one[at] for one in given], pa.large_binary()) for at in (1, 2)]
        return pairs.encode(Pairs(np.array([row for row, *_ in given], np.int64), *columns), 5)

    lists = encoded(made)
    assert lists.equals(encoded(made[::-1]))
    found = pairs.decode(lists)
    assert list(zip(found.row.tolist(), found.first.to_pylist(), found.second.to_pylist(), strict=True)) == sorted(made)
    assert [one is None for one in lists.to_pylist()] == [row not in {one[0] for one in made} for row in range(5)]
    firsts = {row: second for row, _, second in sorted(made, reverse=True)}
    assert shown_outputs(lists).to_pylist() == [firsts.get(row) for row in range(5)]
