"""Lines that other processes write into a pipe, handed on by a thread."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

_CAUGHT_UP = b"fkjoin: this is as far as it has come\n"
_PATIENCE_S = 2


class Pump(threading.Thread):
    """Hand each line to a function, until all that write have ended, or this process has."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__(name="fkjoin-log", daemon=True)
        self._take = take
        reading, self.writing = os.pipe()
        self._source = os.fdopen(reading, "rb")
        self._caught_up = threading.Event()

    def run(self) -> None:
        for line in self._source:
            marked = line.endswith(_CAUGHT_UP)  # perhaps at the end of a line that was not finished
            if line := line.removesuffix(_CAUGHT_UP):
                self._take(line)
            if marked:
                self._caught_up.set()
        self._caught_up.set()

    def catch_up(self) -> None:
        """Wait until what is written already has been handed on, for two seconds at most: nothing may read it any more."""
        if self.writing >= 0 and self.is_alive():  # in a fork of this process it is not, and no thread would answer
            self._caught_up.clear()
            if select.select([], [self.writing], [], _PATIENCE_S)[1]:  # else the pipe is full
                os.write(self.writing, _CAUGHT_UP)
                self._caught_up.wait(_PATIENCE_S)

    def leave(self) -> None:
        """Leave the pipe to the processes that still write."""
        self.catch_up()
        os.close(self.writing)
        self.writing = -1
