"""Spark's types as Arrow's and back, with every release of Spark."""

from __future__ import annotations

import datetime

import pyarrow as pa
from pyspark.sql.types import ArrayType, StructType, TimestampNTZType, TimestampType

from fkjoin.spark.returned import as_type
from fkjoin.spark.schemas import arrow_schema, spark_schema


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
