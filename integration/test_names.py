"""Columns of any name in PostgreSQL, and in topics."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.kafka import Json
from fkjoin.spark.names import quoted
from integration.broker import Broker, Record
from integration.postgres import select, target
from tests.support.batch_ids import batch_id
from tests.support.names import KEY, NASTY
from tests.support.sessions import small


def test_columns_of_any_name_are_made_written_changed_and_deleted(dsn: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in (KEY, *NASTY)])
    rows = [{KEY: key, **{name: f"{name} of {key}" for name in NASTY}} for key in ("a", "b")]
    given = pa.Table.from_pylist(rows, schema=schema)
    postgres = target(dsn, schema, KEY)
    postgres.apply(batch_id(0), given, given.select([KEY]).slice(0, 0))
    assert select(dsn, "select * from shop.it") == [tuple(row.values()) for row in rows]
    changed = pa.Table.from_pylist([{**rows[0], "a.b": "new"}], schema=schema)
    target(dsn, schema, KEY).apply(batch_id(1), changed, given.select([KEY]).slice(1))
    assert select(dsn, "select * from shop.it") == [tuple({**rows[0], "a.b": "new"}.values())]
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select * from shop.it").description
    assert [column.name for column in found or ()] == [KEY, *NASTY]


def test_topics_with_fields_of_any_name_go_in_and_out(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Workers read the records, and Spark does so with the headers."""
    small(spark, tmp_path)
    broker.create("names-in", "names-out", "names-out-spark", partitions=1)
    key, row = {KEY: "a"}, {name: f"{name}!" for name in NASTY}
    broker.send("names-in", [Record(json.dumps(key).encode(), json.dumps(row).encode())])
    fields = Json(", ".join(f"{quoted(name)} string" for name in NASTY))
    for headers, out in (False, "names-out"), (True, "names-out-spark"):
        table = Table.from_kafka(
            spark, "names-in", broker.bootstrap, key=Json(f"{quoted(KEY)} string"), value=fields, headers=headers, name=out
        )
        assert (table._plan.undecoded is None) == headers
        kept = table.filter("`a.b` = 'a.b!'").map_values([quoted(name) for name in NASTY])
        kept.to_kafka(
            out,
            broker.bootstrap,
            key=Json(""),
            checkpoint=tmp_path / out,
            options={},
            trigger={"availableNow": True},
        ).awaitTermination()
        (record,) = broker.read(out)
        assert (json.loads(record.key()), json.loads(record.value())) == (key, row)


def test_a_topics_key_with_a_collation_and_names_that_are_one_are_refused(spark: SparkSession, broker: Broker) -> None:
    broker.create("names-refused", partitions=1)

    def read(key: str, value: str) -> Table:
        return Table.from_kafka(spark, "names-refused", broker.bootstrap, key=Json(key), value=Json(value))

    with pytest.raises(TopologyError, match="key: id is string collate UTF8_LCASE, and keys are compared byte by byte"):
        read("id string collate UTF8_LCASE", "n int")
    with pytest.raises(TopologyError, match="key and value: two columns are called 'ID' and 'id'"):
        read("ID string", "id string")
