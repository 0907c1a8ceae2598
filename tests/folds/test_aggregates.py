"""Aggregates against a plain recomputation after every batch, and what each kind of column promises."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.errors import FkJoinError
from fkjoin.folds.extremes import Extreme, sorting
from fkjoin.folds.sums import Count, DecimalSum, DoubleSum, WholeSum
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.regroup import regroup
from tests.support.grouping import CHANGES, COLUMNS, SOURCE, TIMES, VALUE, Change, Grouping, recomputed
from tests.support.laws import law


@law(36, changes=CHANGES, cut=st.integers(1, 7))
def test_after_every_batch_the_aggregates_are_those_of_a_plain_recomputation(changes: list[Change], cut: int) -> None:
    """Batches come twice.  However changes are cut into batches, state is the same in the end, but for versions."""
    grouping, whole = Grouping(VALUE, *COLUMNS), Grouping(VALUE, *COLUMNS)
    for start in range(0, len(changes), cut):
        part = changes[start : start + cut]
        grouping.batch(part)
        sent = len(grouping.sent)
        grouping.batch(part)
        assert len(grouping.sent) == sent, "what comes again changes nothing"
        assert grouping.table == recomputed(changes[: start + cut])
    whole.batch(changes)
    extremes = [{key: value for key, value in one.groups.items() if key[:1] == b"o"} for one in (whole, grouping)]
    assert extremes[0] == extremes[1]


def test_what_was_added_and_taken_back_leaves_nothing_of_a_double() -> None:
    grouping = Grouping(pa.schema([("x", pa.float64())]), DoubleSum("x", 0, "sum"))
    grouping.batch([Change("a", 1, "g", (1e300,)), Change("b", 1, "g", (0.1,)), Change("c", 1, "g", (math.inf,))])
    assert grouping.table == {"g": (math.inf,)}
    grouping.batch([Change("d", 1, "g", (-math.inf,))])
    assert math.isnan(grouping.table["g"][0])
    grouping.batch([Change("a", 2, None), Change("c", 2, None), Change("d", 2, "g", (math.nan,))])
    assert math.isnan(grouping.table["g"][0])
    grouping.batch([Change("d", 3, None)])
    assert grouping.table == {"g": (0.1,)}
    grouping.batch([Change("a", 3, "g", (1.7e308,)), Change("b", 2, "g", (1.7e308,))])
    assert grouping.table == {"g": (math.inf,)}


def test_a_sum_that_does_not_fit_stops_and_names_the_group() -> None:
    whole, most = WholeSum("total", 0, "sum"), (1 << 63) - 1
    cast, nines = DecimalSum("total", 0, "sum", 38, 0), Decimal("9" * 38)
    assert total(whole, most, 2, -3) == most - 1
    assert total(cast, Decimal(most), Decimal(1)) == most + 1
    with pytest.raises(FkJoinError, match=r"total of group b'g' does not fit into bigint: cast .* decimal"):
        total(whole, most, 1)
    with pytest.raises(FkJoinError, match=r"total of group b'g' does not fit into decimal128\(38, 0\)"):
        total(cast, nines, Decimal(1))


def total(column: WholeSum | DecimalSum, *values: Any) -> Any:
    """The sum of rows with these values."""
    kind = pa.int64() if isinstance(column, WholeSum) else pa.decimal128(38, 0)
    grouping = Grouping(pa.schema([("n", kind)]), column)
    grouping.batch(Change(f"k{at}", 1, "g", (value,)) for at, value in enumerate(values))
    return grouping.table["g"][0]


NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])


@given(st.lists(NUMBERS, min_size=1), st.lists(st.binary(max_size=4), min_size=1))
def test_values_sort_as_their_bytes_do(numbers: list[float], texts: list[bytes]) -> None:
    spark_order = sorted(numbers, key=lambda x: (math.isnan(x), 0.0 if math.isnan(x) else x))
    assert sorting(pa.array(spark_order)).to_pylist() == sorted(sorting(pa.array(numbers)).to_pylist())
    for kind, pick in (("min", min), ("max", max)):
        column = Extreme("it", 0, kind, pa.binary())  # type: ignore[arg-type]
        in_order = sorted(texts, key=lambda text: column._sorting(pa.array([text], pa.binary()))[0].as_py())
        assert in_order[0] == pick(texts)


def test_extremes_that_leave_are_followed_by_the_next_however_many_leave_at_once() -> None:
    grouping = Grouping(
        pa.schema([("n", pa.int64())]), Extreme("low", 0, "min", pa.int64()), Extreme("high", 0, "max", pa.int64())
    )
    grouping.batch([Change(f"k{n}", 1, "g", (n // 2,)) for n in range(2000)] + [Change("x", 1, "h", (7,))])
    assert grouping.table == {"g": (0, 999), "h": (7, 7)}
    grouping.batch([Change("k0", 2, None)])
    assert grouping.table["g"] == (0, 999), "there is another 0"
    grouping.batch([Change(f"k{n}", 2, None) for n in range(1, 1000)])
    assert grouping.table["g"] == (500, 999)
    grouping.batch([Change(f"k{n}", 2, None) for n in range(1100, 2000)])
    assert grouping.table["g"] == (500, 549)
    grouping.batch([Change(f"k{n}", 2, None) for n in range(1000, 1100)])
    assert grouping.table == {"h": (7, 7)}
    assert not [key for key, _ in grouping.groups.items() if key.startswith(b"o") and b"g" in key]


def test_a_change_that_stays_in_its_group_is_one_message_and_one_that_moves_is_two() -> None:
    grouping = Grouping(EMPTY)

    def sent(*changes: Change) -> list[tuple[bytes, bool, bool]]:
        messages = regroup(grouping.messages(changes), grouping.rows, grouping.count, **TIMES).to_pylist()
        return sorted((one["key"], one["old"] is not None, one["new"] is not None) for one in messages)

    assert sent(Change("a", 1, "g", ("x",))) == [(b"g", False, True)]
    assert sent(Change("a", 2, "g", ("y",))) == [(b"g", True, True)]
    assert sent(Change("a", 3, "h", ("y",))) == [(b"g", True, False), (b"h", False, True)]
    assert sent(Change("a", 4, None)) == [(b"h", True, False)]
    assert sent(Change("a", 5, None), Change("b", 5, None)) == []


EMPTY = pa.schema([("t", pa.string())])


def test_a_count_never_shows_a_value_in_between() -> None:
    """KIP-904's example: the count of "1" is 1 at 8 and 1 at 9, and never 0."""
    for every in (True, False):
        grouping = Grouping(EMPTY, Count("count"), every=every)
        grouping.batch([Change("1", 8, "1", ("",), 8)])
        grouping.batch([Change("1", 9, "1", ("",), 9)])
        assert grouping.sent == [("1", (1,), 8), ("1", (1,), 9)]
        assert grouping.count["idempotent-update-skip"] == 0, "both are sent"


