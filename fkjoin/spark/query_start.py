"""The start of a query, or a check.

What goes wrong in it is of no batch yet, and it can look around while it waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from fkjoin.errors import FkJoinError


class UnreachableError(FkJoinError):
    """A place that is not reached in a check, or at a query's start: no batch waits for it yet."""


class _Start(threading.local):
    """The start that a thread is amid, if any; each batch has another thread, or a process."""

    looks: Callable[[], None] | None = None


_start = _Start()


@contextlib.contextmanager
def starting(looks: Callable[[], None] | None = None) -> Iterator[None]:
    """Check or start a query inside: errors speak of no batch, and are ``UnreachableError``.

    ``looks`` is called often while work waits for its next try; what it throws ends the wait.
    """
    before = _start.looks
    _start.looks = looks or before or (lambda: None)
    try:
        yield
    finally:
        _start.looks = before


def is_amid() -> bool:
    """Tell whether the thread is amid a start or a check."""
    return _start.looks is not None


def look() -> None:
    """Let the start that waits look around."""
    if _start.looks is not None:
        _start.looks()


def unreached(problem: str, mend: str = "Fix that") -> FkJoinError:
    """Return the error of a place that refuses, or is not there.

    It says what to do: first ``mend``.
    """
    if is_amid():
        return UnreachableError(f"{problem}. {mend} and start again")
    return FkJoinError(f"{problem}. {mend} and start the query again: it continues with this batch")
