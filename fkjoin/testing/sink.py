"""Tests of a table sink, for users' tests; ``fkjoin.testing`` has them."""

from __future__ import annotations

import copy
import datetime
import gc
import inspect
import itertools
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import SkipTest

import pyarrow as pa
from pyspark import cloudpickle

from fkjoin.errors import FkJoinError
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.kinds import TIMES_OF_DAY

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
_AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
_DAYS = [
    datetime.date(1, 1, 1),
    datetime.date(1582, 10, 10),
    datetime.date(1969, 12, 31),
    datetime.date(9999, 12, 31),
]
_TIMES = [
    _AT,
    *(
        datetime.datetime(day.year, day.month, day.day, 23, 59, 59, 999_999, _AT.tzinfo)
        for day in _DAYS
    ),
]
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
    pa.timestamp("us"): [time.replace(tzinfo=None) for time in _TIMES],
    pa.time64("ns"): [datetime.time(), datetime.time(23, 59, 59, 999_999)],
    pa.duration("us"): [
        datetime.timedelta(0),
        datetime.timedelta(days=-1, microseconds=1),
        datetime.timedelta(days=40_000),
    ],
    pa.list_(pa.int64()): [[], [1, None]],
    pa.list_(pa.struct([("a", pa.int64())])): [[], [None, {"a": 1}]],
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): [
        {"a": 1, "b": ["x", None]},
        {"a": None, "b": None},
    ],
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
_TURNS = 2
"""So many turns of a loop are steps of their own."""


