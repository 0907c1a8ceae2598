"""What a Python worker does once, however many tasks it is given."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight: Spark has it look at everything after each task."""
    gc.collect()
    gc.freeze()
