"""A bucket's change log in Spark's state, where each call is a question to the JVM by a socket.

A thread sends what is written.  The JVM takes 2 ms for a question, and each bucket of a small
batch has two to ask.  Meanwhile the operator writes its pending file and hands its results on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class SparkLog:
    """A ``SegmentLog``: committed with the batch, restored and moved by Spark.

    A context manager: its end means that all is written, or raises the error.  One thing is asked
    at a time, in the order of the calls.  So a read waits for the writes before it, and nothing is
    written after a write that failed.
    """

    def __init__(self, meta: Any, segments: Any) -> None:
        """Keep the log in ``meta``, a ``ValueState``, and ``segments``, a ``MapState``.

        Nothing else may use them meanwhile.
        """
        self._meta, self._segments = meta, segments
        self._known: bytes | None = None
        self._writer = ThreadPoolExecutor(1, "change-log")
        self._last: Future[None] | None = None

    def __enter__(self) -> SparkLog:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if failed is None:
            self._wait()

    def meta(self) -> bytes | None:
        if self._known is None:
            self._wait()
            if (row := self._meta.get()) is not None:
                self._known = bytes(row[0])
        return self._known

    def set_meta(self, meta: bytes) -> None:
        self._later(self._meta.update, (meta,))
        self._known = meta

    def segment(self, number: int) -> bytes | None:
        self._wait()
        row = self._segments.getValue((number,))
        return None if row is None else bytes(row[0])

    def put_segment(self, number: int, data: bytes) -> None:
        self._later(self._segments.updateValue, (number,), (data,))

    def remove_segment(self, number: int) -> None:
        self._later(self._segments.removeKey, (number,))

    def _later(self, write: Callable[..., None], *values: Any) -> None:
        self._last = self._writer.submit(_after, self._last, write, *values)

    def _wait(self) -> None:
        """Wait until all is written."""
        if self._last is not None:
            self._last.result()


def _after(before: Future[None] | None, write: Callable[..., None], *values: Any) -> None:
    if before is not None:
        before.result()  # done: there is one thread
    write(*values)
