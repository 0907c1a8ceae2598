"""A reader that gives rows as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa


class Reading:
    """Rows as they are."""

    def packing(self, pack: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> object:
        return pack
