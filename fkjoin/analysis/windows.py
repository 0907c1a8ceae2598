"""Windows of time as groups: what ``fkjoin.window`` makes, and when windows of a table close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructField, StructType, TimestampType

from fkjoin.analysis.checks import Deployment
from fkjoin.analysis.delta_feed import reads_commit_time
from fkjoin.analysis.emission import Emit, interval_us
from fkjoin.analysis.planned import Planned, sources_below
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.plan.base import ON_CLOSE, Node, in_order, periodic
from fkjoin.plan.nodes import Aggregate
from fkjoin.spark.schemas import Expression
from fkjoin.spark.spark_api import require_classic
from fkjoin.spark.trigger import interval_ms
from fkjoin.stages.time_windows import END, START

_SHORTEST_IDLE_MS = 1000
_MOST_WINDOWS = 1000
"""The most windows that a row may be in."""


@dataclass(frozen=True, eq=False)
class Window:
    """Windows of time in the key of ``Table.group_by``; ``window`` makes one."""

    time: Expression
    size_us: int
    slide_us: int
    text: str

    def __repr__(self) -> str:
        return self.text


def window(time: Expression, size: str, slide: str | None = None) -> Window:
    """Make windows of time, as one of the keys of ``Table.group_by``.

    A row belongs to each window that contains its time. Windows begin at multiples of ``slide``
    since 1970-01-01 in UTC. The key of the result contains the columns ``window_start`` and
    ``window_end``; the end is not part of the window.

    Parameters
    ----------
    time : str or Column
        The time of a row: a column or an expression of type ``timestamp``.
    size : str
        The length of a window, for example ``"10 minutes"``.
    slide : str, optional
        The time between the starts of two windows. By default ``size``, so that each row is in one
        window.

    Returns
    -------
    Window

    Raises
    ------
    TopologyError
        If an interval is wrong; the message says which, and why.

    Examples
    --------
    >>> ten_minutes = window("ordered_at", "10 minutes")
    >>> each_five = window("ordered_at", "10 minutes", "5 minutes")
    """
    size_us = interval_us("size", size)
    slide_us = size_us if slide is None else interval_us("slide", slide)
    if size_us <= 0 or slide_us <= 0:
        raise TopologyError(
            'window: size and slide must be positive; give an interval such as "10 minutes"'
        )
    if slide_us > size_us:
        raise TopologyError(
            f"slide: {slide} is longer than the size, {size}: rows would be in no window; give at "
            "most the size"
        )
    if size_us > slide_us * _MOST_WINDOWS:
        raise TopologyError(
            f"slide: a row would be in more than {_MOST_WINDOWS} windows; give a longer slide"
        )
    return Window(
        time, size_us, slide_us, f"window({time}, {size}{'' if slide is None else f', {slide}'})"
    )


def without_window(key: Any) -> tuple[Window | None, Any]:
    """The window among the keys, if there is one, and the keys with its time.

    The time then comes first.
    """
    keys = list(key) if isinstance(key, list | tuple) else [key]
    windows = [item for item in keys if isinstance(item, Window)]
    if not windows:
        return None, key
    if len(windows) > 1:
        raise TopologyError(
            "key: only one window can be in a key; leave one in it, and group the result by the "
            "other"
        )
    return windows[0], [windows[0].time, *(item for item in keys if not isinstance(item, Window))]


def windowed(kind: StructType) -> StructType:
    """The type of a group's key, of that with the row's time in its first column."""
    time, *others = kind
    return StructType([StructField(START, time.dataType), StructField(END, time.dataType), *others])


@dataclass(frozen=True)
class Options:
    """The arguments of ``Table.group_by`` besides key and value."""

    name: str | None = None
    emit: Emit = "on-change"
    deployment: Deployment = "fused"
    application: str | None = None
    grace: str | None = None
    idle: str | None = None
    ahead: str | None = None
    window: Window | None = None
    """The window among the keys."""


@dataclass(frozen=True)
class Closes:
    """The times at which windows close."""

    window: Window
    grace: str
    idle: str | None
    ahead: str | None
    grace_us: int
    idle_ms: int | None
    ahead_us: int | None

    @staticmethod
    def of(options: Options) -> Closes | None:
        """Check that arguments of ``Table.group_by`` go together.

        None where groups are not windows.
        """
        window, emit = options.window, options.emit
        grace, idle, ahead = options.grace, options.idle, options.ahead
        if window is None:
            if emit == ON_CLOSE:
                raise TopologyError(
                    f'emit: "{ON_CLOSE}" is for windows; put fkjoin.window(…) into the key'
                )
            for argument, value in (("grace", grace), ("idle", idle), ("ahead", ahead)):
                if value is not None:
                    raise TopologyError(
                        f"{argument}: this argument is only for windows; put fkjoin.window(…) into "
                        "the key, or leave the argument out"
                    )
            return None
        if emit != ON_CLOSE:
            raise TopologyError(
                f"emit: a window is sent once, when it closes, so {emit!r} cannot be used; give "
                f'emit="{ON_CLOSE}"'
            )
        grace_us = 0 if grace is None else interval_us("grace", grace)
        idle_ms = None if idle is None else interval_us("idle", idle) // 1000
        ahead_us = None if ahead is None else interval_us("ahead", ahead)
        if grace_us < 0:
            raise TopologyError(
                f'grace: {grace} is less than zero; give an interval such as "2 minutes"'
            )
        if idle_ms is not None and idle_ms < _SHORTEST_IDLE_MS:
            raise TopologyError(
                f'idle: {idle} is too short; give at least "{_SHORTEST_IDLE_MS // 1000} second"'
            )
        if ahead_us is not None and ahead_us < 0:
            raise TopologyError(
                f'ahead: {ahead} is less than zero; give an interval such as "1 hour"'
            )
        return Closes(window, grace or "0 seconds", idle, ahead, grace_us, idle_ms, ahead_us)

    def check(self, table: Planned, key: StructType, deployment: str) -> None:
        """Raise ``TopologyError`` if windows of the table cannot close."""
        require_classic(
            table.spark,
            f'emit="{ON_CLOSE}"',
            "leave out the window, and group by date_trunc(…)",
        )
        if deployment != "fused":
            raise TopologyError("deployment: windows cannot be staged; leave the deployment fused")
        if not isinstance(key[0].dataType, TimestampType):
            kind = key[0].dataType.simpleString()
            raise ColumnTypeError(
                f"key: the window's time {self.window.time} is {kind}; write "
                f"cast({self.window.time} as timestamp)"
            )
        for node in in_order(table.node):
            if periodic(node):
                raise TopologyError(
                    f"emit: {node.name} sends its rows at intervals, and they would be late for "
                    f"the windows; leave out the emit of {node.name}"
                )
            if isinstance(node, Aggregate) and node.closes is not None:
                raise TopologyError(
                    f"key: {node.name} already aggregates by windows; group the table below "
                    f"{node.name}, by a longer window"
                )
            if node.staged:
                raise TopologyError(
                    f"key: {node.name} is staged, and windows cannot read a staged table; leave "
                    f"the deployment of {node.name} fused"
                )
        for source in sources_of(table):
            _check_times(source)


def _check_times(source: Planned) -> None:
    """Raise ``TopologyError`` if the source's timestamps cannot close windows."""
    if source.timestamps != "timestamp":
        has = f"timestamps of type {source.timestamps}" if source.timestamps else "no timestamps"
        raise TopologyError(
            f"key: the table {source.name} has {has}; give it timestamp=, a column of type "
            "timestamp"
        )
    if reads_commit_time(source):
        raise TopologyError(
            f"key: windows cannot use the commit time of Delta table {source.name}: its first rows "
            "all have the same one, so most would be late. Give the table timestamp=, an "
            "expression of the rows' own times, and group_by a grace= that covers the disorder of "
            "these times in the files; or group by date_trunc(…) without a window"
        )


def sources_of(table: Planned) -> tuple[Planned, ...]:
    """The sources of the table, each once."""
    return tuple({source.name: source for source in sources_below(table)}.values())


def require_idle_in_time(node: Node, trigger: Mapping[str, Any]) -> None:
    """Raise ``TopologyError`` if batches are too far apart for a source of windows ever to be idle.

    ``trigger``: arguments of ``DataStreamWriter.trigger``.
    """
    apart_us = 1000 * (interval_ms(trigger) or 0)
    for step in in_order(node):
        idle = step.closes[1] if isinstance(step, Aggregate) and step.closes is not None else None
        if idle is not None and interval_us("idle", idle) < apart_us:
            raise TopologyError(
                f"trigger: {trigger['processingTime']} is longer than {idle}, the idle time of "
                f"{step.name}, so no source would ever be idle; give a trigger that is much "
                f"shorter than {idle}, or a longer idle"
            )
