"""Formats in Spark: those behind a schema registry's header, text columns over any JSON, and a user's own.

What readers make of records is tested in tests/spark.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import TopologyError
from fkjoin.kafka import Debezium, Json, Registry
from fkjoin.kafka.formats import decode_key, reader
from fkjoin.lowering.table_plan import Results
from fkjoin.sinks import Kafka
from tests.support.documents import blocks
from tests.support.places import ROOT
from tests.support.schema_registry import SmallRegistry, framed, record_of

AVRO = record_of("row", id="int", name=["null", "string"])
MORE = {"name": "more", "type": "string", "default": "x"}
NEWER = {**AVRO, "fields": [*AVRO["fields"], MORE]}
TEXT = {"type": ["null", "string"]}
JSON = {"title": "row", "type": "object", "properties": {"id": {"type": "integer"}, "name": TEXT}}
SOURCE = record_of("Source", lsn="long", snapshot="string")
ROWS = {"before": ["null", AVRO], "after": ["null", "row"]}
EVENT = record_of("Envelope", **ROWS, source=SOURCE, op="string", ts_ms=["null", "long"])


def test_spark_writes_and_reads_rows_without_the_schema_id(spark: SparkSession, registry: SmallRegistry) -> None:
    """A row under two schema ids is one row, a bad record says why, null is a tombstone; workers agree with Spark."""
    rows = spark.createDataFrame([(1, "Ada")], "id int, name string").select(F.struct("id", "name").alias("row"))
    schemas = ("avro", AVRO), ("avro", NEWER), ("json", JSON), ("json", {**JSON, "title": "newer"})
    writing = [Registry(kind, write_schema=json.dumps(one), subject="s", url=registry.url) for kind, one in schemas]
    written = rows.select(*[form.encode(F.col("row"), rows.schema).alias(f"c{at}") for at, form in enumerate(writing)]).first()
    records = [bytes(record) for record in written]
    assert len({record[:5] for record in records}) == len(registry.schemas) == 4
    number, key = registry.add(EVENT), registry.add(AVRO)
    row = {"id": 1, "name": "Ada"}
    event = {"before": None, "after": row, "source": {"lsn": 17, "snapshot": "last"}, "op": "r", "ts_ms": 5}
    events = [framed(number, EVENT, event), framed(number, EVENT, {**event, "op": "d", "before": row, "after": None})]
    bad = [b"{}", b"\0\0\0\0\x7f?", None]
    data = [
        [*records[:2], records[0][:5] + b"\xff\xff\xff", *bad],
        [*records[2:], records[2][:5] + b"{", *bad],
        [*events, events[0][:8], *bad],
    ]
    debezium = Debezium("id int, name string", source="lsn bigint, snapshot string", inner=Registry("avro", url=registry.url))
    forms = [*(Registry(kind, "id int, name string", registry.url) for kind in ("avro", "json")), debezium]
    frame = spark.createDataFrame(list(zip(range(6), *data, strict=True)), "n int, c0 binary, c1 binary, c2 binary").coalesce(1)
    told = [F.struct(*form.decode(F.col(f"c{at}"))) for at, form in enumerate(forms)]
    keys = F.lit(framed(key, AVRO, row))
    found = frame.select("n", debezium.about(F.col("c2")), decode_key(debezium, keys).row, *told).collect()
    assert [place for place, *_ in found] == list(range(6))
    about, key_row = found[0][1:3]
    assert (about.asDict(recursive=True), key_row.asDict()) == ({"op": "r", "ts_ms": 5, "source": event["source"]}, row)
    for at, form in enumerate(forms):
        decoded, deleted, problems = zip(*[line[3 + at] for line in found], strict=True)
        assert [one and one.asDict() for one in decoded] == [row, None if form == debezium else row, *[None] * 4]
        assert list(deleted) == [False, form == debezium, False, False, False, True]
        assert [problem is None for problem in problems] == [True, True, False, False, False, True]
        assert all("of the registry's schema" in problem for problem in problems[2:5])
        how = reader(form)
        assert how is not None
        assert how(pa.array(data[at], pa.binary())).problem.to_pylist() == list(problems)
    registry.refuses = lambda _: (500, "down")
    down = Registry("avro", "id int", registry.url, retry_s=0).decode(F.lit(b"\0\0\0\0\x70?"))
    with pytest.raises(Exception, match=rf"FkJoinError: schema registry {registry.url}: .*500.*tried once"):
        spark.range(1).select(down.problem).collect()


OTHERS = ("", ", at timestamp", ", m map<string, string>, d decimal(9, 2)", ", n bigint, inner struct<it: string, b: binary>")


@pytest.mark.parametrize("events", [False, True])
def test_spark_reads_the_same_text_beside_columns_of_other_types(spark: SparkSession, events: bool) -> None:
    """Any text, as workers read it: tests/codec/test_json_rows.py."""
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
