"""The session's settings as a call has read them: a table that is made again gets those, whatever the session has by then."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from pyspark.sql import SparkSession

_T = TypeVar("_T")

KeptSettings: TypeAlias = dict[Callable[..., Any], Any]
"""Settings, by the functions that read them."""

_KEPT: ContextVar[KeptSettings | None] = ContextVar("settings_of_call", default=None)


@contextlib.contextmanager
def settings_of_call(kept: KeptSettings | None = None) -> Iterator[KeptSettings]:
    """Keep the settings that are read within, and read none that is kept; calls within are of this one.

    ``kept``: the settings of the call that is repeated.
    """
    of_outer = _KEPT.get()
    found = of_outer if of_outer is not None else {} if kept is None else kept
    token = _KEPT.set(found)
    try:
        yield found
    finally:
        _KEPT.reset(token)


def read_once(read: Callable[[SparkSession], _T]) -> Callable[[SparkSession], _T]:
    """Let a function read a setting once for each ``settings_of_call``; outside, each time."""

    @functools.wraps(read)
    def found(spark: SparkSession) -> _T:
        kept = _KEPT.get()
        if kept is None:
            return read(spark)
        if found not in kept:
            kept[found] = read(spark)
        value: _T = kept[found]
        return value

    return found
