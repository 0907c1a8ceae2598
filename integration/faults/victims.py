"""The engine's own classes, which kill a process before or after a point when they are told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.specs import Messages, StageSpec
from fkjoin.state import bucket
from fkjoin.state.index import RocksIndex
from fkjoin.state.pending import Waiting

DRIVER_FILE = "driver.pid"
ZOMBIES_FILE = "zombies.pid"


def crash_if_told(point: str, when: str) -> None:
    """Crash if the file named by FKJOIN_FAULT says ``point|when|victim`` for here, and this process is first to rename it."""
    fault = Path(os.environ["FKJOIN_FAULT"])
    try:
        wanted = fault.read_text().strip().split("|")
        if wanted[:2] != [point, when]:
            return
        fault.rename(f"{fault}.done")
    except FileNotFoundError:
        return
    if wanted[2] == "driver":
        os.killpg(int(fault.with_name(DRIVER_FILE).read_text()), signal.SIGKILL)
    elif wanted[2] == "driver that stands still":  # until the test lets its processes go on
        os.killpg(os.getpgid(0), signal.SIGSTOP)
        return
    elif wanted[2] == "zombie":
        processes = [_executor(), os.getpid()]
        fault.with_name(ZOMBIES_FILE).write_text(" ".join(map(str, processes)))
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        return
    else:
        os.kill(os.getpid() if wanted[2] == "worker" else _executor(), signal.SIGKILL)
    time.sleep(60)


def told(point: str) -> bool:
    """Tell whether a fault at the point is still to happen."""
    fault = Path(os.environ["FKJOIN_FAULT"])
    return fault.exists() and fault.read_text().startswith(f"{point}|")


def _executor() -> int:
    """The process of the JVM, which is the parent of the daemon that this worker was forked from."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])


def around(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        crash_if_told(point, "before")
        found = function(*args, **kwargs)
        crash_if_told(point, "after")
        return found

    return wrapped


def _written_if_told(waiting: Callable[..., Waiting | None]) -> Callable[..., Waiting | None]:
    """Write the index once in a while, or when a crash is to happen then."""

    def wrapped(*places: Any) -> Waiting | None:
        found = waiting(*places)
        return None if found is not None and len(found.positions) > 1 and told("index write") else found

    return wrapped


class Processor(StageProcessor):
    """A stage that may crash before and after its work, and at what it writes."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self._meta.update = around("log write", self._meta.update)  # type: ignore[method-assign]
        if not hasattr(RocksIndex, "faulty"):  # once per worker process
            RocksIndex.faulty = True  # type: ignore[attr-defined]
            RocksIndex.take_in = around("index write", RocksIndex.take_in)  # type: ignore[method-assign]
            bucket.pending.keep = around("pending file", bucket.pending.keep)
            bucket.pending.waiting = _written_if_told(bucket.pending.waiting)
            StageSpec.run = around_work(StageSpec.run)  # type: ignore[method-assign]


def around_work(run: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def wrapped(self: StageSpec, messages: Messages, *rest: Any) -> Iterator[Any]:
        if not messages.tables:
            yield from run(self, messages, *rest)
            return
        crash_if_told(self.stage, "before")
        yield from run(self, messages, *rest)  # which takes them out of the list
        crash_if_told(self.stage, "after")

    return wrapped


def take_the_place_of_the_engines() -> None:
    """Have plans that are made from now on run these classes."""
    # Workers import this module, and need no planner.
    from fkjoin.lowering import table_plan
    from fkjoin.spark import on_spark

    on_spark.StageProcessor = Processor  # type: ignore[misc]
    table_plan.PackChanges = Packing  # type: ignore[misc]


@dataclass(frozen=True)
class Packing(PackChanges):
    """The reading side, which may crash before and after its rows."""

    def __call__(self, batches: Any) -> Iterator[Any]:
        for made in super().__call__(batches):
            crash_if_told("read", "before")
            yield made
        crash_if_told("read", "after")
