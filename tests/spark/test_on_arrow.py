"""Functions of Arrow arrays, where Spark hands values to Python in pandas alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructType

from fkjoin.spark.on_arrow import _through_pandas


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
