"""Memory and processor time of a process and all that it started.

Memory is the sum of what each process holds (PSS): pages that several share, as forked workers do, count once.  The sum of
resident pages (RSS) counts them for each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Peak(NamedTuple):
    """The peak of all processes together, in MiB, and their processor time in seconds, of those that were seen."""

    pss_mib: int
    rss_mib: int
    cpu_s: float

    def named(self) -> dict[str, float]:
        """The figures as a benchmark's line has them."""
        return {"peak_mib": self.pss_mib, "peak_rss_mib": self.rss_mib, "cpu_s": round(self.cpu_s, 1)}


_INTERVAL_S = 0.4
_REST = 50
"""Looks at shared pages take long, and stop processes that allocate: after each, this many times as long is without one."""


class Footprint(threading.Thread):
    """Samples a process tree: resident memory and processor time, shared pages where there may be a peak.

    It runs beside what it measures, on the same cores, of which it takes some hundredths of one.
    """

    def __init__(self, root: int | None = None) -> None:
        super().__init__(daemon=True)
        self._root = root or os.getpid()
        self._pss_kib = self._rss_kib = self._looked_at_kib = 0
        self._before: dict[int, Sample] = {}
        self._ticks: dict[int, int] = {}
        self._over = threading.Event()
        self._rests_until = 0.0

    def run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            self._sample()

    def stop(self) -> Peak:
        """The peak until now; the last look, which stops no work any more, is taken without a rest."""
        self._over.set()
        self.join()
        self._rests_until = 0.0
        self._sample()
        return self.peak()

    def peak(self) -> Peak:
        """The peak so far."""
        return Peak(self._pss_kib >> 10, self._rss_kib >> 10, sum(self._ticks.values()) / _TICKS)

    def _sample(self) -> None:
        tree = _tree(self._root)
        # A process that is just being forked shares its parent's memory: count those that are there twice.
        there = tree.keys() & self._before.keys()
        self._before = tree
        resident = sum(tree[process].pages for process in there) * _PAGE >> 10
        self._rss_kib = max(self._rss_kib, resident)
        if resident > self._looked_at_kib and (start := time.perf_counter()) > self._rests_until:
            self._looked_at_kib = resident
            self._pss_kib = max(self._pss_kib, sum(map(_held_kib, there)))
            end = time.perf_counter()
            self._rests_until = end + _REST * (end - start)
        self._ticks |= {process: max(sample.ticks, self._ticks.get(process, 0)) for process, sample in tree.items()}


class Sample(NamedTuple):
    """A process: its name, resident pages and processor time."""

    name: str
    pages: int
    ticks: int


def processor_s() -> float:
    """Processor time of this process tree until now, of those that have not ended."""
    return sum(sample.ticks for sample in _tree(os.getpid()).values()) / _TICKS


def processes() -> dict[str, int]:
    """This process tree: how many processes and threads it has, open files, and resident memory of the JVM and the others."""
    tree = _tree(os.getpid())
    found = {"processes": len(tree), "threads": 0, "files": 0, "jvm_mib": 0, "python_mib": 0}
    for sample in tree.values():
        found["jvm_mib" if sample.name == "java" else "python_mib"] += sample.pages * _PAGE >> 20
    for process in tree:
        for name, folder in (("threads", "task"), ("files", "fd")):
            with contextlib.suppress(OSError):
                found[name] += len(list(Path(f"/proc/{process}/{folder}").iterdir()))
    return found


def _held_kib(process: int) -> int:
    """PSS of a process; 0 of one that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _tree(root: int) -> dict[int, Sample]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    samples: dict[int, Sample] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        after_name = rest.split()
        samples[int(place.name)] = Sample(name, int(after_name[21]), int(after_name[11]) + int(after_name[12]))
        children.setdefault(int(after_name[1]), []).append(int(place.name))
    found, waiting = {}, [root]
    while waiting:
        process = waiting.pop()
        found[process] = samples.get(process, Sample("", 0, 0))
        waiting += children.get(process, [])
    return found
