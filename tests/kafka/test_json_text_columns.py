"""Text columns over any JSON: they keep it as it was written, by workers and by Spark's expressions."""

from __future__ import annotations

import json

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


BLANK = "\0"
"""Place of a blank, if there is to be one; within a text, JSON has it as six letters."""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def array_of(items: list[str]) -> str:
    return f"[{f',{BLANK}'.join(items)}]"


def object_of(members: dict[str, str]) -> str:
    pairs = [f"{quoted(name)}:{BLANK}{value}" for name, value in members.items()]
    return f"{{{f',{BLANK}'.join(pairs)}}}"


NUMBER = r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?"


def around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.dictionaries(st.text('ab"é', max_size=2), inner, max_size=3)
    return st.lists(inner, max_size=3).map(array_of) | members.map(object_of)


simple = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).map(quoted)
simple |= st.from_regex(NUMBER, fullmatch=True) | st.sampled_from(["null", "true", "false"])
values = st.recursive(simple, around, max_leaves=5)


def text_of(value: str) -> str | None:
    """A text itself, or the JSON of any other value, as it was written."""
    return json.loads(value) if value[0] in 'n"' else value.replace(BLANK, "")


@given(st.lists(values, min_size=1, max_size=5))
def test_the_text_is_as_it_was_written_whatever_stands_beside_it(some: list[str]) -> None:
    texts = [f'{{"it": {value}, "other": [1.0]}}'.replace(BLANK, " ") for value in some]
    times, others = pa.timestamp("us", "UTC"), pa.map_(pa.string(), pa.string())
    for more in ([], [("at", times)], [("m", others)], [("other", pa.string())]):
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
        decoded = form.decode(F.col("value"))
        rows = frame.select(decoded.row.getField("it"), decoded.problem).collect()
        assert [tuple(row) for row in rows] == [(text, None) for text in wanted]
        how = reader(form)
        assert how is not None
        assert how(pa.array(data, pa.binary())).rows.field("it").to_pylist() == wanted
