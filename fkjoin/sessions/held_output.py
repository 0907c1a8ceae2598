"""What a JVM says while it starts, held back: if it ends because of packages that cannot be had, one line says so."""

from __future__ import annotations

import contextlib
import os
import re
import threading

_PACKAGES = re.compile(rb".*\d+ artifacts copied, \d+ already retrieved[^\n]*\n", re.DOTALL)
"""The report on packages that were found, and what comes before it."""


class HeldOutput(threading.Thread):
    """Hold lines of other processes back until ``release``, and then hand them on as they come.

    ``to``: where they go then, an open file; a JVM writes for as long as it lives.
    """

    def __init__(self, to: int = 2) -> None:
        super().__init__(name="fkjoin-start", daemon=True)
        self._to, self._held, self._released = to, b"", False
        self._lock = threading.Lock()
        reading, self.writing = os.pipe()
        self._source = os.fdopen(reading, "rb", buffering=0)
        self.start()

    def run(self) -> None:
        """Take what is written until nobody can write any more."""
        while some := self._source.read(1 << 16):
            with self._lock:
                if self._released:
                    self._write(some)
                else:
                    self._held += some

    def said(self) -> str:
        """All that was written, once the processes that write have ended."""
        self._close()
        self.join()
        return self._held.decode(errors="replace")

    def release(self) -> None:
        """Hand on what was held, without the report on packages that were found."""
        with self._lock:
            self._released = True
            self._write(_PACKAGES.sub(b"", self._held))
        self._close()

    def _close(self) -> None:
        """Leave the pipe to the processes that write."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def _write(self, some: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more, and those that write must not wait
            while some:
                some = some[os.write(self._to, some) :]
