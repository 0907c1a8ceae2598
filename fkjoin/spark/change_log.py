"""A bucket's change log in Spark's state, of which each call is a question to the JVM, over a socket.

What is written is sent by a thread: while the JVM answers (2 ms a question, and each bucket of a small batch has two to
ask), the operator writes its pending file and hands its results on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class SparkLog:
    """A ``SegmentLog``: committed with the batch, restored and moved by Spark.

    A context manager: its end means that all is written, or raises the error.  One thing is asked at a time, and in the
    order of the calls: a read waits for the writes before it, and nothing is written after a write that failed.
    """

    def __init__(self, meta: Any, segments: Any) -> None:
        """Keep the log in ``meta``, a ``ValueState``, and ``segments``, a ``MapState``; nothing else may use them meanwhile."""
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
            if (found := self._meta.get()) is not None:
                self._known = bytes(found[0])
        return self._known

    def set_meta(self, meta: bytes) -> None:
        self._later(self._meta.update, (meta,))
        self._known = meta

    def segment(self, number: int) -> bytes | None:
        self._wait()
        found = self._segments.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_segment(self, number: int, data: bytes) -> None:
        self._later(self._segments.updateValue, (number,), (data,))

    def remove_segment(self, number: int) -> None:
        self._later(self._segments.removeKey, (number,))

    def _later(self, write: Callable[..., None], *given: Any) -> None:
        self._last = self._writer.submit(_after, self._last, write, *given)

    def _wait(self) -> None:
        """Wait until all is written."""
        if self._last is not None:
            self._last.result()


def _after(before: Future[None] | None, write: Callable[..., None], *given: Any) -> None:
    if before is not None:
        before.result()  # done: there is one thread
    write(*given)
