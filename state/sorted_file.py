"""Sorted files: a batch's entries in the form in which the index takes them in, without writing them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import BlockBasedOptions, DataBlockIndexType, Options, SstFileWriter

from state.protocol import Bytes, items


def write_sorted(place: Path, keys: Bytes, values: Bytes) -> None:
    """Write the entries (null: delete; of a key that occurs twice the last), at least one; raises what rocksdict raises."""
    order = pc.array_sort_indices(keys)  # stable
    keys, values = keys.take(order), values.take(order)
    last = np.ones(len(keys), bool)
    last[:-1] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    if not last.all():
        keys, values = keys.filter(pa.array(last)), values.filter(pa.array(last))
    writer = SstFileWriter(options())
    writer.open(str(place))
    for key, value in zip(items(keys), items(values), strict=True):
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    writer.finish()


def options(table: BlockBasedOptions | None = None) -> Options:
    """How data files are made, alone or in the index."""
    table = table or BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    chosen = Options(raw_mode=True)
    chosen.set_block_based_table_factory(table)
    return chosen
