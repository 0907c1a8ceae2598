"""The log of one bucket, read from a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SnapshotLog:
    """A bucket's log that cannot be written to."""

    saved: bytes
    """The meta record."""
    segment: Callable[[int], bytes | None]

    def meta(self) -> bytes:
        return self.saved

    def _refuse(self, *_: Any) -> None:
        raise io.UnsupportedOperation("a log that was read from a checkpoint cannot be written to")

    set_meta = put_segment = remove_segment = _refuse
