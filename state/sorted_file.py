"""Sorted files: a batch's entries in a form that the index takes in without writing them again."""

from __future__ import annotations

from pathlib import Path

from rocksdict import BlockBasedOptions, DataBlockIndexType, Options, SstFileWriter

from fkjoin.state.protocol import Bytes, items
from fkjoin.state.tail import in_order


def write_sorted(path: Path, keys: Bytes, values: Bytes) -> None:
    """Write the entries (null: delete; of a key that occurs twice the last), at least one.

    Raises what rocksdict raises.
    """
    keys, values = in_order(keys, values)
    writer = SstFileWriter(options())
    writer.open(str(path))
    for key, value in zip(items(keys), items(values), strict=True):
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    writer.finish()


def options(table: BlockBasedOptions | None = None) -> Options:
    """Options of data files, alone or in the index."""
    table = table or BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    chosen = Options(raw_mode=True)
    chosen.set_block_based_table_factory(table)
    return chosen