def test_a_result_is_dropped_only_if_value_and_timestamp_are_unchanged() -> None:
    grouping = Grouping(EMPTY, Count("count"))
    grouping.batch([Change("a", 1, "g", ("x",), 5)])
    grouping.batch([Change("a", 2, "g", ("y",), 7)])
    assert grouping.sent[1:] == [("g", (1,), 7)], "the count is what it was, its timestamp is not"
    grouping.batch([Change("a", 3, "g", ("z",), 6)])
    assert len(grouping.sent) == 2
    assert grouping.count["idempotent-update-skip"] == 1


def test_versions_of_an_aggregate_go_up_also_when_a_group_ends_and_comes_back() -> None:
    grouping = Grouping(EMPTY, Count("count"))
    seen = []
    for version, group in enumerate(["g", None, "g", None, "g", None], 1):
        times: Any = {"now_ms": 5000 * (version == 6), "retention_ms": 1000}
        rows = regroup(grouping.messages([Change("a", version, group, ("",))]), grouping.rows, grouping.count, **times)
        results = aggregate(rows, grouping.groups, grouping.count, grouping.fold, source=SOURCE, **times)
        seen += [versions.decode(one)[0][1][0] for one in results.column("version").to_pylist()]
    assert seen == [1, 2, 3, 4, 5, 5000], "never behind the clock, should a mark be gone"


ROWS_GOLDEN = {
    "6461": "010111000900000000000000019ec9f7918d7dfc408000000000000003",
    "6462": (
        "010211000800000000000000019ec9f7918d7dfc40800000000000000201000000670bfaffffffffffffff9a99999999"
        "99c93f000000000000000000000000000000000100000079"
    ),
    "6463": "010111000000000000000000019ec9f7918d7dfc408000000000000004",
    "7400000000000003e86461": "019ec9f7918d7dfc408000000000000003",
    "7400000000000003e86463": "019ec9f7918d7dfc408000000000000004",
}
GROUPS_GOLDEN = {
    "6467": (
        "010211000900000000000000019ec9f7918d7dfc4080000000000000022e000000170100000000000000faffffffffff"
        "ffff9a9999999999c93f000000000000000000000000000000000100000079ff1f010000000000000001000000000000"
        "00fffffffffffffffffaffffff0000000001000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000100000000000000090000000000000001000000caffcdcccccccccc0c79"
    ),
    "6f04000000016786ffff": "0100000000000000010100000079",
}


def test_what_is_stored_is_what_this_release_has_always_stored() -> None:
    """Other bytes would be another format, and older checkpoints would not open."""
    value = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(10, 2)), ("t", pa.string())])
    sums = WholeSum("n", 0, "sum"), DoubleSum("x", 1, "avg"), DecimalSum("d", 2, "sum", 10, 2)
    grouping = Grouping(value, Count("rows"), *sums, Extreme("t", 3, "max", pa.string()))
    grouping.batch([Change("a", 1, "g", (5, 0.1, Decimal("1.25"), "x"), 7), Change("b", 2, "g", (-6, 0.2, None, "y"), 8)])
    grouping.batch([Change("a", 3, None, (), 9), Change("c", 4, None)])
    assert {key.hex(): entry.hex() for key, entry in grouping.rows.items()} == ROWS_GOLDEN
    assert {key.hex(): entry.hex() for key, entry in grouping.groups.items()} == GROUPS_GOLDEN
