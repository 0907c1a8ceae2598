"""What functions of a user's return, checked as Spark will take it: what Spark refuses later stops the query."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType


def require_type(value: Any, kind: DataType) -> None:
    """``TypeError`` if the value is none of this type: a whole number is a double, too; a text is no number."""
    try:
        _converter(kind)(value)
    except Exception as error:
        raise TypeError(f"{value!r:.200} is no {kind.simpleString()}") from error


@lru_cache
def _converter(kind: DataType) -> Callable[[Any], object]:
    convert, arrow = LocalDataToArrowConversion._create_converter(kind), to_arrow_type(kind, timezone="UTC")
    return lambda value: pa.array([convert(value)], arrow)
