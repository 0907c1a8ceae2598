"""Key-value stores for bucketed, bulk-wise stream processing; they know nothing of what is stored in them."""

from state.bucket import BucketStore
from state.errors import CorruptLogError, DamagedIndexError, StateError, StoreMismatchError, UnknownFormatError
from state.memory import MemoryStore
from state.order import byte_order
from state.protocol import BYTES, Bytes, KeyRange, Page, SegmentLog, Store, items, prefix_range

__all__ = [
    "BYTES",
    "BucketStore",
    "Bytes",
    "CorruptLogError",
    "DamagedIndexError",
    "KeyRange",
    "MemoryStore",
    "Page",
    "SegmentLog",
    "StateError",
    "Store",
    "StoreMismatchError",
    "UnknownFormatError",
    "byte_order",
    "items",
    "prefix_range",
]
