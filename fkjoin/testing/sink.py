"""Tests of a table sink, for users' tests; ``fkjoin.testing`` has them."""

from __future__ import annotations

import copy
import datetime
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from fkjoin.spark.kinds import TIMES_OF_DAY
from fkjoin.testing.target import SCHEMA, Target, query_of, refused, same

if TYPE_CHECKING:
    from fkjoin.sinks import TableSink

_AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
_DAYS = [datetime.date(1, 1, 1), datetime.date(1582, 10, 10), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)]
_TIMES = [_AT, *(datetime.datetime(day.year, day.month, day.day, 23, 59, 59, 999_999, _AT.tzinfo) for day in _DAYS)]
_TEXTS = ["", "null", "a,\"b\"\n'c'\\N", "\\.", "?%s:x{}", " ä€😀\u2028 ", "\0", "a\\u0000"]
_FLOATS = [0.1, -0.0, float("inf"), float("-inf"), float("nan")]


def _whole(bits: int) -> list[int]:
    return [0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]


_VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{kind: _whole(kind.bit_width) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float32(): [*_FLOATS, 2.0**127],
    pa.float64(): [*_FLOATS, 1e300, 5e-324, 2.0**53],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("-9999999.99"), Decimal("0.00")],
    pa.decimal128(38, 18): [Decimal("0.000000000000000001"), Decimal(10**20 - 1)],
    pa.string(): _TEXTS,
    pa.binary(): [b"", b"\0\xff", b"\\x00"],
    pa.date32(): _DAYS,
    pa.timestamp("us", "UTC"): _TIMES,
    pa.timestamp("us"): [at.replace(tzinfo=None) for at in _TIMES],
    pa.time64("ns"): [datetime.time(), datetime.time(23, 59, 59, 999_999)],
    pa.duration("us"): [datetime.timedelta(0), datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=40_000)],
    pa.list_(pa.int64()): [[], [1, None]],
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}],
    pa.map_(pa.string(), pa.int64()): [[], [("a", 1), ("", None)]],
}
_NAMES = [
    "select",
    "With Blank",
    'quo"te',
    "it's",
    "back`tick",
    "a.b",
    "a:b",
    "per%s",
    "50%",
    "{x}",
    "semi;colon",
    "größe",
    "n?",
]
_MANY = 5_000
_STEPS = 16
"""After so many steps a test takes another place: some become slow with many batches."""


