"""A place for the tests of a table sink: what it has to have, and sinks that end at each of their steps."""

from __future__ import annotations

import gc
import inspect
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from fkjoin.errors import FkJoinError

if TYPE_CHECKING:
    from fkjoin.sinks import BatchId, TableSink

_TURNS = 2
"""So many turns of a loop are steps of their own."""
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


class CutOff(BaseException):
    """Stands for the end of a process: what handles errors does not see it."""


class TargetPlaces(Protocol):
    """Maker and reader of places, see ``SinkContract``."""

    code: ClassVar[tuple[ModuleType, ...]]

    def make_sink(self, into: str) -> TableSink: ...

    def read_rows(self, into: str) -> Iterable[Mapping[str, Any]]: ...


class Target:
    """A place, with a sink that is prepared, the names of its batches, and what it has to have.

    A row is given as its last column, by the others, which are the key.
    """

    def __init__(
        self,
        of: TargetPlaces,
        into: str,
        schema: pa.Schema = SCHEMA,
        keys: int = 1,
        *,
        prepared: bool = True,
        refusable: bool = False,
    ) -> None:
        self._of, self._into, self._schema, self.query = of, into, schema, query_of(into)
        self._key = tuple(schema.names[:keys])
        self.sink = of.make_sink(into)
        self.made = prepared
        if refusable:
            self.made = not refused(lambda: self.sink.prepare(schema, self._key))
        elif prepared:
            self.sink.prepare(schema, self._key)

    def another(self) -> TableSink:
        """Make a sink, prepared, as another process would."""
        sink = self._of.make_sink(self._into)
        sink.prepare(self._schema, self._key)
        return sink

    def batch(
        self, number: int, *, query: str | None = None, began_ms: int | None = None, previous: int | None = None
    ) -> BatchId:
        """Name a batch; ``previous``: the number of the batch that it follows, by default the one before."""
        from fkjoin.sinks import BatchId

        before = number - 1 if previous is None else previous
        return BatchId(query or self.query, number, began_ms or _began_ms(number), _began_ms(before))

    def rows(self, rows: Mapping[Any, Any]) -> pa.Table:
        parts = [key if isinstance(key, tuple) else (key,) for key in rows]
        columns = [*zip(*parts, strict=True)] if parts else [()] * len(self._key)
        values = [*columns, list(rows.values())]
        arrays = [pa.array(list(given), field.type) for given, field in zip(values, self._schema, strict=True)]
        return pa.table(arrays, schema=self._schema)

    def keys(self, keys: Iterable[Any]) -> pa.Table:
        return self.rows(dict.fromkeys(keys)).select(list(self._key))

    def write(self, number: int, rows: Mapping[Any, Any], deletes: Iterable[Any] = ()) -> None:
        """Write a batch, by a sink that is made and prepared where there is none yet."""
        self.sink = self.sink if self.made else self.another()
        self.made = True
        self.sink.apply(self.batch(number), self.rows(rows), self.keys(deletes))

    def refuses(self, number: int, rows: Mapping[Any, Any]) -> bool:
        return refused(lambda: self.write(number, rows))

    @property
    def last(self) -> BatchId | None:
        return self._of.make_sink(self._into).last_batch(self.query)

    def has_rows(self, rows: Mapping[Any, Any], when: str) -> None:
        same(self._found(), seen(self.rows(rows)), f"rows {when}")

    def _found(self) -> list[Any]:
        there, names = list(self._of.read_rows(self._into)), self._schema.names
        if lacks := [name for name in names if there and name not in there[0]]:
            raise AssertionError(f"read_rows must return dicts with the columns {', '.join(names)}; it lacks {lacks[0]}")
        found = [{name: row[name] for name in names} for row in there]
        return seen(pa.Table.from_pylist(found, self._schema))

    def is_whole(
        self, batch: BatchId, before: Mapping[Any, Any], after: Mapping[Any, Any], where: str, last: BatchId | None = None
    ) -> None:
        """Raise ``AssertionError`` unless the place has the rows after a batch, and its name, or neither."""
        there = self.last == batch
        same(self._found(), seen(self.rows(after if there else before)), f"rows when batch {batch.number} ended {where}")
        if last is not None and not there:
            same(self.last, last, f"the last batch when batch {batch.number} ended {where}")

    def cut_off(self, step: int, work: Callable[[TableSink], None], *, prepared: bool = True) -> str:
        """Have a sink do work that ends at one of its steps; say where, or nothing if the work has fewer steps."""
        sink = self.another() if prepared else self._of.make_sink(self._into)
        trace = _Steps(sink, step, self._of.code)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work(sink)
        except CutOff:
            pass
        finally:
            sys.settrace(before)
        if trace.step == 0:
            raise AssertionError(f"{type(sink).__name__} has no step at which it could be cut off; is its module a file?")
        del sink, work
        gc.collect(1)  # a process that ends leaves no connection open
        return trace.where


class _Steps:
    """Trace function that ends what runs at a step of the sink's own code."""

    def __init__(self, sink: TableSink, at: int, code: tuple[ModuleType, ...]) -> None:
        from fkjoin.sinks import TableSink

        self.where, self.step, self._at, self._seen = "", 0, at, Counter[tuple[str, int, str]]()
        modules = [sys.modules[of.__module__] for of in type(sink).__mro__ if issubclass(of, TableSink) and of is not TableSink]
        modules += code
        files = [Path(inspect.getfile(module)) for module in modules]
        self._homes = tuple(
            str(file.parent) + "/" if module.__package__ else str(file) for module, file in zip(modules, files, strict=True)
        )

    def __call__(self, frame: Any, event: str, argument: Any) -> _Steps | None:
        if not frame.f_code.co_filename.startswith(self._homes):
            return None
        here = frame.f_code.co_filename, frame.f_lineno, event
        if event in ("line", "return") and self._seen[here] < _TURNS:
            self._seen[here] += 1
            self.step += 1
            if self.step == self._at:
                self.where = f"at {Path(frame.f_code.co_filename).name}, line {frame.f_lineno} ({event})"
                raise CutOff
        return self


def _began_ms(number: int) -> int | None:
    return None if number < 0 else 1000 + number


def query_of(into: str) -> str:
    """The id of the query that writes to a place."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, into))


def refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except FkJoinError:
        return True
    return False


def seen(rows: pa.Table) -> list[Any]:
    """The rows as values that can be compared: -0.0 is not 0.0, and NaN is NaN."""
    return sorted(repr(list(row.items())) for row in rows.to_pylist())


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, wanted {wanted!r}")
