"""Aggregates of members against a plain recomputation, and what a change of a large group writes."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fkjoin.codec.arrays import Bytes
from fkjoin.codec.expressions import Part
from fkjoin.codec.messages import GROUPED
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.folds.bulk import bulk_column, collected_column, first_column, require_orders
from fkjoin.folds.cogrouped import CoFold
from fkjoin.folds.fold import AggregateColumn, Fold, Having
from fkjoin.folds.members import Collected, ColumnForm
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.regroup import regroup
from fkjoin.state import BucketStore, MemoryStore
from tests.support import grouping
from tests.support.grouping import SOURCE, TIMES, Change, Grouping
from tests.support.laws import law
from tests.support.stores import Log

VALUE = pa.schema(
    [("n", pa.int64()), ("t", pa.string()), ("x", pa.float64()), ("l", pa.list_(pa.int64())), ("key", pa.string())]
)
N, T, X, L, KEY = range(5)
ALONE: dict[str, Any] = {"descending": False, "delimiter": ""}

COLLECTED: tuple[AggregateColumn, ...] = (
    bulk_column("ns", "count_distinct", N, VALUE, "n"),
    bulk_column("xs", "count_distinct", X, VALUE, "x"),
    bulk_column("ls", "count_distinct", L, VALUE, "l"),
    collected_column("list", "collect_list", T, order=[KEY], schema=VALUE, text="t", **ALONE),
    collected_column("lists", "collect_list", L, order=[KEY], schema=VALUE, text="l", **ALONE),
    collected_column("by_n", "collect_list", T, order=[N, T], schema=VALUE, text="t", descending=True, delimiter=""),
    collected_column("by_t_x", "collect_list", N, order=[T, X, N], schema=VALUE, text="n", **ALONE),
    collected_column("n_set", "collect_set", N, order=[], schema=VALUE, text="n", **ALONE),
    collected_column("x_set", "collect_set", X, order=[], schema=VALUE, text="x", **ALONE),
    collected_column("t_set", "collect_set", T, order=[], schema=VALUE, text="t", **ALONE),
    collected_column("text", "string_agg", T, order=[KEY], schema=VALUE, text="t", descending=True, delimiter=", "),
    first_column("most", "max_by", T, by=N, schema=VALUE, text="n", most=None),
    first_column("least", "min_by", T, by=X, schema=VALUE, text="x", most=None),
    first_column("three", "max_by", T, by=N, schema=VALUE, text="n", most=3),
    first_column("two", "min_by", N, by=T, schema=VALUE, text="t", most=2),
)


def recomputed(changes: Iterable[Change]) -> dict[str, tuple[Any, ...]]:
    """The aggregated table from nothing, by plain Python; compare it with ``comparable``."""
    return grouping.recomputed(changes, _collected)


def _collected(rows: list[tuple[Any, ...]]) -> Iterable[Any]:
    for place in (N, X, L):
        yield len({_equal(row[place]) for row in rows if row[place] is not None})
    by_key = sorted(rows, key=lambda row: row[KEY].encode())
    yield [row[T] for row in by_key if row[T] is not None]
    yield [row[L] for row in by_key if row[L] is not None]
    yield [row[T] for row in _sorted(rows, (N, True), (T, True)) if row[T] is not None]
    yield [row[N] for row in _sorted(rows, (T, False), (X, False), (N, False)) if row[N] is not None]
    for place in (N, X, T):
        values = {_equal(row[place]): row[place] for row in rows if row[place] is not None}.values()
        yield sorted((_plain(value) for value in values), key=_order)
    texts = [row[T] for row in reversed(by_key) if row[T] is not None]
    yield ", ".join(texts) if texts else None
    by_n = [row[T] for row in _sorted(rows, (N, True), (T, False)) if row[N] is not None]
    by_x = [row[T] for row in _sorted(rows, (X, False), (T, False)) if row[X] is not None]
    yield by_n[0] if by_n else None
    yield by_x[0] if by_x else None
    yield by_n[:3]
    yield [row[N] for row in _sorted(rows, (T, False), (N, False)) if row[T] is not None][:2]


def _sorted(rows: list[tuple[Any, ...]], *by: tuple[int, bool]) -> list[tuple[Any, ...]]:
    """Rows by some columns, the last one first: a sort keeps what is equal as it stands."""
    found = list(rows)
    for place, descending in reversed(by):
        found.sort(key=lambda row: _order(row[place]), reverse=descending)
    return found


def _order(value: Any) -> Any:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


def _equal(value: Any) -> Any:
    """Something hashable that is equal where Spark's values are."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def comparable(table: dict[str, tuple[Any, ...]]) -> str:
    """A text that is equal where tables are, not-a-numbers and signs of zeros included."""
    return repr(sorted(table.items()))