class SinkContract(ABC):
    """The promises of a ``TableSink`` as tests for pytest.

    Inherit from it in a class ``Test…``, and implement ``make_sink`` and ``read_rows``.

    Each test writes to places of its own. A place may refuse a type, a name or a value with an
    ``FkJoinError``, before it writes anything; it must not change a value. The tests cut a batch
    off at each line and each return of the sink's own module or package. An exception ends the sink
    there, and another sink then writes the batch.

    You may set three attributes of the class. ``types`` are the types of columns to try, by default
    all types that a table may have. ``every`` is 1; with 5, the tests cut off at each fifth step,
    for slow places. ``code`` are further modules in which they cut off, if a sink calls others.

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

    types: ClassVar[list[pa.DataType]] = [
        kind for kind in _VALUES if TIMES_OF_DAY or not pa.types.is_time(kind)
    ]
    every: ClassVar[int] = 1
    code: ClassVar[tuple[ModuleType, ...]] = ()

    @abstractmethod
    def make_sink(self, into: str) -> TableSink:
        """Make a sink, as another process would: two sinks share nothing but the place.

        Parameters
        ----------
        into : str
            A name of lower-case letters, digits and ``_``. A place of that name is one place, and
            empty when the test begins.

        Returns
        -------
        fkjoin.sinks.TableSink

        Examples
        --------
        >>> def make_sink(self, into):
        ...     return Rows(self.path, into)
        """

    @abstractmethod
    def read_rows(self, into: str) -> Iterable[Mapping[str, Any]]:
        """Read the rows of the place, without the sink.

        Parameters
        ----------
        into : str
            A name of lower-case letters, digits and ``_``. A place of that name is one place, and
            empty when the test begins.

        Returns
        -------
        list of dict
            Rows, with values that ``pyarrow`` takes for the types of the table's columns.

        Examples
        --------
        >>> def read_rows(self, into):
        ...     return read(self.path, into)
        """

    def drop(self, into: str) -> None:
        """Remove the target of a place, without the sink.

        Without this method, the tests do not try a target that is gone.

        Parameters
        ----------
        into : str
            A name of lower-case letters, digits and ``_``. A place of that name is one place, and
            empty when the test begins.

        Raises
        ------
        NotImplementedError
            By default.
        """
        raise NotImplementedError

    def test_rows_come_change_and_go(self) -> None:
        """A delete of a row that does not exist does nothing."""
        target = _Target(self, "it")
        target.write(0, {"a": 1, "b": 2, "c": None})
        target.require_rows({"a": 1, "b": 2, "c": None}, "after inserts")
        target.write(1, {"b": 7, "d": 4}, ["a", "never there"])
        target.require_rows({"b": 7, "c": None, "d": 4}, "after an update and a delete")
        target.write(2, {}, ["d", "a"])
        target.write(3, {"a": 9, "c": 3})
        target.write(4, {}, ["never there"])
        _same(target.last, target.batch(4), "the last batch, which deletes no row that exists")
        target.write(5, {})
        target.require_rows({"a": 9, "b": 7, "c": 3}, "after six batches")
        _same(target.last, target.batch(5), "the last batch, which has no rows")

    def test_a_batch_that_is_repeated_is_left_out(self) -> None:
        """A sink in another process leaves it out, too."""
        target = _Target(self, "it")
        target.write(0, {"a": 1, "b": 2})
        for sink in (target.sink, target.another()):
            sink.apply(*target.changes(target.batch(0), {"a": 99, "c": 3}, ["b"]))
            target.require_rows({"a": 1, "b": 2}, "after batch 0 was repeated")

    def test_the_last_batch_of_each_query_is_remembered(self) -> None:
        """A sink in another process returns it, also before ``prepare``; None in an empty place."""
        target = _Target(self, "it")
        _same(target.last, None, "the last batch, where nothing is yet")
        target.another()
        _same(target.last, None, "the last batch before the first")
        target.write(0, {"a": 1})
        other = replace(target.batch(0), query=_query_of("another"))
        target.another().apply(*target.changes(other, {"b": 2}))
        _same(target.last, target.batch(0), "the last batch")
        _same(target.another().last_batch(other.query), other, "the last batch of another query")
        target.require_rows({"a": 1, "b": 2}, "after batches of two queries")

    def test_a_batch_that_does_not_follow_the_last_one_is_refused(self) -> None:
        """A stalled driver, or a restored checkpoint, must not undo or skip later batches."""
        target = _Target(self, "it")
        target.write(0, {"a": 1})
        target.write(1, {"b": 2})
        target.write(2, {})
        others = {
            "another batch 2": replace(target.batch(2), began_ms=77),
            "batch 1": target.batch(1),
            "another batch 1": replace(target.batch(1), began_ms=77),
            "batch 4": target.batch(4),
            "batch 3 of another run": replace(target.batch(3), previous_ms=_began_ms(6)),
        }
        for name, batch in others.items():
            changes = target.changes(batch, {"c": 3}, ["a"])
            _must_refuse(f"{name} after batch 2, which has no rows,", target.sink.apply, *changes)
            target.require_rows({"a": 1, "b": 2}, f"after {name}")

    def test_a_batch_that_is_cut_off_is_there_or_not(self) -> None:
        """The place has the whole batch with its number, or nothing of it; a repetition works."""
        for number in itertools.count(1, self.every):
            if number % _STEPS == 1:
                target, last = _Target(self, f"it{number}"), 0
                before = {"a": 0, "gone": 0, "kept": 0}
                target.write(0, before)
            after = {"a": number, f"new{number}": number, "kept": 0}
            batch = replace(target.batch(number), previous_ms=_began_ms(last))
            changes = target.changes(batch, after, before.keys() - after.keys())
            where = target.cut_off(number, "apply", *changes)
            target.require_whole_or_nothing(batch, before, after, where)
            target.another().apply(*changes)
            target.require_rows(after, f"after batch {number} was cut off {where} and repeated")
            before, last = after, number
            if not where:
                break

    def test_a_start_that_is_cut_off_can_be_repeated(self) -> None:
        """The next start accepts what ``prepare`` has made so far."""
        for number in itertools.count(1, self.every):
            target = _Target(self, f"it{number}")
            where = target.cut_off(number, "prepare", SCHEMA, ("id",))
            target.write(0, {"a": number})
            target.require_rows({"a": number}, f"after the start was cut off {where}")
            if not where:
                break

    def test_a_start_leaves_rows_and_a_place_without_the_columns_is_refused(self) -> None:
        """The second start finds what the first start made."""
        target = _Target(self, "it")
        target.write(0, {"a": 1})
        target.another()
        target.require_rows({"a": 1}, "after another start")
        wider = SCHEMA.append(pa.field("more", pa.string()))
        start = self.make_sink("it").prepare
        _must_refuse("a start with a column that the place lacks", start, wider, ("id",))

    def test_a_check_makes_nothing(self) -> None:
        """A place that ``examine`` has looked at can be made with other columns."""
        self.make_sink("it").examine(pa.schema([("other", pa.int64())]), ("other",))
        target = _Target(self, "it")
        target.write(0, {"a": 1})
        target.another().examine(SCHEMA, ("id",))
        target.require_rows({"a": 1}, "after examine")

    def test_a_sink_that_is_restored_goes_on_from_there(self) -> None:
        """Only a sink with ``replace`` is tried. It is also cut off and repeated."""
        target = _Target(self, "it")
        if type(target.sink).replace is TableSink.replace:
            raise SkipTest("this sink has no replace")
        back, rows = target.batch(1), {"a": 1, "b": 1}
        for number in itertools.count(1, self.every):
            target.another().replace(back, target.rows(rows))
            later, changed = replace(target.batch(2), began_ms=100 + number), {"a": 2, "c": number}
            target.another().apply(*target.changes(later, changed, ["b"]))
            when = "after a batch that follows the one that it was restored to"
            target.require_rows(changed, when)
            where = target.cut_off(number, "replace", back, target.rows(rows))
            target.require_whole_or_nothing(back, changed, rows, where, later)
            if not where:
                break
        older = target.changes(target.batch(9), {"a": 9})
        name = "a batch of a query that began before the place was restored"
        _must_refuse(name, target.another().apply, *older)
        none = BatchId(target.query, -1, None)
        target.another().replace(none, target.rows({}))
        target.require_rows({}, "after it was restored to before the first batch")
        _same(target.last, none, "the last batch after that")

    def test_a_target_that_is_gone_has_no_batch(self) -> None:
        """Otherwise a query would continue without the rows. Only a sink with ``drop`` is tried."""
        if type(self).drop is SinkContract.drop:
            raise SkipTest("this contract has no drop")
        target = _Target(self, "it")
        target.write(0, {"a": 1})
        self.drop("it")
        _same(target.last, None, "the last batch of a target that is gone")
        target.another()
        _same(target.last, None, "the last batch of a target that was made in its place")

    def test_each_type_comes_back_or_is_refused(self) -> None:
        """A null stays null, and no value becomes another value."""
        for number, kind in enumerate(self.types):
            schema = pa.schema([("id", pa.string()), ("value", kind)])
            target = _Target(self, f"type{number}", schema)
            rows: dict[str, Any] = {}
            if _refused(target.another):
                continue
            for batch, value in enumerate([None, *_VALUES.get(kind, [])]):
                row = {f"k{batch}": value}
                if not _refused(target.write, batch, row):
                    rows |= row
                target.require_rows(rows, f"of type {kind}, after the value {value!r}")

    def test_each_name_is_one_or_is_refused(self) -> None:
        """The names need quoting. They are columns of the key and of the row."""
        for number, name in enumerate(_NAMES):
            schema = pa.schema([(name, pa.string()), (f"{name}2", pa.int64())])
            target = _Target(self, f"name{number}", schema)
            if not _refused(target.another):
                target.write(0, {"a": 1, "b": 2})
                target.write(1, {"a": 3}, ["b"])
                target.require_rows({"a": 3}, f"with a column {name!r}")

    def test_a_key_has_several_columns(self) -> None:
        """Rows that share one key column are different rows. Letters of texts must be equal."""
        schema = pa.schema([("one", pa.string()), ("two", pa.int64()), ("n", pa.int64())])
        target = _Target(self, "it", schema)
        target.write(0, {("a", 1): 1, ("a", 2): 2, ("b", 1): 3, ("A", 1): 4, ("a ", 1): 5})
        target.write(1, {("a", 2): 7}, [("b", 1), ("b", 2)])
        rows = {("a", 1): 1, ("a", 2): 7, ("A", 1): 4, ("a ", 1): 5}
        target.require_rows(rows, "of a key of two columns")

    def test_a_large_batch_is_written_whole(self) -> None:
        """The batch contains some thousand rows and deletes."""
        target = _Target(self, "it")
        keys = [f"k{number}" for number in range(_MANY)]
        target.write(0, dict(zip(keys, range(_MANY), strict=True)))
        target.write(1, dict.fromkeys(keys[: _MANY // 2], -1), keys[_MANY // 2 :])
        target.require_rows(dict.fromkeys(keys[: _MANY // 2], -1), "after a large batch")

    def test_a_prepared_sink_can_be_sent(self) -> None:
        """A server of Spark Connect writes with a copy of the sink."""
        target = _Target(self, "it")
        cloudpickle.dumps(target.sink)  # type: ignore[no-untyped-call]
        copy.deepcopy(target.sink).apply(*target.changes(target.batch(0), {"a": 1}))
        target.require_rows({"a": 1}, "of a copy of the sink")


class _CutOff(BaseException):
    """Stands for the end of a process: what handles errors does not see it."""


class _Target:
    """A place of a contract, with the names of its batches, and what it has to have.

    A row is given as its last column, by the others, which are the key.
    """

    def __init__(self, contract: SinkContract, into: str, schema: pa.Schema = SCHEMA) -> None:
        self._contract, self._into, self._schema = contract, into, schema
        self._key = tuple(schema.names[:-1])
        self.query = _query_of(into)

    @cached_property
    def sink(self) -> TableSink:
        """A sink that is prepared."""
        return self.another()

    def another(self) -> TableSink:
        """Make a sink, prepared, as another process would."""
        sink = self._contract.make_sink(self._into)
        sink.prepare(self._schema, self._key)
        return sink

    def batch(self, number: int) -> BatchId:
        """Name a batch, which follows the one before."""
        return BatchId(self.query, number, _began_ms(number), _began_ms(number - 1))

    def rows(self, rows: Mapping[Any, Any]) -> pa.Table:
        lines: list[dict[str, Any]] = []
        for key, value in rows.items():
            parts = key if isinstance(key, tuple) else (key,)
            lines.append(dict(zip(self._schema.names, (*parts, value), strict=True)))
        return pa.Table.from_pylist(lines, self._schema)

    def changes(
        self,
        batch: BatchId,
        rows: Mapping[Any, Any],
        deletes: Iterable[Any] = (),
    ) -> tuple[BatchId, pa.Table, pa.Table]:
        """Arguments of ``apply``; ``deletes``: the keys of rows."""
        return batch, self.rows(rows), self.rows(dict.fromkeys(deletes)).select(list(self._key))

    def write(self, number: int, rows: Mapping[Any, Any], deletes: Iterable[Any] = ()) -> None:
        """Write a batch, by a sink that is made and prepared where there is none yet."""
        self.sink.apply(*self.changes(self.batch(number), rows, deletes))

    @property
    def last(self) -> BatchId | None:
        return self._contract.make_sink(self._into).last_batch(self.query)

    def require_rows(self, rows: Mapping[Any, Any], when: str) -> None:
        _same(self._stored_rows(), _comparable(self.rows(rows)), f"rows {when}")

    def _stored_rows(self) -> list[Any]:
        rows, names = list(self._contract.read_rows(self._into)), self._schema.names
        for row in rows:
            if lacks := [name for name in names if name not in row]:
                must = f"read_rows must return dicts with the columns {', '.join(names)}"
                raise AssertionError(f"{must}; a row lacks {lacks[0]}")
        return _comparable(pa.Table.from_pylist(rows, self._schema))

    def require_whole_or_nothing(
        self,
        batch: BatchId,
        before: Mapping[Any, Any],
        after: Mapping[Any, Any],
        where: str,
        last: BatchId | None = None,
    ) -> None:
        """Raise ``AssertionError`` unless the place has a batch whole, or nothing of it.

        Whole is a batch whose rows and name are there.
        """
        whole, ended = self.last == batch, f"when batch {batch.number} ended {where}"
        self.require_rows(after if whole else before, ended)
        if last is not None and not whole:
            _same(self.last, last, f"the last batch {ended}")

    def cut_off(self, step: int, method: str, *arguments: object) -> str:
        """Call a method of a sink that ends at one of its steps.

        Return where, or nothing if it has fewer steps.
        """
        sink = self._contract.make_sink(self._into) if method == "prepare" else self.another()
        trace = _Steps(sink, step, self._contract.code)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            getattr(sink, method)(*arguments)
        except _CutOff:
            pass
        finally:
            sys.settrace(before)
        if trace.step == 0:
            wrong = f"{type(sink).__name__} has no step at which it could be cut off"
            raise AssertionError(f"{wrong}; is its module a file?")
        del sink
        gc.collect(1)  # a process that ends leaves no connection open
        return trace.where


class _Steps:
    """Trace function that ends what runs at a step of the sink's own code."""

    def __init__(self, sink: TableSink, last: int, code: tuple[ModuleType, ...]) -> None:
        self.where, self.step, self._last = "", 0, last
        self._turns = Counter[tuple[str, int, str]]()
        kinds = [kind for kind in type(sink).__mro__ if issubclass(kind, TableSink)]
        own = [sys.modules[kind.__module__] for kind in kinds if kind is not TableSink]
        homes: list[str] = []
        for module in (*own, *code):
            file = Path(inspect.getfile(module))
            homes.append(f"{file.parent}/" if module.__package__ else str(file))
        self._homes = tuple(homes)

    def __call__(self, frame: Any, event: str, argument: Any) -> _Steps | None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(self._homes):
            return None
        if event in ("line", "return") and self._turns[file, line, event] < _TURNS:
            self._turns[file, line, event] += 1
            self.step += 1
            if self.step == self._last:
                self.where = f"at {Path(file).name}, line {line} ({event})"
                raise _CutOff
        return self


def _began_ms(number: int) -> int | None:
    return None if number < 0 else 1000 + number


def _query_of(into: str) -> str:
    """The id of the query that writes to a place."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, into))


def _refused(work: Callable[..., object], *arguments: object) -> bool:
    try:
        work(*arguments)
    except FkJoinError:
        return True
    return False


def _must_refuse(name: str, work: Callable[..., object], *arguments: object) -> None:
    _same(_refused(work, *arguments), True, f"{name} is an FkJoinError")


def _comparable(rows: pa.Table) -> list[str]:
    """The rows as values that can be compared: -0.0 is not 0.0, and NaN is NaN."""
    return sorted(repr(list(row.items())) for row in rows.to_pylist())


def _same(value: object, wanted: object, name: str) -> None:
    if value != wanted:
        raise AssertionError(f"{name}: found {value!r}, wanted {wanted!r}")
