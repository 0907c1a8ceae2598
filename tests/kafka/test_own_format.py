"""A format of a user's own, as the documents show it: read, written, and refused where it only reads."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import TopologyError
from fkjoin.lowering.table_plan import Results
from fkjoin.sinks import Kafka
from tests.support.documents import blocks
from tests.support.places import ROOT


def pair() -> Any:
    """The format of docs/kafka.md, for two names."""
    (block,) = (block for block in blocks(ROOT / "docs/kafka.md") if "class Pair" in block.text)
    found: dict[str, Any] = {"__name__": __name__}
    exec(block.text, found)
    return found["Pair"]("name", "value")


class OnlyReads:
    def decode(self, data: Any) -> None: ...


def test_it_reads_and_writes_records(spark: SparkSession) -> None:
    data = spark.createDataFrame([(b"a=b",), (None,), (b"a",), (b"a=b=c",), (b"=",)], "data binary")
    decoded = pair().decode(F.col("data"))
    found = data.select(decoded.row.alias("row"), decoded.deleted, decoded.problem).collect()
    why = "not ONE=OTHER"
    assert [(row and tuple(row), *rest) for row, *rest in found] == [
        (("a", "b"), False, None),
        (None, True, None),
        (None, False, why),
        (None, False, why),
        (("", ""), False, None),
    ]
    changes = spark.createDataFrame(
        [("k", "a", "b", "insert"), ("l", "c", "d", "delete")], "id string, name string, value string, _operation string"
    )
    results = Results(("id",), ("name", "value"), None, None, (), None)
    written = Kafka("pairs", "nowhere:1", value=pair())._records(results, changes).collect()
    assert [(bytes(key), value and bytes(value)) for key, value in written] == [(b"k", b"a=b"), (b"l", None)]
    with pytest.raises(TopologyError, match="value: OnlyReads is a format to read only"):
        Kafka("pairs", "nowhere:1", value=OnlyReads())._records(results, changes)  # type: ignore[arg-type]
