"""Iceberg tables in a REST catalog: the promises of a sink, and a catalog that is away for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from fkjoin.errors import FkJoinError
from fkjoin.sinks import Iceberg
from fkjoin.testing import SinkContract
from integration.conftest import prepared
from integration.rest_catalog import RestCatalog, jars
from tests.support.batch_ids import batch_id
from tests.support.sampling import EVERY


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    made = RestCatalog(prepared(*jars()), tmp_path_factory.mktemp("rest"))
    yield made
    made.stop()


def rows_of(rest: RestCatalog, name: str) -> list[dict[str, Any]]:
    return load_catalog("default", **rest.options).load_table(name).scan().to_arrow().to_pylist()


@pytest.mark.faults
class TestIcebergByRest(SinkContract):
    every = 1 if EVERY else 43
    types: ClassVar[list[pa.DataType]] = SinkContract.types if EVERY else [pa.decimal128(38, 18), pa.timestamp("us", "UTC")]

    @pytest.fixture(autouse=True)
    def place(self, rest: RestCatalog, request: pytest.FixtureRequest) -> None:
        self.rest, self.namespace = rest, request.node.name

    def make_sink(self, into: str) -> Iceberg:
        return Iceberg(f"{self.namespace}.{into}", options=self.rest.options)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.rest, f"{self.namespace}.{into}")


def test_a_batch_waits_for_a_catalog_that_is_away_and_counts_once(rest: RestCatalog) -> None:
    rows = pa.table({"id": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    none = rows.select(["id"]).slice(0, 0)
    sink = Iceberg("away.it", options=rest.options)
    sink.prepare(rows.schema, ("id",))
    rest.stop()
    with pytest.raises(
        FkJoinError, match="iceberg default.away.it: .*Connection refused.* Start the query again when the outage"
    ):
        Iceberg("away.it", options=rest.options, retry_s=0).apply(batch_id(0), rows, none)
    back = threading.Timer(1, rest.start)
    back.start()
    sink.apply(batch_id(0), rows, none)
    back.join()
    sink.apply(batch_id(0), rows, none)
    assert rows_of(rest, "away.it") == rows.to_pylist()


def test_a_column_is_added_and_a_type_widened_on_request(rest: RestCatalog) -> None:
    old = pa.schema([("id", pa.string()), ("n", pa.int32())])
    Iceberg("evolved.it", options=rest.options).prepare(old, ("id",))
    rows = pa.table({"id": ["a"], "n": pa.array([2**40], pa.int64()), "new": ["x"]})
    with pytest.raises(FkJoinError, match="lacks the columns new"):
        Iceberg("evolved.it", options=rest.options).prepare(rows.schema, ("id",))
    sink = Iceberg("evolved.it", options=rest.options, evolve=True)
    sink.prepare(rows.schema, ("id",))
    sink.apply(batch_id(0), rows, rows.select(["id"]).slice(0, 0))
    assert rows_of(rest, "evolved.it") == rows.to_pylist()
