"""Text columns over any JSON: they keep it as it was written, by workers and by Spark's expressions."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.codec.json_read import read_objects
from fkjoin.kafka import Debezium, Json
from fkjoin.kafka.formats import reader

OTHERS = ("", ", at timestamp", ", m map<string, string>, d decimal(9, 2)", ", n bigint, inner struct<it: string, b: binary>")


class Written(float):
    """A number with a text of its own."""

    text: str

    def __repr__(self) -> str:
        return self.text


def number(text: str) -> Written:
    made = Written(text)
    made.text = text
    return made


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?", fullmatch=True).map(number)
simple = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    simple,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"é', max_size=2), inner, max_size=3),
    max_leaves=5,
)


def text_of(value: Any) -> str | None:
    """A text itself, or the JSON of any other value, with numbers as they were written."""
    if value is None or isinstance(value, str):
        return value
    return written(value)


def written(value: Any, **how: Any) -> str:
    if isinstance(value, Written):
        return value.text
    blank = how.get("blank", "")
    if isinstance(value, dict):
        members = (f"{json.dumps(name, ensure_ascii=False)}:{blank}{written(item, **how)}" for name, item in value.items())
        return "{" + f",{blank}".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{blank}".join(written(item, **how) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(st.lists(values, min_size=1, max_size=5))
def test_the_text_is_as_it_was_written_whatever_stands_beside_it(some: list[Any]) -> None:
    texts = [f'{{"it": {written(value, blank=" ")}, "other": [1.0]}}' for value in some]
    beside = ([], [("at", pa.timestamp("us", "UTC"))], [("m", pa.map_(pa.string(), pa.string()))], [("other", pa.string())])
    for more in beside:
        rows, fits, _ = read_objects(pa.array(texts), pa.struct([("it", pa.string()), *more]))
        assert fits.all()
        assert rows.field("it").to_pylist() == [text_of(value) for value in some]


@pytest.mark.parametrize("events", [False, True])
def test_spark_reads_the_same_text_beside_columns_of_other_types(spark: SparkSession, events: bool) -> None:
    wanted = ["1.50", "1E400", '{"a":1.0,"b":[1e2]}', "[]", "true", "12345678901234567890.10"]
    texts = [f'{{"it": {text}, "inner": {{"it": {text}}}}}' for text in wanted]
    data = [f'{{"op": "c", "after": {text}}}'.encode() if events else text.encode() for text in texts]
    frame = spark.createDataFrame([(value,) for value in data], "value binary").coalesce(1)
    for more in OTHERS:
        form = Debezium(f"it string{more}") if events else Json(f"it string{more}")
        told = form.decode(F.col("value"))
        assert [tuple(row) for row in frame.select(told.row.getField("it"), told.problem).collect()] == [
            (text, None) for text in wanted
        ]
        how = reader(form)
        assert how is not None
        assert how(pa.array(data, pa.binary())).rows.field("it").to_pylist() == wanted
