"""Files of the claims on a checkpoint, numbered: the one with the highest number is the claim.

To take over a claim is to make the file of the next number, which fails if it is there.  So one of
two processes succeeds, and the owner before notices it when it renews its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.files import checkpoint_files

CLAIM_FILE = "fkjoin-job.claim"
"""The beginning of the files' names; a number follows."""

_NAME = re.compile(re.escape(CLAIM_FILE) + r"\.([0-9]+)")
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


class ClaimFiles:
    """The claims on one checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self.checkpoint = checkpoint.rstrip("/")
        self.folder = checkpoint_files(spark, self.checkpoint)
        """The files in the checkpoint's folder."""
        self.place = self.folder.root
        """The checkpoint's folder in full."""

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
        if not self.folder.create(_name(number), content):
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
        if not self.folder.touch(_name(number)):
            self.write(number, content)

    def write(self, number: int, content: bytes) -> None:
        """Write an own claim again, which another program has deleted or emptied."""
        self.folder.write(_name(number), content)

    def give_up(self, number: int) -> None:
        """Leave the claim without an owner; the file stays, so that its number does not come again.

        No file vanishes from under a program that copies or deletes the folder when the query has
        ended.
        """
        local = self.folder.local
        if local is None:
            self.write(number, _GIVEN_UP)
            return
        os.truncate(local / _name(number), 0)
        # The query did not come to its start.
        if self.folder.names() == [_name(number)]:
            (local / _name(number)).unlink()
            local.rmdir()

    def _numbers(self) -> Iterator[int]:
        matches = map(_NAME.fullmatch, self.folder.names())
        return (int(match[1]) for match in matches if match is not None)

    def _read(self, number: int) -> Claim:
        content = self.folder.read(_name(number))
        status = self.folder.status(_name(number))
        if status is None:
            raise FileNotFoundError(_name(number))
        # HDFS shows a file that is being made as an empty one: another process has that claim.
        given_up = _GIVEN_UP if self.folder.local is None else b""
        return Claim(number, content, status.changed_ms / 1000, content == given_up)

    def _delete(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self.folder.delete(_name(number))


def _name(number: int) -> str:
    return f"{CLAIM_FILE}.{number}"