VALUES = st.tuples(
    st.none() | st.integers(-2, 2) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    st.none() | st.sampled_from(["", "\0", "a", "a\0", "a\xff", "ab", "b", "\U0001f43c"]),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    st.none() | st.lists(st.integers(0, 1) | st.none(), max_size=2),
)


def _changed(key: str, version: int, group: str | None, values: tuple[Any, ...], ts: int) -> Change:
    return Change(key, version, group, (*values, key), ts)


CHANGES = st.lists(
    st.builds(
        _changed,
        key=st.sampled_from(["a", "b", "c", "d", "a\0", "\U0001f43c"]),
        version=st.integers(0, 40),
        group=st.sampled_from(["g", "g", "g", "h", "", "g\xff", None]),
        values=VALUES,
        ts=st.integers(0, 9),
    ),
    min_size=4,
    max_size=14,
    unique_by=lambda change: (change.key, change.version),
)


@law(24, changes=CHANGES, seed=st.integers(0, 1 << 30))
def test_whatever_the_order_behind_a_topic_the_end_is_the_same(changes: list[Change], seed: int) -> None:
    """Messages between the stages come in any order, some of them twice, a few at a time; the state ends the same, too."""
    rng, ends = random.Random(seed), []
    for shuffled in (False, True):
        grouping = Grouping(VALUE, *COLLECTED)
        sent = [GROUPED.empty_table()]
        for at in range(0, len(changes), 4):
            sent.append(regroup(grouping.messages(changes[at : at + 4]), grouping.rows, grouping.count, as_read=True, **TIMES))
        messages = pa.concat_tables(sent)
        places = list(range(len(messages)))
        if shuffled:
            places += rng.sample(places, len(places) // 2)
            rng.shuffle(places)
        for at in range(0, len(places), 5):
            portion = messages.take(pa.array(places[at : at + 5], pa.int64()))
            how: Any = {"source": SOURCE, "guarded": True, **TIMES}
            grouping.apply(aggregate(portion, grouping.groups, grouping.count, grouping.fold, **how))
        ends.append((comparable(grouping.table), [entry for entry in grouping.groups.items() if entry[0][:1] == b"o"]))
    assert ends[0] == ends[1]
    assert ends[0][0] == comparable(recomputed(changes))


def test_of_rows_with_one_value_no_more_are_shown_than_are_wanted() -> None:
    grouping = Grouping(VALUE, *COLLECTED[-2:])
    grouping.batch(Change(key, 1, "g", (7, "q", None, None, key)) for key in "defg")
    assert grouping.table == {"g": (["q"] * 3, [7] * 2)}


class Written(MemoryStore):
    """A store that knows what was written to it last."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[bytes, bytes | None] = {}

    def write(self, keys: Bytes, values: Bytes) -> None:
        self.written.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        super().write(keys, values)


@pytest.mark.parametrize("every", [False, True])
def test_a_change_of_one_member_writes_as_much_in_a_group_of_any_size(every: bool) -> None:
    """One entry for the value that goes and one for the value that comes, for each column; and the group's record."""
    written = []
    for size in (100, 1_000):
        grouping = Grouping(VALUE, *COLLECTED, every=every)
        grouping.groups = Written()
        grouping.batch([Change(f"{at:06}", 1, "g", (at, f"{at:06}", None, None, f"{at:06}")) for at in range(size)])
        grouping.groups.written.clear()
        grouping.batch([Change("000007", 2, "g", (7, "000050 and a half", None, None, "000007"))])
        assert len(grouping.table["g"][3]) == size
        assert grouping.table["g"][3][7] == "000050 and a half"
        keys = grouping.groups.written
        written.append((len(keys), sum(len(key) + len(value or b"") for key, value in keys.items())))
    assert written[0] == written[1]
    assert written[0][0] < 2 * len(COLLECTED)
    assert written[0][1] < 2_000


def test_a_bucket_store_reads_no_more_of_a_group_than_the_first_members(monkeypatch: pytest.MonkeyPatch) -> None:
    three = first_column("most", "max_by", T, by=N, schema=VALUE, text="n", most=3)
    grouping, log = Grouping(VALUE, three, bulk_column("ns", "count_distinct", N, VALUE, "n")), Log()
    read = []
    scanned = BucketStore._scanned

    def counted(self: BucketStore, *how: Any) -> Any:
        for page in scanned(self, *how):
            read.append(len(page.keys))
            yield page

    monkeypatch.setattr(BucketStore, "_scanned", counted)
    with tempfile.TemporaryDirectory(prefix="fkjoin-test-") as folder:
        for part in ([(at, at, f"{at}") for at in range(5_000)], [(4_999, 1, "down")], [(7, 9_999, "up"), (8, 8, "same")]):
            read.clear()
            with BucketStore(log, Path(folder)) as store:
                grouping.groups = store
                rows = ((f"k{key}", (n, t, None, None, "")) for key, n, t in part)
                grouping.batch(Change(key, len(log.working), "g", values) for key, values in rows)
                store.commit()
            log.commit()
        assert grouping.table["g"][0] == ["up", "4998", "4997"]
        assert sum(read) < 20


def _more_than(column: str, of: int) -> Having:
    number = Part("AttributeReference", pa.int64(), argument=column)
    part = Part("GreaterThan", pa.bool_(), (number, Part("Literal", pa.int64(), argument=of)))
    return Having(part, pa.schema([("group", pa.string())]), f"{column} > {of}")


@law(48, changes=CHANGES, cut=st.integers(1, 30), of=st.integers(-1, 2), every=st.booleans())
def test_having_is_a_filter_of_the_recomputation(changes: list[Change], cut: int, of: int, every: bool) -> None:
    """A group keeps its contents while it does not satisfy the condition; one without rows leaves nothing.

    More than -1 values, all groups have.
    """
    grouping = Grouping(VALUE, every=every)
    grouping.fold = Fold(VALUE, COLLECTED, having=_more_than("ns", of))
    for at in range(0, len(changes), cut):
        grouping.batch(changes[at : at + cut])
        wanted = {group: row for group, row in recomputed(changes[: at + cut]).items() if row[0] > of}
        assert comparable(grouping.table) == comparable(wanted)
    grouping.batch(change._replace(version=99, group=None) for change in changes)
    assert grouping.table == {}
    assert [entry for entry in grouping.groups.items() if entry[0][:1] == b"o"] == []


def test_a_condition_that_throws_stops_and_is_named() -> None:
    grouping = Grouping(VALUE)
    one = Part("Literal", pa.float64(), argument=1.0)
    rows = Part("Cast", pa.float64(), (Part("AttributeReference", pa.int64(), argument="ns"),))
    part = Part("GreaterThan", pa.bool_(), (Part("Divide", pa.float64(), (one, rows)), one))
    having = Having(part, pa.schema([("group", pa.string())]), "1 / ns > 1")
    grouping.fold = Fold(VALUE, (bulk_column("ns", "count_distinct", N, VALUE, "n"),), having=having)
    grouping.batch([Change("a", 1, "g", (1, None, None, None, "a"))])
    with pytest.raises(FkJoinError, match="having: 1 / ns > 1 cannot be evaluated: division by zero"):
        grouping.batch([Change("b", 1, "h", (None, None, None, None, "b"))])


def test_collected_columns_are_read_from_the_store_as_they_were_sent() -> None:
    grouping = Grouping(VALUE, *COLLECTED)
    grouping.batch([Change(f"{at}", 1, "gh"[at % 2], (at % 3, f"{at % 4}", None, [at % 2], f"{at}")) for at in range(9)])
    keys = pa.array([b"h", b"none", b"g"], pa.large_binary())
    firsts = {"most", "least", "three", "two"}
    assert set(grouping.fold.collected) == {one.name for one in COLLECTED if isinstance(one, Collected)} - firsts
    for name, facts in grouping.fold.collected.items():
        at = grouping.fold.schema.get_field_index(name)
        found = ColumnForm.of_facts(facts, grouping.fold.schema.field(at).type).read(grouping.groups, facts["place"], keys)
        assert [found[0].as_py(), found[2].as_py()] == [grouping.table["h"][at], grouping.table["g"][at]]
        assert not found[1].as_py()


GOLDEN = {
    "6467": (
        "010211000800000000000000019ec9f7918d7dfc4080000000000000013b00000034bccfce2878acd7a9e591b4cfc9cd5d0f01000000000000000400"
        "0000040000000e000000000000000000000001000000060000000101000000780302000000000000000100000000000000"
    ),
    "6f000000000167018000000000000005": "0100000000000000010500000000000000",
    "6f01000000016701610000010100000078": "010000000000000006000000",
    "6f01000000016701620000010100000078": "010000000000000006000000",
    "6f02000000016701780000": "0200000000000000010100000078",
    "6f030000000167fe7ffffffffffffffa01780000010100000078": "010000000000000006000000",
}


def test_what_is_stored_is_what_this_release_has_always_stored() -> None:
    """Other bytes would be another format, and older checkpoints would not open."""
    columns = (
        bulk_column("ns", "count_distinct", N, VALUE, "n"),
        collected_column("list", "collect_list", T, order=[KEY], schema=VALUE, text="t", **ALONE),
        collected_column("set", "collect_set", T, order=[], schema=VALUE, text="t", **ALONE),
        first_column("most", "max_by", T, by=N, schema=VALUE, text="n", most=2),
    )
    grouping = Grouping(VALUE, *columns)
    grouping.batch([Change("a", 1, "g", (5, "x", None, None, "a"), 7), Change("b", 2, "g", (None, "x", None, None, "b"), 8)])
    assert {key.hex(): entry.hex() for key, entry in grouping.groups.items()} == GOLDEN


def test_what_cannot_be_is_refused() -> None:
    maps = pa.schema(
        [("m", pa.map_(pa.string(), pa.int64())), ("s", pa.struct([("m", pa.list_(pa.map_(pa.string(), pa.int64())))]))]
    )
    for place in (0, 1):
        with pytest.raises(TopologyError, match="count_distinct: it is .*, and maps cannot be compared; write array_sort"):
            bulk_column("it", "count_distinct", place, maps, "it")
        with pytest.raises(TopologyError, match="collect_set: it is .*, and maps cannot be compared; write array_sort"):
            collected_column("it", "collect_set", place, order=[], schema=maps, text="it", **ALONE)
    with pytest.raises(TopologyError, match=r"max_by: l is list.*, which has no order here; cast it"):
        first_column("it", "max_by", T, by=L, schema=VALUE, text="l", most=None)
    with pytest.raises(TopologyError, match=r"collect_list: l is list.*, which has no order here; cast it"):
        require_orders("collect_list", ["n", "l"], [N, L], VALUE)


def test_a_column_with_entries_is_among_the_first_256() -> None:
    """An entry's name has one byte for its column's place, also beside the columns of other tables."""
    count = bulk_column("n", "count", N, VALUE, "n")
    least = bulk_column("least", "min", N, VALUE, "n")
    with pytest.raises(TopologyError, match="agg: least is a list, .* among the first 256 columns: name it before sums"):
        Fold(VALUE, (count,) * 256 + (least,))
    many, few = Fold(VALUE, (least,) + (count,) * 255), Fold(VALUE, (least,))
    with pytest.raises(TopologyError, match="least is a list, .* among the first 256 columns"):
        CoFold((many, few))
    assert len(CoFold((few, many)).schema) == 257, "a table with few columns comes first"
    grouping = Grouping(VALUE, *(count,) * 255, bulk_column("last", "min", T, VALUE, "t"))
    grouping.batch([Change("a", 1, "g", (5, "x", None, None, "a"), 7)])
    assert grouping.table["g"] == (*[1] * 255, "x")
