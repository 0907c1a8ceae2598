"""JSON lines read and Parquet written by the workers: the same tables as by Spark's own sources and sinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from fkjoin import Table, fk_join
from fkjoin.spark.json_lines import plain_path
from tests.support.files import write
from tests.support.sessions import small
from tests.support.written import NOW

FIELDS = pa.struct({"fk": pa.string(), "n": pa.int64()})
SCHEMA = pa.schema({"id": pa.string(), "value": FIELDS, "gone": pa.bool_(), "a.b": pa.int64()})


def test_names_of_fields_are_plain() -> None:
    plain = {"id": ("id",), "value.fk": ("value", "fk"), "a.b": ("a.b",)}
    for name in (*plain, "value.other", "id.fk", "upper(id)", "ID"):
        assert plain_path(name, SCHEMA) == plain.get(name)
    assert plain_path(["id"], SCHEMA) is None


ORDER = (
    "id string, customer struct<no: bigint>, amount double, tags array<string>, "
    "at struct<major: int>, minor bigint, time bigint, gone boolean"
)
CUSTOMER = "no bigint, name string, seq bigint, time bigint"


def joined(spark: SparkSession, folder: Path, **options: str) -> Table:
    shared: dict[str, Any] = {"timestamp": "time", "options": options}
    about = {"version": ["at.major", "minor"], "deleted": "gone", "schema": ORDER, **shared}
    orders = Table.from_files(spark, folder / "orders", key="id", **about)
    about = {"version": "seq", "deleted": "name is null", "schema": CUSTOMER, **shared}
    customers = Table.from_files(spark, folder / "customers", key="no", **about)
    assert (orders._plan.undecoded is None) == (customers._plan.undecoded is None) == bool(options)
    return fk_join(orders, customers, "customer.no", how="left", name="fast")


def newest(changes: DataFrame) -> list[tuple[Any, ...]]:
    """The table that the changes lead to, and when its rows were made."""
    rows = {}
    for row in sorted(changes.collect(), key=lambda row: (row._left_version, row._right_version or [])):
        rows[row.id] = row
    names = "id", "left", "right", "_left_version", "_right_version", "_timestamp"
    live = [row for row in rows.values() if row._operation != "delete"]
    return sorted(tuple(row[name] for name in names) for row in live)


def order(number: int, major: int, **more: Any) -> str:
    row = {"id": f"o{number}", "customer": {"no": number % 3}, "amount": number / 4}
    version = {"at": {"major": major}, "minor": 1, "time": 10 * major + number}
    return json.dumps({**row, "tags": ["x", None], **version, **more})


FIRST = [*(order(number, 1) for number in range(40)), "", "not json", '{"id": "o1"']
SECOND = [
    *(order(1, 2, amount="much"), order(2, 2, id=7), order(3, 2, customer=None)),
    *(order(4, 2, gone=True, minor=0), order(5, 0), order(7, 2, minor=2, gone=False)),
    order(6, 2, tags=["y", 5, {"deep": ["z"]}]).replace(" ", ""),
    '{"customer": {"no": 1}}',
]
CUSTOMERS = '{"no":0,"name":"zero","seq":1,"time":300}', '{"no":1,"name":"one","seq":1}'
CHANGED = '{"no":1,"seq":2}', '{"no":2,"name":"two","seq":5,"time":9}'


def test_workers_read_and_write_what_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    write(tmp_path / "orders", "1.json", *FIRST)
    write(tmp_path / "customers", "1.json", *CUSTOMERS)
    found = {}
    for way, options in (("workers", {}), ("spark", {"mode": "PERMISSIVE"})):
        table, out, checkpoint = joined(spark, tmp_path, **options), tmp_path / f"{way} %20", tmp_path / f"{way}-checkpoint"
        for batch in range(2):
            if way == "workers":
                query = table.to_parquet(out, checkpoint=checkpoint, **NOW)
            else:
                writer = table.changes.writeStream.format("parquet").trigger(availableNow=True)
                query = writer.option("checkpointLocation", str(checkpoint)).start(str(out))
            query.awaitTermination()
            if batch == 0:
                write(tmp_path / "orders", "2.json", *SECOND)
                write(tmp_path / "customers", "2.json", *CHANGED)
        for name in ("orders", "customers"):
            (tmp_path / name / "2.json").unlink()
        read = spark.read.parquet(str(out))
        found[way] = newest(read)
        columns = {field.name: field.dataType for field in read.schema if field.name != "batch"}
        assert columns == {field.name: field.dataType for field in table.changes.schema}
    assert found["workers"] == found["spark"]
    numbers = {f"o{number}" for number in range(40)}
    assert {row[0] for row in found["workers"]} == numbers - {"o4"} | {"7"}
