"""The RocksDB database of an index: its options, its files, and when these are merged."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    Options,
    Rdict,
    SstFileWriter,
)

from fkjoin.state.protocol import Bytes, items
from fkjoin.state.tail import in_order

_SOON_BYTES = 32 << 20
"""An index of this size is merged in less than half a second: it is small."""

_MERGED_S = 10.0
"""The longest that is waited for it."""


def open_database(path: Path, *, writing: bool = True) -> Rdict:
    """Open what is there; for writing, make it if there is none, under a lock.

    The entries are in a column family, and one that is there already takes its options from nowhere
    else: without them files would be read, and written when they are merged, without their filters.
    """
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    chosen = _options(table)
    chosen.create_if_missing(True)
    chosen.set_max_background_jobs(2)
    chosen.set_keep_log_file_num(1)
    if writing:
        chosen.set_level_zero_file_num_compaction_trigger(
            _piled(sum(file.stat().st_size for file in path.glob("*.sst")))
        )
    access = AccessType.read_write() if writing else AccessType.read_only()
    return Rdict(str(path), chosen, {"default": chosen}, access)


def merge(db: Rdict) -> None:
    """Wait for RocksDB to merge what was taken in, if there is much of it: closing stops that, and
    what small batches do takes no longer than a moment, so that files would pile up, each of which
    every read looks into.
    """
    piled, deadline = _piled(says(db, "total-sst-files-size")), time.monotonic() + _MERGED_S
    while says(db, "num-files-at-level0") >= piled and time.monotonic() < deadline:
        if not says(db, "compaction-pending") and not says(db, "num-running-compactions"):
            return
        time.sleep(0.001)


def says(db: Rdict, name: str) -> int:
    """A property of RocksDB that is a number; 0 if it is not known."""
    return int(db.property_value(f"rocksdb.{name}") or 0)


def live_files(db: Rdict) -> dict[str, int]:
    """Names and bytes of the data files of the version that is open, as RocksDB knows them."""
    return {str(file["name"]).lstrip("/"): int(file["size"]) for file in db.live_files()}


def _piled(size: int) -> int:
    """Return from how many files over one another on an index of ``size`` bytes is merged before it
    is closed.

    RocksDB begins no merge earlier: closing would stop it, and lose what it has done.
    """
    return 4 if size <= _SOON_BYTES else 12


@cache
def _block_cache() -> Cache:
    return Cache(32 << 20)


def write_sorted(path: Path, keys: Bytes, values: Bytes) -> None:
    """Write a sorted file: entries in a form that an index takes in without writing them again.

    Null: delete; of a key that occurs twice the last; at least one entry.  Raises what rocksdict
    raises.
    """
    keys, values = in_order(keys, values)
    writer = SstFileWriter(_options(BlockBasedOptions()))
    writer.open(str(path))
    for key, value in zip(items(keys), items(values), strict=True):
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    writer.finish()


def _options(table: BlockBasedOptions) -> Options:
    """Options of data files, alone or in the index."""
    table.set_bloom_filter(10, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    chosen = Options(raw_mode=True)
    chosen.set_block_based_table_factory(table)
    return chosen
