"""Search for a line in the files that it may be from: Spark's reader of lines does not say where a line was."""

from __future__ import annotations

import contextlib
import glob
import gzip
from collections.abc import Iterator
from pathlib import Path

_MOST_FILES, _MOST_BYTES = 1_000, 1 << 30
"""The most that is searched, the newest files first: a query that has failed must end soon."""


def local_pattern(pattern: str) -> str | None:
    """Return a path or glob that names this machine's files, in full; None for those of other file systems."""
    scheme, colon, rest = pattern.partition(":")
    if colon and scheme.isalnum() and not Path(pattern).exists():
        return "/" + rest.lstrip("/") if scheme == "file" else None
    return str(Path(pattern).absolute())


def line_place(line: bytes, pattern: str) -> str | None:
    """Find the file and the number of a line; None if it is not found.

    Parameters
    ----------
    line
        The line, without its end.
    pattern
        The folder, file or glob, see ``local_pattern``.
    """
    left = _MOST_BYTES
    for file in _newest(pattern)[:_MOST_FILES]:
        with contextlib.suppress(OSError, EOFError):  # it is gone, or not readable here
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            if (number := _number(line, data)) is not None:
                return f"{file}, line {number}"
            left -= len(data)
        if left <= 0:
            break
    return None


def _newest(pattern: str) -> list[Path]:
    """The files, the newest first, without those that Spark passes over."""
    found = [Path(pattern)] if Path(pattern).exists() else [Path(name) for name in glob.glob(pattern)]
    files = {file for place in found for file in ([place] if place.is_file() else place.rglob("[!._]*"))}
    times = dict[Path, float]()
    for file in files:
        with contextlib.suppress(OSError):
            if file.is_file():
                times[file] = file.stat().st_mtime
    return sorted(times, key=lambda file: (-times[file], file))


def _number(line: bytes, data: bytes) -> int | None:
    return next((data.count(b"\n", 0, at) + 1 for at in _places(line, data)), None)


def _places(line: bytes, data: bytes) -> Iterator[int]:
    """Find where the line begins and ends as a line."""
    at = data.find(line)
    while at >= 0:
        before, after = data[at - 1 : at], data[at + len(line) : at + len(line) + 1]
        if before in (b"", b"\n", b"\r") and after in (b"", b"\n", b"\r"):
            yield at
        at = data.find(line, at + 1)
