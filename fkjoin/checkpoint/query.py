"""A query that fkjoin has started: Spark's, with words for its failure and for what it does."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.failure import failure
from fkjoin.checkpoint.progress import (
    QueryPhase,
    behind,
    doing_of,
    event_of,
    is_batch,
    lag_of,
    line_of,
    moment,
    records_of,
    seconds_of,
)
from fkjoin.spark.cause import innermost
from fkjoin.spark.spark_api import client_query, java_query
from fkjoin.stages import counters
from fkjoin.stages.counters import metrics_name

if TYPE_CHECKING:
    _Base = StreamingQuery
else:
    _Base = object

_T = TypeVar("_T")
_COUNTERS = metrics_name("")
_SILENT_S = 60.0
"""Seconds without a word from which on a query that asks its sources may have no answer."""


class QueryDisplay(_Base):
    """A line about a query, and a table of what is counted.

    Queries of classic sessions and of Spark Connect have it.
    """

    _why_stopped: str | None = None
    """Set when fkjoin itself stops the query, with the checkpoint."""
    _checkpoint: str = ""

    def show(self) -> None:
        """Print what the query does, and the counters of its operators in its last batch.

        Returns
        -------
        None

        Examples
        --------
        >>> query.show()
        joined: waits for data since 21:04:11; batch 12 had 1,203 rows and took 0.8 s
        operator  left-in  right-in    out
        --------  -------  --------  -----
        joined      1,200         3  1,200
        """
        print(self)
        if (batch := self._last_batch()) is not None:
            print(table_of(batch))

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends.

        In a notebook, or on a terminal, a line shows meanwhile what the query does.

        Parameters
        ----------
        timeout : int, optional
            The number of seconds to wait. By default without a limit.

        Returns
        -------
        bool or None
            With a timeout, whether the query has ended.

        Raises
        ------
        QueryError
            If the query failed.

        Examples
        --------
        >>> query = orders.to_parquet("lake/orders", checkpoint="ck/orders")
        >>> query.awaitTermination(1)
        False
        >>> query.stop()
        >>> query.awaitTermination()
        """
        with _live_line(self) as update:
            if update is not None and (timeout is None or timeout > 0):
                return self._told(lambda: self._followed(timeout, update))
            return self._told(lambda: super(QueryDisplay, self).awaitTermination(timeout))

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until the query has processed all input that exists at this call; for tests.

        Raises
        ------
        QueryError
            If the query failed.

        Examples
        --------
        >>> query.processAllAvailable()
        """
        self._told(super().processAllAvailable)

    def _told(self, wait: Callable[[], _T]) -> _T:
        """Wait for the query, and raise its failure as ``QueryError``.

        In Spark Connect it is raised as Spark's own.
        """
        try:
            outcome = wait()
            if self._why_stopped is None or (failed := failure(self)) is None:
                return outcome
        except StreamingQueryException:
            failed = failure(self)  # of Spark Connect there is none, unless fkjoin has stopped it
            if failed is None:
                raise
        raise failed

    def exception(self) -> StreamingQueryException | None:
        """Return why the query failed.

        Returns
        -------
        QueryError or None
            None if the query runs, or ended without a failure.

        Examples
        --------
        >>> if (error := query.exception()) is not None:
        ...     print(error)  # three lines
        """
        return failure(self) or super().exception()

    def __repr__(self) -> str:
        with contextlib.suppress(Exception):  # of a session that was stopped: a repr raises nothing
            return self._line()
        return object.__repr__(self)

    def _line(self) -> str:
        if self._why_stopped is not None or not self.isActive:
            why = self._why_it_failed()
            does, batch = "has ended" if why is None else f"failed: {why}", self._last_batch()
            return line_of(self._called, does, batch, time.time(), self._behind(time.time()))
        doing, batch, now = doing_of(self.status), self._last_batch(), time.time()
        does = doing.value if doing is not QueryPhase.ASKS else self._asks()
        if doing is QueryPhase.BATCH:
            which = "its first batch" if batch is None else f"batch {batch['batchId'] + 1:,}"
            does = f"works on {which}"
        return line_of(self._called, does, batch, now, self._behind(now))

    def _behind(self, now: float) -> str:
        """Say what the query has left to read, as Spark's last event has it."""
        if (last := self.lastProgress) is None:
            return ""
        sources, known_at = event_of(last.json)["sources"], seconds_of(last.timestamp)
        return behind(records_of(lag_of(sources)), known_at, now)

    def _asks(self) -> str:
        """Say that it waits, as it asks many times a second, unless Spark's last event is old."""
        last, now = self.lastProgress, time.time()
        if last is None:
            return QueryPhase.WAITS.value
        answered = seconds_of(last.timestamp) + last.durationMs.get("triggerExecution", 0) / 1000
        if now - answered < _SILENT_S:
            return QueryPhase.WAITS.value
        return f"{QueryPhase.ASKS.value}, and has said nothing since {moment(answered, now)}"

    @property
    def _called(self) -> str:
        return self.name or str(self.id)

    def _last_batch(self) -> Mapping[str, Any] | None:
        """The progress of the last batch, which is older than the last one while a query waits."""
        last = self.lastProgress
        if last is None:
            return None
        if is_batch(last.durationMs):
            return event_of(last.json)
        recent = reversed(self.recentProgress)
        batches = (event_of(progress.json) for progress in recent if is_batch(progress.durationMs))
        return next(batches, None)

    def _followed(self, timeout: int | None, update: Callable[[], None]) -> bool | None:
        """Wait as ``awaitTermination`` does, and update a line each second."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            if left <= 0:
                return False
            ended = super().awaitTermination(left)  # type: ignore[arg-type]
            update()
            if ended:
                return None if timeout is None else True

    def _why_it_failed(self) -> str | None:
        """Say in a line why the query has failed; None if it has not."""
        if (failed := failure(self)) is not None:
            return str(failed).splitlines()[0].partition(": ")[2]
        error = super().exception()
        return None if error is None else innermost([re.sub(r"^\([\w.]*\) ", "", str(error))]).text


class Query(QueryDisplay, StreamingQuery):
    """A running query, which the ``to_…`` calls return; its failure is a ``QueryError``.

    It is a ``StreamingQuery`` of Spark, with its other methods. Its ``repr`` is a line that says
    what the query does, and what its last batch was. In a notebook, and on a terminal,
    ``awaitTermination`` keeps such a line up to date.

    Examples
    --------
    >>> query = joined.to_parquet("lake/joined", checkpoint="ck/joined")
    >>> query
    joined: waits for data since 21:04:11; batch 12 had 1,203 rows and took 0.8 s
    """


def shown(query: StreamingQuery) -> Query:
    """Return the query as ``to_…`` calls give it."""
    if (handle := java_query(query)) is not None:
        return Query(handle)
    # It needs packages that classic sessions do without.
    from pyspark.sql.connect.streaming import query as connect

    class ConnectQuery(QueryDisplay, connect.StreamingQuery):
        """A running query: Spark Connect's, with a line for what it does.

        It fails by Spark's exception, or by a lost claim.
        """

    make: Any = ConnectQuery
    return cast(Query, make(*client_query(query)))


def table_of(batch: Mapping[str, Any]) -> str:
    """Draw what the operators counted in a batch: a line for each, a column for each counter.

    A counter that is 0 everywhere has none.  Sizes of state are left out: an operator reports the
    sizes of the batch before.
    """
    observed: Mapping[str, Mapping[str, Any]] = batch.get("observedMetrics", {})
    operators = {
        name.removeprefix(_COUNTERS): row
        for name, row in observed.items()
        if name.startswith(_COUNTERS)
    }
    if not operators:
        return "no operator counted anything"
    counted: set[str] = set()
    for row in operators.values():
        counted |= {item for item, number in row.items() if number}
    shown = [item for item in counters.ALL if item in counted]
    lines = [["operator", *shown]]
    for name, row in operators.items():
        lines.append([name, *(f"{row.get(item) or 0:,}" for item in shown)])
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lay out cells in columns: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    aligned = []
    for first, *rest in (lines[0], rule, *lines[1:]):
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        aligned.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(aligned)


@contextlib.contextmanager
def _live_line(query: QueryDisplay) -> Iterator[Callable[[], None] | None]:
    """Show the query's line in a notebook or on a terminal.

    Gives what updates it, or None where there is neither.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_main = threading.current_thread() is threading.main_thread()
    line: _NotebookLine | _TerminalLine
    if getattr(shell, "kernel", None) is not None:
        line = _NotebookLine()
    elif is_main and getattr(sys.stderr, "isatty", bool)():
        line = _TerminalLine(sys.stderr)
    else:
        yield None
        return
    line.show(repr(query))
    try:
        yield lambda: line.show(repr(query))
    finally:
        with contextlib.suppress(Exception):  # of a JVM that is gone
            line.show(repr(query))
            line.end(done=not query.isActive)


class _NotebookLine:
    """A line in the notebook that this process runs."""

    _handle: Any = None

    def show(self, text: str) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)

    def end(self, *, done: bool) -> None:
        """Leave the line as it is."""


class _TerminalLine:
    """The last line of a terminal, which each text is written over; a longer text is cut off."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal, self._shown = terminal, ""

    def show(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed
            width = os.get_terminal_size(self._terminal.fileno()).columns or sys.maxsize
            text = text[: width - 1]
        if text != self._shown:
            self._write(f"\r{text.ljust(len(self._shown))}")
            self._shown = text

    def end(self, *, done: bool) -> None:
        """Go to the next line; of a query that continues, nothing is left.

        A program may wait for it again at once.
        """
        self._write("\n" if done else f"\r{' ' * len(self._shown)}\r")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed: the query does not wait for it
            self._terminal.write(text)
            self._terminal.flush()
