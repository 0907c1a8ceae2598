"""JSON lines read and Parquet written by the workers: the same tables as by Spark's own sources and sinks.

Times, decimals and bytes of JSON lines are read as in topics, by workers and by Spark's expressions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from fkjoin import Table, fk_join
from fkjoin.sessions.settings import TIME_ZONE
from fkjoin.spark.json_lines import plain_path
from tests.support.files import table, write
from tests.support.queries import run, table_of, write_lines
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


def newest(changes: list[Row]) -> list[tuple[Any, ...]]:
    """The table that the changes lead to, and when its rows were made."""
    rows = {}
    for row in sorted(changes, key=lambda row: (row._left_version, row._right_version or [])):
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
    of_workers, out = joined(spark, tmp_path), tmp_path / "workers %20"
    of_spark, changes = joined(spark, tmp_path, mode="PERMISSIVE"), list[Row]()
    for batch in range(2):
        of_workers.to_parquet(out, checkpoint=tmp_path / "workers", **NOW).awaitTermination()
        changes += run(of_spark.changes, tmp_path / "spark").rows
        if batch == 0:
            write(tmp_path / "orders", "2.json", *SECOND)
            write(tmp_path / "customers", "2.json", *CHANGED)
    rows = newest(changes)
    read = spark.read.parquet(str(out))
    assert newest(read.collect()) == rows
    columns = {field.name: field.dataType for field in read.schema if field.name != "batch"}
    assert columns == {field.name: field.dataType for field in of_spark.changes.schema}
    numbers = {f"o{number}" for number in range(40)}
    assert {row[0] for row in rows} == numbers - {"o4"} | {"7"}


TYPES = "id int, lsn bigint, at timestamp, day date, price decimal(9,2), data binary, it string, tags map<string, string>"


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    yield
    spark.conf.set(TIME_ZONE, str(before))


@pytest.mark.usefixtures("small_tables", "tokyo")
@pytest.mark.parametrize("by_workers", [True, False])
def test_a_number_is_no_instant_and_texts_are_read(spark: SparkSession, tmp_path: Path, by_workers: bool) -> None:
    good = {"id": 1, "lsn": 1, "at": "2023-07-26T10:22:47.048491Z", "day": "2023-07-26", "price": 12.5, "data": "q80="}
    local = {"id": 3, "lsn": 3, "at": "2023-07-26 19:22:47.048491", "it": {"a": 1}, "tags": {"k": "v"}}
    write_lines(tmp_path / "lines", "0", [good | {"it": 1}, {"id": 2, "lsn": 2, "at": 1690366967048491}, local])
    made = table(spark, tmp_path / "lines", schema=TYPES, timestamp="at")
    assert made._plan.undecoded is not None
    changes: Any = made.materialize("kept").changes if by_workers else made.changes
    found = table_of(run(changes, tmp_path / "checkpoint").rows, "id")
    assert sorted(found) == [(1,), (3,)]
    one, other = found[1,], found[3,]
    assert (str(one["day"]), str(one["price"]), bytes(one["data"]), one["it"]) == ("2023-07-26", "12.50", b"\xab\xcd", "1")
    assert (other["it"], other["tags"]) == ('{"a":1}', {"k": "v"})
