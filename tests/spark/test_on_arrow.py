"""Spark's types as Arrow's and back, with every release of Spark, also one that hands values to Python in pandas alone."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, TimestampNTZType, TimestampType

from fkjoin.spark.on_arrow import _through_pandas
from fkjoin.spark.returned import as_type
from fkjoin.spark.schemas import arrow_schema, spark_schema


def test_values_go_through_pandas_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"n": 2**60 + 1, "m": {"a": 1}}, {"n": None, "m": None}, None]
    inside = pa.struct([("n", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])

    def read(given: pa.Array) -> pa.Array:
        assert given.type == pa.binary()
        return pa.StructArray.from_arrays([pa.array(rows, inside), given.cast(pa.string())], names=["row", "text"])

    monkeypatch.setattr(F, "pandas_udf", lambda function, _: function)
    kind = StructType().add("n", LongType()).add("m", MapType(StringType(), LongType()))
    through: Any = _through_pandas(read, StructType().add("row", kind).add("text", StringType()))
    assert through.__annotations__ == {"series": pd.Series, "return": pd.DataFrame}
    for given in ([b"a", b"b", None], ["a", "b", None]):
        found = through(pd.Series(given))
        assert [value if value is None else dict(value) for value in found["row"]] == rows
        assert found["text"].tolist() == ["a", "b", None]
    texts: Any = _through_pandas(lambda given: given.cast(pa.string()), StringType())
    assert texts(pd.Series([b"a", None])).tolist() == ["a", None]


def test_times_keep_their_kind() -> None:
    """Times with a zone are in UTC, and times without a zone have none, also inside other types."""
    inside = StructType().add("at", TimestampType()).add("local", TimestampNTZType())
    kinds = StructType([*inside]).add("inside", inside).add("many", ArrayType(TimestampNTZType()))
    arrow = arrow_schema("it", kinds)
    assert (arrow.field("at").type, arrow.field("local").type) == (pa.timestamp("us", tz="UTC"), pa.timestamp("us"))
    assert spark_schema(arrow) == kinds


def test_what_a_function_returns_is_taken_for_a_time() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    assert as_type(at, TimestampType()) == at