class SinkContract(ABC):
    """The promises of a ``TableSink`` as tests for pytest: inherit in a class ``Test…``, with the first two methods below.

    Each test writes to places of its own.  A place may refuse a type, a name or a value, with an ``FkJoinError`` before
    anything is written; it may not change one.  A batch is cut off at each line and each return of the sink's own module or
    package, by an exception that ends the sink, and then written by another one.

    Three attributes of the class may be others: ``types``, the types of columns that are tried (all that a table may have);
    ``every``, which is 1 (with 5, work is cut off at each fifth step, for places that are slow); and ``code``, modules in which
    it is cut off besides, where a sink calls others.

    Examples
    --------
    >>> import pytest
    >>> class TestRows(SinkContract):
    ...     @pytest.fixture(autouse=True)
    ...     def folder(self, tmp_path):
    ...         self.path = tmp_path / "rows.db"
    ...
    ...     def make_sink(self, into):
    ...         return Rows(self.path, into)
    ...
    ...     def read_rows(self, into):
    ...         return read(self.path, into)
    """

    types: ClassVar[list[pa.DataType]] = [kind for kind in _VALUES if TIMES_OF_DAY or not pa.types.is_time(kind)]
    every: ClassVar[int] = 1
    code: ClassVar[tuple[ModuleType, ...]] = ()

    @abstractmethod
    def make_sink(self, into: str) -> TableSink:
        """Make a sink, as another process would: nothing but the place is common to two of them.

        Parameters
        ----------
        into : str
            A name of lower-case letters, digits and ``_``.  A place of that name is one place, and empty when the test begins.

        Returns
        -------
        fkjoin.sinks.TableSink
        """

    @abstractmethod
    def read_rows(self, into: str) -> Iterable[Mapping[str, Any]]:
        """Read what the place has, past the sink.

        Parameters
        ----------
        into : str
            See ``make_sink``.

        Returns
        -------
        list of dict
            Rows, their values such as ``pyarrow`` takes for the types of the table's columns.
        """

    def drop(self, into: str) -> None:
        """Remove the target of a place, past the sink.  Without this method, a target that is gone is not tried.

        Parameters
        ----------
        into : str
            See ``make_sink``.

        Raises
        ------
        NotImplementedError
            By default.
        """
        raise NotImplementedError

    def test_rows_come_change_and_go(self) -> None:
        """A delete of a row that is not there does nothing."""
        target = Target(self, "it")
        target.write(0, {"a": 1, "b": 2, "c": None})
        target.has_rows({"a": 1, "b": 2, "c": None}, "after inserts")
        target.write(1, {"b": 7, "d": 4}, ["a", "never there"])
        target.has_rows({"b": 7, "c": None, "d": 4}, "after an update and a delete")
        target.write(2, {}, ["d", "a"])
        target.write(3, {"a": 9, "c": 3})
        target.write(4, {})
        target.has_rows({"a": 9, "b": 7, "c": 3}, "after five batches")
        same(target.last, target.batch(4), "the last batch, which has no rows")

    def test_a_batch_that_is_repeated_is_left_out(self) -> None:
        """Also by a sink in another process."""
        target = Target(self, "it")
        target.write(0, {"a": 1, "b": 2})
        for sink in (target.sink, target.another()):
            sink.apply(target.batch(0), target.rows({"a": 99, "c": 3}), target.keys(["b"]))
            target.has_rows({"a": 1, "b": 2}, "after batch 0 was repeated")

    def test_the_last_batch_of_each_query_is_remembered(self) -> None:
        """A sink in another process tells it before it is prepared, and None where there is nothing yet."""
        target = Target(self, "it")
        same(self.make_sink("elsewhere").last_batch("q"), None, "the last batch, where nothing is yet")
        same(target.last, None, "the last batch before the first")
        target.write(0, {"a": 1})
        other = target.batch(0, query=query_of("another"))
        target.another().apply(other, target.rows({"b": 2}), target.keys([]))
        same(target.last, target.batch(0), "the last batch")
        same(target.another().last_batch(other.query), other, "the last batch of another query")
        target.has_rows({"a": 1, "b": 2}, "after batches of two queries")

    def test_a_batch_that_does_not_follow_the_last_one_is_refused(self) -> None:
        """A driver that stood still, or a restored checkpoint, would undo what came later, or leave batches out."""
        target = Target(self, "it")
        target.write(0, {"a": 1})
        target.write(1, {"b": 2})
        target.write(2, {})
        others = {
            "another batch 2": target.batch(2, began_ms=77),
            "batch 1": target.batch(1),
            "another batch 1": target.batch(1, began_ms=77),
            "batch 4": target.batch(4),
            "batch 3 of another run": target.batch(3, previous=6),
        }
        for what, batch in others.items():
            changes = batch, target.rows({"c": 3}), target.keys(["a"])
            was_refused = refused(lambda changes=changes: target.sink.apply(*changes))  # type: ignore[misc]
            same(was_refused, True, f"{what} after batch 2, which has no rows, is an FkJoinError")
            target.has_rows({"a": 1, "b": 2}, f"after {what}")

    def test_a_batch_that_is_cut_off_is_there_or_not(self) -> None:
        """Whole, with its number, or not at all; and it can be repeated."""
        for number in itertools.count(1, self.every):
            if number % _STEPS == 1:
                target, before = Target(self, f"it{number}"), {"a": 0, "gone": 0, "kept": 0}
                target.write(0, before)
                last = 0
            after = {"a": number, f"new{number}": number, "kept": 0}
            batch, deletes = target.batch(number, previous=last), [key for key in before if key not in after]
            given = batch, target.rows(after), target.keys(deletes)
            where = target.cut_off(number, lambda sink, given=given: sink.apply(*given))  # type: ignore[misc]
            target.is_whole(batch, before, after, where)
            target.another().apply(*given)
            target.has_rows(after, f"after batch {number} was cut off {where} and repeated")
            before, last = after, number
            if not where:
                break

    def test_a_start_that_is_cut_off_can_be_repeated(self) -> None:
        """The next start takes what ``prepare`` has made till then as it is."""
        for number in itertools.count(1, self.every):
            target = Target(self, f"it{number}", prepared=False)
            where = target.cut_off(number, lambda sink: sink.prepare(SCHEMA, ("id",)), prepared=False)
            target.write(0, {"a": number})
            target.has_rows({"a": number}, f"after the start was cut off {where}")
            if not where:
                break

    def test_a_start_leaves_rows_and_a_place_without_the_columns_is_refused(self) -> None:
        """The second start finds what the first one made."""
        target = Target(self, "it")
        target.write(0, {"a": 1})
        target.another()
        target.has_rows({"a": 1}, "after another start")
        wider = SCHEMA.append(pa.field("more", pa.string()))
        was_refused = refused(lambda: self.make_sink("it").prepare(wider, ("id",)))
        same(was_refused, True, "a place that lacks a column that is an FkJoinError of prepare")

    def test_a_check_makes_nothing(self) -> None:
        """A place that ``examine`` has looked at can be made with other columns."""
        self.make_sink("it").examine(pa.schema([("other", pa.int64())]), ("other",))
        target = Target(self, "it")
        target.write(0, {"a": 1})
        target.another().examine(SCHEMA, ("id",))
        target.has_rows({"a": 1}, "after examine")

    def test_a_sink_that_is_restored_goes_on_from_there(self) -> None:
        """A sink that has ``replace`` is tried, also cut off and repeated."""
        from fkjoin.sinks import BatchId, TableSink

        target = Target(self, "it")
        if type(target.sink).replace is TableSink.replace:
            return
        back, rows = target.batch(1), {"a": 1, "b": 1}
        for number in itertools.count(1, self.every):
            target.another().replace(back, target.rows(rows))
            later = target.batch(2, began_ms=100 + number)
            target.another().apply(later, target.rows({"a": 2, "c": number}), target.keys(["b"]))
            there = {"a": 2, "c": number}
            target.has_rows(there, "after a batch that follows the one that it was restored to")
            where = target.cut_off(number, lambda sink: sink.replace(back, target.rows(rows)))
            target.is_whole(back, there, rows, where, later)
            if not where:
                break
        older = target.batch(9), target.rows({"a": 9}), target.keys([])
        what = "a batch of a query that began before the place was restored"
        same(refused(lambda: target.another().apply(*older)), True, f"{what} is an FkJoinError")
        none = BatchId(target.query, -1, None)
        target.another().replace(none, target.rows({}))
        target.has_rows({}, "after it was restored to before the first batch")
        same(target.last, none, "the last batch after that")

    def test_a_target_that_is_gone_has_no_batch(self) -> None:
        """A query would go on with a target without its rows.  One that has ``drop`` is tried."""
        if type(self).drop is SinkContract.drop:
            return
        target = Target(self, "it")
        target.write(0, {"a": 1})
        self.drop("it")
        same(target.last, None, "the last batch of a target that is gone")
        target.another()
        same(target.last, None, "the last batch of a target that was made in its place")

    def test_each_type_comes_back_or_is_refused(self) -> None:
        """A null is one, and no value becomes another."""
        for number, kind in enumerate(self.types):
            schema = pa.schema([("id", pa.string()), ("value", kind)])
            target = Target(self, f"type{number}", schema, refusable=True)
            there: dict[str, Any] = {}
            for place, value in enumerate([None, *_VALUES.get(kind, [])] if target.made else []):
                there |= {} if target.refuses(place, {f"k{place}": value}) else {f"k{place}": value}
                target.has_rows(there, f"of type {kind}, after the value {value!r}")

    def test_each_name_is_one_or_is_refused(self) -> None:
        """A key's column has it, and another one."""
        for number, name in enumerate(_NAMES):
            schema = pa.schema([(name, pa.string()), (f"{name}2", pa.int64())])
            target = Target(self, f"name{number}", schema, refusable=True)
            if target.made:
                target.write(0, {"a": 1, "b": 2})
                target.write(1, {"a": 3}, ["b"])
                target.has_rows({"a": 3}, f"with a column {name!r}")

    def test_a_key_has_several_columns(self) -> None:
        """Rows with one of them in common are others, and texts are compared letter by letter."""
        schema = pa.schema([("one", pa.string()), ("two", pa.int64()), ("n", pa.int64())])
        target = Target(self, "it", schema, 2)
        target.write(0, {("a", 1): 1, ("a", 2): 2, ("b", 1): 3, ("A", 1): 4, ("a ", 1): 5})
        target.write(1, {("a", 2): 7}, [("b", 1), ("b", 2)])
        target.has_rows({("a", 1): 1, ("a", 2): 7, ("A", 1): 4, ("a ", 1): 5}, "of a key of two columns")

    def test_a_large_batch_is_written_whole(self) -> None:
        """A batch has some thousand rows and deletes."""
        target = Target(self, "it")
        keys = [f"k{number}" for number in range(_MANY)]
        target.write(0, dict(zip(keys, range(_MANY), strict=True)))
        target.write(1, dict.fromkeys(keys[: _MANY // 2], -1), keys[_MANY // 2 :])
        target.has_rows(dict.fromkeys(keys[: _MANY // 2], -1), "after a large batch")

    def test_a_prepared_sink_can_be_sent(self) -> None:
        """A server of Spark Connect writes with a copy of the sink."""
        from pyspark import cloudpickle

        target = Target(self, "it")
        cloudpickle.dumps(target.sink)  # type: ignore[no-untyped-call]
        copy.deepcopy(target.sink).apply(target.batch(0), target.rows({"a": 1}), target.keys([]))
        target.has_rows({"a": 1}, "of a copy of the sink")
