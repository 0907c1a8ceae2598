"""Rows packed for the first stage; no Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fkjoin.codec import versions
from fkjoin.errors import FormatError
from fkjoin.spark.packing import versions_of


def batch(numbers: list[int | None]) -> pa.RecordBatch:
    rows = len(numbers)
    return pa.record_batch(
        {
            "key": pa.StructArray.from_arrays([pa.array([f"k{row}" for row in range(rows)])], ["id"]),
            "version": pa.StructArray.from_arrays([pa.array(numbers, pa.int64())], ["lsn"]),
            "source": pa.array([versions.identity("orders")] * rows, pa.large_binary()),
        }
    )


def test_a_change_without_a_version_is_named_and_a_filter_or_a_number_is_the_way_out() -> None:
    says = r"the change of key k1 has no version: .*; filter such rows out, or give version=coalesce\(…, 0\)"
    with pytest.raises(FormatError, match=says):
        versions_of(batch([5, None]))
    assert len(versions_of(batch([5, None]).slice(0, 1))) == 1
    assert len(versions_of(batch([5, 0]))) == 2
