"""Key-value stores for bucketed, bulk-wise stream processing; what is in them is only bytes."""

from fkjoin.state.bucket import BucketStore
from fkjoin.state.errors import (
    CorruptLogError,
    DamagedIndexError,
    StateError,
    StoreMismatchError,
    UnknownFormatError,
)
from fkjoin.state.memory import MemoryStore
from fkjoin.state.order import byte_order
from fkjoin.state.protocol import (
    BYTES,
    Bytes,
    KeyRange,
    Page,
    Reads,
    SegmentLog,
    Store,
    items,
    prefix_range,
)

__all__ = [
    "BYTES",
    "BucketStore",
    "Bytes",
    "CorruptLogError",
    "DamagedIndexError",
    "KeyRange",
    "MemoryStore",
    "Page",
    "Reads",
    "SegmentLog",
    "StateError",
    "Store",
    "StoreMismatchError",
    "UnknownFormatError",
    "byte_order",
    "items",
    "prefix_range",
]
