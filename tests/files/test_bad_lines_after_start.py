"""A job whose files get a line that does not fit after its start: it goes on, with the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Table, TopologyError, fk_join
from fkjoin.checkpoint.begun import Begun
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("own_rules")

CUSTOMERS = "id bigint, lsn bigint, name string"
# In the order of learned columns, which is by name.
ORDERS = "at bigint, customer bigint, gone boolean, lsn bigint, number string"


def put(folder: Path, form: str, name: str, *rows: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    if form == "json":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = "\n".join([",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows), ""])
    (folder / f"{name}.{form}").write_text(text)


class Job:
    """Orders with their customers, written to files; ``more``: of the orders' source."""

    def __init__(self, spark: SparkSession, folder: Path, form: str) -> None:
        self.spark, self.folder, self.form = spark, folder, form
        put(folder / "customers", "json", "1", {"id": 1, "lsn": 1, "name": "Ada"})
        self.orders("1", {"number": "o1", "customer": 1, "lsn": 1, "at": 5, "gone": False})

    def orders(self, name: str, *rows: dict[str, Any]) -> None:
        put(self.folder / "orders", self.form, name, *rows)

    def table(self, **more: Any) -> Table:
        about: dict[str, Any] = {"key": "number", "version": "lsn", "format": self.form, **more}
        extractor = about.pop("extractor", "customer" if self.form == "json" else "cast(customer as bigint)")
        orders = Table.from_files(self.spark, self.folder / "orders", **about)
        customers = Table.from_files(
            self.spark, self.folder / "customers", key="id", version="lsn", schema=CUSTOMERS, format="json"
        )
        return fk_join(orders, customers, extractor, how="left", name="joined")

    def run(self, **more: Any) -> list[str]:
        out, checkpoint = self.folder / "out", self.folder / "checkpoint"
        self.table(**more).to_parquet(out, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
        return sorted(row.number for row in self.spark.read.parquet(str(out)).collect())


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled(["json", "csv"], ["csv"]))
def test_a_line_without_a_number_to_order_or_date_it_does_not_stop_a_job(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Nor one that is made anew, once a schema says what the column is."""
    job, row = Job(spark, tmp_path, form), {"number": "o3", "customer": 1, "lsn": 2, "at": 6, "gone": False}
    assert job.run(timestamp="at") == ["o1"]
    kept = Begun.of(spark, str(tmp_path / "checkpoint")).columns["orders"].schema
    job.orders("2", {**row, "number": "no order", "lsn": "x"}, {**row, "number": "no date", "at": "x"}, row)
    with pytest.raises(TopologyError, match=r"^version: lsn is string, .*give schema= with the types that most lines have"):
        job.run(timestamp="at")
    assert job.run(timestamp="at", schema=kept) == ["o1", "o3"]
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    (tmp_path / "out").rename(tmp_path / "before")
    assert job.run(timestamp="at", schema=kept) == ["o1", "o3"]


@pytest.mark.faults
@pytest.mark.parametrize("form", sampled(["json", "csv"], ["json"]))
def test_what_becomes_of_lines_that_do_not_fit_does_not_bind_a_checkpoint(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    job, row = Job(spark, tmp_path, form), {"number": "o2", "customer": 1, "lsn": 2, "at": 6, "gone": False}
    assert job.run(schema=ORDERS, on_error="fail") == ["o1"]
    job.orders("2", {**row, "lsn": "x"}, {**row, "number": "o3"})
    with pytest.raises(StreamingQueryException, match='set such lines aside, with on_error="dead-letter"'):
        job.run(schema=ORDERS, on_error="fail")
    assert job.run(schema=ORDERS, on_error="dead-letter") == ["o1", "o3"]
    job.orders("4", {**row, "number": "o4", "lsn": 3})
    assert job.run(schema=ORDERS, on_error="skip") == ["o1", "o3", "o4"]
    job.orders("5", {**row, "number": "o5", "lsn": 4})
    assert job.run(schema=ORDERS, on_error="fail") == ["o1", "o3", "o4", "o5"]


MISFITS = {
    "version: lsn is string, whole numbers are needed": {"lsn": "x"},
    "timestamp: at is string, a timestamp or bigint is needed": {"at": "x"},
    "deleted: gone is string, a boolean is needed": {"gone": "x"},
    "extractor: customer of left table orders is string, but key column id": {"customer": "x"},
}


def test_a_schema_is_the_way_out_for_a_job_whose_columns_were_learned_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    """A version, a time, a delete column or a foreign key has another type in a line."""
    job, how = Job(spark, tmp_path, "json"), {"timestamp": "at", "deleted": "gone"}
    assert job.run(**how) == ["o1"]
    misfit = tmp_path / "orders" / "2.json"
    row = {"number": "o2", "customer": 1, "lsn": 2, "at": 6, "gone": False}
    for message, more in MISFITS.items():
        job.orders("2", {**row, **more})
        with pytest.raises(TopologyError, match=f"^{message}.*give schema= as"):
            job.run(**how)
        if "lsn" in more:
            with pytest.raises(FkJoinError, match=r"checkpoint: .* was made by another job: of store joined-rekey, "):
                job.run(**{**how, "version": "try_cast(lsn as bigint)"})
    misfit.unlink()
    job.orders("3", *({**row, **more} for more in MISFITS.values()), {**row, "number": "o3"})
    assert job.run(schema=ORDERS, **how) == ["o1", "o3"]


def test_an_expression_is_the_way_out_for_a_new_job(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, "json")
    (tmp_path / "orders" / "1.json").unlink()
    row = {"customer": "1", "lsn": "2024-01-01", "at": "2024-01-01", "gone": "c"}
    job.orders("2", {"number": "o1", **row}, {"number": "o2", **row}, {"number": "a stray number", **row, "lsn": 5, "at": 5})
    ways = {"version": "unix_micros(to_timestamp(lsn))", "timestamp": "to_timestamp(at)", "deleted": "gone = 'd'"}
    ways["extractor"] = "cast(customer as bigint)"
    for name, plain, message in (
        ("version", "lsn", "version: lsn is string"),
        ("timestamp", "at", "timestamp: at is string"),
        ("deleted", "gone", "deleted: gone is string"),
        ("extractor", "customer", "extractor: customer of left table orders is string"),
    ):
        with pytest.raises(TopologyError, match=f"^{message}"):
            job.run(**{**ways, name: plain})
    assert job.run(**ways) == ["o1", "o2"]
