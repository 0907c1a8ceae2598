"""Peak memory of a process and all that it started."""

from __future__ import annotations

import contextlib
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


def processes() -> dict[str, int]:
    """This process tree: how many processes and threads it has, open files, and resident memory."""
    tree = _tree(os.getpid())
    found = {"processes": len(tree), "threads": 0, "files": 0, "rss_mib": sum(tree.values()) * _PAGE >> 20}
    for process in tree:
        for name, folder in (("threads", "task"), ("files", "fd")):
            with contextlib.suppress(OSError):
                found[name] += len(list(Path(f"/proc/{process}/{folder}").iterdir()))
    return found


def _resident(root: int) -> int:
    return sum(_tree(root).values()) * _PAGE


def _tree(root: int) -> dict[int, int]:
    """Resident pages of a process and all below it."""
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
    found, waiting = {}, [root]
    while waiting:
        process = waiting.pop()
        found[process] = pages.get(process, 0)
        waiting += children.get(process, [])
    return found
