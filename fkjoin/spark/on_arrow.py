"""Functions of Arrow arrays as Spark's expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType


def on_arrow(function: Callable[[pa.Array], pa.Array], returns: DataType, column: Column) -> Column:
    """Apply the function to a column of texts or bytes, an array of bytes at a time."""

    def whole(texts: pa.Array) -> pa.Array:  # PySpark reads the annotations
        return function(texts.cast(pa.binary()))

    udf: Any = F.arrow_udf if hasattr(F, "arrow_udf") else _through_pandas
    return cast(Column, udf(whole, returns)(column))


def _through_pandas(function: Callable[[pa.Array], pa.Array], returns: DataType) -> Any:
    """Apply the function on Spark 4.0, which hands values to Python in pandas alone."""
    import pandas as pd

    struct = isinstance(returns, StructType)

    def through(series: Any) -> Any:
        results = function(pa.array(series, pa.binary(), from_pandas=True))
        if struct:
            values = {field.name: results.field(field.name) for field in results.type}
            return pd.DataFrame(
                {name: pd.Series(_listed(part), dtype=object) for name, part in values.items()}
            )
        return pd.Series(_listed(results), dtype=object)

    through.__annotations__ = {"series": pd.Series, "return": pd.DataFrame if struct else pd.Series}
    udf: Any = F.pandas_udf
    return udf(through, returns)


def _listed(values: pa.Array) -> list[Any]:
    return cast("list[Any]", values.to_pylist(maps_as_pydicts="strict"))
