"""What a process and all that it started take: memory and processor time."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Footprint(threading.Thread):
    """Samples a process tree ten times a second: resident memory, and processor time."""

    def __init__(self, root: int | None = None) -> None:
        super().__init__(daemon=True)
        self._root = root or os.getpid()
        self._peak_bytes = 0
        self._ticks: dict[int, int] = {}
        self._over = threading.Event()

    def run(self) -> None:
        before: dict[int, Sample] = {}
        while not self._over.wait(0.1):
            tree = _tree(self._root)
            # A process that is just being forked shares its parent's memory: count those that are there twice.
            self._peak_bytes = max(
                self._peak_bytes, sum(tree[process].pages for process in tree.keys() & before.keys()) * _PAGE
            )
            self._ticks.update({process: sample.ticks for process, sample in tree.items()})
            before = tree

    def stop(self) -> tuple[int, float]:
        """The peak in MiB, and the processor seconds of all processes that were seen."""
        self._over.set()
        return round(self._peak_bytes / 2**20), sum(self._ticks.values()) / _TICKS


class Sample(NamedTuple):
    """A process: its name, resident pages and processor time."""

    name: str
    pages: int
    ticks: int


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


def _tree(root: int) -> dict[int, Sample]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    samples: dict[int, Sample] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
            after_name = rest.split()
            pages = int((place / "statm").read_text().split()[1])
        except OSError:
            continue
        samples[int(place.name)] = Sample(name, pages, int(after_name[11]) + int(after_name[12]))
        children.setdefault(int(after_name[1]), []).append(int(place.name))
    found, waiting = {}, [root]
    while waiting:
        process = waiting.pop()
        found[process] = samples.get(process, Sample("", 0, 0))
        waiting += children.get(process, [])
    return found
