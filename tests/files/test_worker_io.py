"""JSON lines read and Parquet written by the workers: the same tables as by Spark's own sources and sinks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin.errors import FkJoinError
from fkjoin.spark.json_lines import plain_path
from tests.support.sessions import small

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("value", pa.struct([("fk", pa.string()), ("n", pa.int64())])),
        ("gone", pa.bool_()),
        ("a.b", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("id", ("id",)),
        ("value.fk", ("value", "fk")),
        ("a.b", ("a.b",)),
        ("value.other", None),
        ("id.fk", None),
        ("upper(id)", None),
        ("ID", None),
        (["id"], None),
    ],
)
def test_names_of_fields_are_plain(given: Any, path: tuple[str, ...] | None) -> None:
    assert plain_path(given, SCHEMA) == path


@pytest.fixture
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, partitions=2)


def lines(folder: Path, name: str, items: list[dict[str, Any] | str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items))


def joined(spark: SparkSession, folder: Path, **options: str) -> Table:
    orders = Table.from_files(
        spark,
        folder / "orders",
        key="id",
        version=["at.major", "minor"],
        deleted="gone",
        timestamp="time",
        schema="id string, customer struct<no: bigint>, amount double, tags array<string>, at struct<major: int>, "
        "minor bigint, time bigint, gone boolean",
        options=options,
    )
    customers = Table.from_files(
        spark,
        folder / "customers",
        key="no",
        version="seq",
        deleted="name is null",
        timestamp="time",
        schema="no bigint, name string, seq bigint, time bigint",
        options=options,
    )
    assert (orders._plan.undecoded is None) == (customers._plan.undecoded is None) == bool(options)
    return fk_join(orders, customers, "customer.no", how="left", name="fast")


def newest(changes: DataFrame) -> list[tuple[Any, ...]]:
    """The table that the changes lead to, and when its rows were made."""
    rows = {}
    for row in sorted(changes.collect(), key=lambda row: (row._left_version, row._right_version or [])):
        rows[row.id] = row
    live = (row for row in rows.values() if row._operation != "delete")
    return sorted((row.id, row.left, row.right, row._left_version, row._right_version, row._timestamp) for row in live)


@pytest.mark.usefixtures("settings")
def test_workers_read_and_write_what_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    def order(number: int, major: int, **more: Any) -> dict[str, Any]:
        row = {"id": f"o{number}", "customer": {"no": number % 3}, "amount": number / 4, "tags": ["x", None]}
        return row | {"at": {"major": major}, "minor": 1, "time": 10 * major + number} | more

    lines(tmp_path / "orders", "1.json", [order(number, 1) for number in range(40)] + ["", "not json", '{"id": "o1"'])
    odd = [order(1, 2, amount="much"), order(2, 2, id=7), order(3, 2, customer=None), order(4, 2, gone=True, minor=0)]
    odd += [
        order(5, 0),
        json.dumps(order(6, 2, tags=["y", 5, {"deep": ["z"]}]), separators=(",", ":")),
        order(7, 2, minor=2, gone=False),
        {"customer": {"no": 1}},
    ]
    lines(
        tmp_path / "customers", "1.json", [{"no": 0, "name": "zero", "seq": 1, "time": 300}, {"no": 1, "name": "one", "seq": 1}]
    )
    found = {}
    for way, options in (("workers", {}), ("spark", {"mode": "PERMISSIVE"})):
        table, out, checkpoint = joined(spark, tmp_path, **options), tmp_path / f"{way} %20", tmp_path / f"{way}-checkpoint"
        for name in ("2.json", "3.json"):
            if way == "workers":
                query = table.to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True})
            else:
                writer = table.changes.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
                query = writer.trigger(availableNow=True).start(str(out))
            query.awaitTermination()
            if name == "2.json":
                lines(tmp_path / "orders", name, odd)
                lines(tmp_path / "customers", name, [{"no": 1, "seq": 2}, {"no": 2, "name": "two", "seq": 5, "time": 9}])
        (tmp_path / "orders" / "2.json").unlink()
        (tmp_path / "customers" / "2.json").unlink()
        read = spark.read.parquet(str(out))
        found[way] = newest(read)
        columns = {field.name: field.dataType for field in read.schema if field.name != "batch"}
        assert columns == {field.name: field.dataType for field in table.changes.schema}
    assert found["workers"] == found["spark"]
    assert len(found["workers"]) == 40
    assert {row[0] for row in found["workers"]} == {f"o{number}" for number in range(40) if number != 4} | {"7"}

    # A batch that is repeated counts once, what was left unfinished is not read, another checkpoint is refused.
    out, checkpoint = tmp_path / "workers %20", tmp_path / "workers-checkpoint"
    before = {path: path.read_bytes() for path in out.rglob("*.parquet")}
    newest_commit = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    newest_commit.unlink()
    (checkpoint / "commits" / f".{newest_commit.name}.crc").unlink()
    (out / "_unfinished" / "batch=old").mkdir(parents=True)
    (out / "_unfinished" / "batch=old" / "part-0.parquet").write_bytes(b"torn")
    lines(tmp_path / "orders", "2.json", odd)
    lines(tmp_path / "customers", "2.json", [{"no": 1, "seq": 2}, {"no": 2, "name": "two", "seq": 5, "time": 9}])
    table = joined(spark, tmp_path)
    table.to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
    assert {path: path.read_bytes() for path in out.rglob("batch=*-*/*.parquet")} == before
    assert newest(spark.read.parquet(str(out))) == found["workers"]
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(
        FkJoinError, match=r"path: .*workers %20 contains batches of another query \(\w{8}\), and none of the query of"
    ):
        table.to_parquet(out, checkpoint=tmp_path / "other-checkpoint", trigger={"availableNow": True})
    assert len(list(out.glob("batch=00000000-*"))) == 1
    with pytest.raises(TopologyError, match=r"path: exactly-once is not available on ftp:.*write changes\.writeStream"):
        table.to_parquet("ftp://host/out", checkpoint=tmp_path / "ftp")
