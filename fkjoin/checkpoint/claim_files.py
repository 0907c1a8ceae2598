"""Files of the claims on a checkpoint, numbered: the one with the highest number is the claim.

To take over a claim is to make the file of the next number, which fails if it is there.  So one of
two processes succeeds, and the owner before notices it when it renews its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import create_file, hadoop, local_path, read_file, write_file

CLAIM_FILE = "fkjoin-job.claim"
"""The beginning of the files' names; an older release has one file of this name."""

_NAME = re.compile(re.escape(CLAIM_FILE) + r"(?:\.([0-9]+))?")
_GIVEN_UP = b"{}"


class Claim(NamedTuple):
    """A claim, as its file has it."""

    number: int
    content: bytes
    changed: float
    """Time of the file's last change, on whichever clock."""
    is_free: bool
    """Tells that the owner gave it up."""

    @property
    def owner(self) -> dict[str, Any]:
        """Facts about the owner; none where the file is not whole, or not a claim's."""
        with contextlib.suppress(ValueError):
            match json.loads(self.content):
                case {"host": str(), "process": int()} as owner:
                    return owner
        return {}


@dataclass(frozen=True)
class ClaimFiles:
    """The claims on one checkpoint."""

    spark: SparkSession
    checkpoint: str

    @cached_property
    def place(self) -> str:
        """The checkpoint's folder in full."""
        path, files = hadoop(self.spark, self.checkpoint)
        return str(files.makeQualified(path))

    @cached_property
    def local(self) -> Path | None:
        """The folder, if it is on this machine: what is done there needs no JVM."""
        return local_path(*hadoop(self.spark, self.checkpoint))

    def newest(self) -> Claim | None:
        """The claim, which may be free; None if there never was one."""
        while (number := max(self._numbers(), default=None)) is not None:
            try:
                return self._read(number)
            except Exception:
                if number in self._numbers():  # else it was deleted, as the next one was made
                    raise
        return None

    def next(self) -> int:
        """The number of the next claim."""
        return max(self._numbers(), default=0) + 1

    def make(self, number: int, content: bytes) -> bool:
        """Make the claim of that number; False if another process was faster."""
        if not create_file(*self._at(number), content):
            return False
        numbers = list(self._numbers())
        if max(numbers, default=number) > number:  # the one of this number had been deleted
            self._delete(number)
            return False
        for older in numbers:
            if older < number:
                self._delete(older)
        return True

    def renew(self, number: int, content: bytes) -> None:
        """Show that the owner is alive, by the file's time.

        A process that is killed while it writes would leave a claim without a name.  In object
        stores, which replace a file as a whole, the file is written again.
        """
        if self.local is not None:
            os.utime(self.local / _name(number))
        elif not _dated(*self._at(number)):
            self.write(number, content)

    def write(self, number: int, content: bytes) -> None:
        """Write an own claim again, which another program has deleted or emptied."""
        write_file(*self._at(number), content)

    def give_up(self, number: int) -> None:
        """Leave the claim without an owner; the file stays, so that its number does not come again.

        No file vanishes from under a program that copies or deletes the folder when the query has
        ended.
        """
        if self.local is None:
            self.write(number, _GIVEN_UP)
            return
        os.truncate(self.local / _name(number), 0)
        # The query did not come to its start.
        if [file.name for file in self.local.iterdir()] == [_name(number)]:
            (self.local / _name(number)).unlink()
            self.local.rmdir()

    def _numbers(self) -> Iterator[int]:
        names: list[str] = []
        if self.local is not None:
            if self.local.is_dir():
                names = [file.name for file in self.local.iterdir()]
        else:
            path, files = hadoop(self.spark, self.checkpoint)
            if files.exists(path):
                names = [status.getPath().getName() for status in files.listStatus(path)]
        matches = map(_NAME.fullmatch, names)
        return (int(match[1] or 0) for match in matches if match is not None)

    def _read(self, number: int) -> Claim:
        if self.local is not None:
            file = self.local / _name(number)
            content, changed = file.read_bytes(), file.stat().st_mtime
            return Claim(number, content, changed, is_free=not content)
        path, files = self._at(number)
        content = read_file(path, files)
        changed = files.getFileStatus(path).getModificationTime() / 1000
        return Claim(number, content, changed, is_free=content == _GIVEN_UP)

    def _delete(self, number: int) -> None:
        path, files = self._at(number)
        with contextlib.suppress(Exception):
            files.delete(path, False)

    def _at(self, number: int) -> tuple[Any, Any]:
        return hadoop(self.spark, f"{self.checkpoint}/{_name(number)}")


def _name(number: int) -> str:
    return f"{CLAIM_FILE}.{number}" if number else CLAIM_FILE


def _dated(path: Any, files: Any) -> bool:
    """Tell whether the file has the time of now; not all file systems can do that."""
    now_ms = int(time.time() * 1000)
    with contextlib.suppress(Exception):
        files.setTimes(path, now_ms, -1)
        return bool(abs(files.getFileStatus(path).getModificationTime() - now_ms) < 1000)
    return False
