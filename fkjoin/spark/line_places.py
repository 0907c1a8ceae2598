"""Search for a line in the files that it may be from.

Spark's reader of lines does not say where a line was.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
from pathlib import Path
from typing import TextIO, cast

_MOST_FILES, _MOST_BYTES = 1_000, 1 << 30
"""The most that is searched, the newest files first: a query that has failed must end soon."""


def local_pattern(pattern: str) -> str | None:
    """Return a path or glob of this machine's files, in full; None for other file systems."""
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
    text, left = line.decode("latin-1"), _MOST_BYTES
    for file in _newest(pattern)[:_MOST_FILES]:
        # The file may be gone, or not readable here.
        with contextlib.suppress(OSError, EOFError), _opened(file) as lines:
            for number, candidate in enumerate(lines, 1):
                if candidate.removesuffix("\n") == text:
                    return f"{file}, line {number}"
                left -= len(candidate)
                if left <= 0:
                    return None
    return None


def _opened(file: Path) -> TextIO:
    """The lines of a file, whatever ends them, with a character for each byte."""
    if file.suffix == ".gz":
        return cast(TextIO, gzip.open(file, "rt", encoding="latin-1"))
    return file.open(encoding="latin-1")


def _newest(pattern: str) -> list[Path]:
    """The files, the newest first, without those that Spark passes over."""
    roots = [pattern] if Path(pattern).exists() else glob.glob(pattern)
    files = set[Path]()
    for root in map(Path, roots):
        files.update([root] if root.is_file() else root.rglob("[!._]*"))
    times = dict[Path, float]()
    for file in files:
        with contextlib.suppress(OSError):
            if file.is_file():
                times[file] = file.stat().st_mtime
    return sorted(times, key=lambda file: (-times[file], file))
