"""Functions of rows, and what they return, checked before Spark takes it.

A value that Spark refuses stops the query.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from fkjoin.spark.schemas import IN_UTC


def row_function(function: Callable[..., Any], returns: DataType) -> Callable[..., Column]:
    """A function of rows as Spark calls it.

    Its annotations go: they are none by which Spark tells functions of whole columns, and it would
    warn of each.
    """
    function.__annotations__.clear()
    return F.udf(function, returns)


def as_type(value: Any, kind: DataType) -> Any:
    """The value where Spark takes it for the type, else what Arrow casts it to.

    Arrow casts a ``Decimal``, or a text of a number.  Raises ``TypeError`` if the value is none.
    """
    convert, arrow = _conversion(kind)
    try:
        pa.array([convert(value)], arrow)
    except Exception as error:
        if isinstance(kind, StructType) and isinstance(value, tuple) and len(value) == len(kind):
            kinds = (field.dataType for field in kind)
            return tuple(map(as_type, value, kinds))
        if isinstance(value, Decimal | str):
            with suppress(pa.ArrowException, NotImplementedError):
                return pa.scalar(value).cast(arrow).as_py()
        raise TypeError(f"{value!r:.200} is not of type {kind.simpleString()}") from error
    return value


@lru_cache
def _conversion(kind: DataType) -> tuple[Callable[[Any], Any], pa.DataType]:
    return LocalDataToArrowConversion._create_converter(kind), to_arrow_type(kind, **IN_UTC)
