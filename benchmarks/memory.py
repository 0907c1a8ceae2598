"""Peak memory of a process and all that it started."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakMemory(threading.Thread):
    """Samples the resident memory of this process tree ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, _resident(os.getpid()))

    def stop(self) -> int:
        """The peak in MiB."""
        self._over.set()
        return round(self.peak_bytes / 2**20)


def _resident(root: int) -> int:
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            after_name = (place / "stat").read_text().rpartition(")")[2].split()
            pages[int(place.name)] = int((place / "statm").read_text().split()[1])
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(place.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += pages.get(process, 0)
        waiting += children.get(process, [])
    return total * _PAGE
