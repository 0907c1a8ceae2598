"""Columns of a result, of the aggregates that are asked for."""

from __future__ import annotations

import pyarrow as pa

from fkjoin.aggregates import count
from fkjoin.analysis.wanted import aggregate_column


def test_a_count_of_rows_is_not_one_of_a_column_that_is_called_none() -> None:
    schema = pa.schema([("v0", pa.int64())])
    of_rows, of_values = (aggregate_column("n", wanted, {"None": 0}, (), schema) for wanted in (count(), count("None")))
    assert of_rows != of_values
    assert of_rows == aggregate_column("n", count(), {}, (), schema)
