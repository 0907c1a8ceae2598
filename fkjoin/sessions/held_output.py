"""Standard error of a JVM that starts, held back: if it ends because of packages that cannot be had, one line says so."""

from __future__ import annotations

import contextlib
import os
import re
import threading

_FOUND = re.compile(rb".*\d+ artifacts copied, \d+ already retrieved[^\n]*\n", re.DOTALL)
"""The report on packages that were found, and what comes before it."""

_RELEASED = b"fkjoin: the JVM has started\n"
"""The line by which ``release`` tells the thread how far it has held."""


class HeldOutput(threading.Thread):
    """Hold back what other processes write until ``release``, and then hand it on as it comes.

    ``to``: where it goes then, an open file; a JVM writes for as long as it lives.
    """

    def __init__(self, to: int = 2) -> None:
        super().__init__(name="fkjoin-start", daemon=True)
        self._to, self._held = to, b""
        reading, self.writing = os.pipe()
        self._source = os.fdopen(reading, "rb", buffering=0)
        self.start()

    def run(self) -> None:
        """Take what is written until nobody can write any more."""
        released = False
        while some := self._source.read(1 << 16):
            if released:
                self._write(some)
                continue
            self._held += some
            if _RELEASED in self._held:
                released = True
                before, _, after = self._held.partition(_RELEASED)
                self._write(_FOUND.sub(b"", before) + after)

    def said(self) -> str:
        """All that was written; the processes that write have ended."""
        os.close(self.writing)
        self.join()
        return self._held.decode(errors="replace")

    def release(self) -> None:
        """Hand on what was held, without the report on packages that were found."""
        if self.is_alive():
            os.write(self.writing, _RELEASED)
            os.close(self.writing)
        else:
            self._write(self._held)

    def _write(self, some: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more, and those that write must not wait
            while some:
                some = some[os.write(self._to, some) :]
