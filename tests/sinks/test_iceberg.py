"""Iceberg tables in a catalog in SQLite: what a batch does, once, beside other writers, and what a table cannot have."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError, UnauthorizedError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType, TimestampType, UUIDType
from sqlalchemy.exc import OperationalError

from fkjoin import TopologyError
from fkjoin.errors import FkJoinError
from fkjoin.sinks import BatchId
from fkjoin.sinks.iceberg import Iceberg
from fkjoin.sinks.iceberg_catalog import mends
from fkjoin.testing import SinkContract
from tests.support.batch_ids import batch_id
from tests.support.sampling import EVERY
from tests.support.sinks import iceberg, lake
from tests.support.writers import stands_still, write_at_once

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


def is_in_no_partition(kind: pa.DataType) -> bool:
    """Tell whether tests/sinks/test_partitions.py has no values of the type."""
    types = pa.types
    tests = types.is_nested, types.is_floating, types.is_binary, types.is_duration, types.is_time
    return any(test(kind) for test in tests)


@pytest.mark.faults
class TestIceberg(SinkContract):
    every = 7 if EVERY else 90
    types: ClassVar[list[pa.DataType]] = [kind for kind in SinkContract.types if EVERY or is_in_no_partition(kind)]

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at, self.options = tmp_path, lake(tmp_path)

    def make_sink(self, into: str) -> Iceberg:
        return Iceberg(f"shop.{into}", options=self.options)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return iceberg(self.at, f"shop.{into}")

    def drop(self, into: str) -> None:
        load_catalog("default", **self.options).drop_table(f"shop.{into}")


class Shop:
    """A catalog with a namespace, and the table that a sink keeps there."""

    def __init__(self, folder: Path) -> None:
        self.options = lake(folder)
        self.catalog: Catalog = load_catalog("default", **self.options)
        self.catalog.create_namespace("shop")

    def sink(self, schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("id",), **more: Any) -> Iceberg:
        made = Iceberg("shop.it", options=self.options, **more)
        made.prepare(schema, key)
        return made

    def make(self, *columns: IcebergType, partition: PartitionField | None = None, names: str = "id n") -> None:
        """Have a table of another writer, with columns of these types."""
        named = enumerate(zip(names.split(), columns, strict=True), 1)
        fields = [NestedField(number, name, kind) for number, (name, kind) in named]
        parts = [partition] if partition else []
        self.catalog.create_table("shop.it", Schema(*fields), partition_spec=PartitionSpec(*parts))

    @property
    def table(self) -> Table:
        return self.catalog.load_table("shop.it")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])

    @property
    def files(self) -> set[str]:
        return {task.file.file_path for task in self.table.scan().plan_files()}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def batch(schema: pa.Schema = SCHEMA, deletes: tuple[Any, ...] = (), **rows: Any) -> tuple[pa.Table, pa.Table]:
    values = {schema.names[0]: list(rows), schema.names[1]: list(rows.values())}
    return pa.table(values, schema), pa.table({schema.names[0]: list(deletes)}, pa.schema([schema.field(0)]))


def test_the_last_batch_outlives_expired_snapshots(shop: Shop) -> None:
    sink = shop.sink()
    for number in range(3):
        sink.apply(batch_id(number), *batch(a=number))
    assert shop.table.snapshots()[1].summary["fkjoin.batch"] == "1"
    shop.table.maintenance.expire_snapshots().older_than(datetime.datetime(2999, 1, 1)).commit()
    assert len(shop.table.snapshots()) == 1
    assert sink.last_batch("q") == batch_id(2)
    sink.apply(batch_id(2), *batch(a=99))
    assert shop.rows == [{"id": "a", "n": 2}]
    with pytest.raises(FkJoinError, match="has batch 2 of the query, which is about"):
        sink.apply(batch_id(2, 103), *batch(a=99))


def test_a_batch_is_one_snapshot_and_leaves_files_without_its_keys(shop: Shop) -> None:
    sink = shop.sink()
    sink.apply(batch_id(0), *batch(a=1, b=2))
    sink.apply(batch_id(1), *batch(m=3, n=4))
    operations = [snapshot.summary["operation"].value for snapshot in shop.table.snapshots()]
    assert operations == ["append", "append"], "for those who read what was appended"
    before = shop.files
    sink.apply(batch_id(2), *batch(m=5, z=6, deletes=("n", "never there")))
    assert len(shop.table.snapshots()) == 3
    assert len(before & shop.files) == 1, "the file with a and b"
    assert shop.rows == [{"id": key, "n": n} for key, n in (("a", 1), ("b", 2), ("m", 5), ("z", 6))]


def test_an_attempt_that_stands_still_adds_nothing_to_what_another_one_commits(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before it commits, another attempt commits the batch, and another writer a row of the same key."""
    slow, fast = shop.sink(), shop.sink()
    between: list[Callable[[], object]] = [lambda: fast.apply(batch_id(0), *batch(a=1))]
    stands_still(monkeypatch, slow, between)
    with caplog.at_level(logging.WARNING, "fkjoin"):
        slow.apply(batch_id(0), *batch(a=1))
        assert shop.rows == [{"id": "a", "n": 1}]
        between.append(lambda: shop.table.append(batch(b=8)[0]))
        slow.apply(batch_id(1), *batch(b=2))
    assert shop.rows == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
    created, changed = caplog.messages
    assert created.startswith("iceberg default.shop.it: Requirement failed: branch main was created concurrently; tried again")
    assert changed.startswith("iceberg default.shop.it: Requirement failed: branch main has changed: expected id ")


def test_events_are_appended_once(shop: Shop) -> None:
    sink = shop.sink(key=())
    for _ in range(2):
        sink.apply(batch_id(0), batch(a=1)[0], batch()[1].select([]))
    sink.apply(batch_id(1), batch(a=1)[0], batch()[1].select([]))
    assert shop.rows == 2 * [{"id": "a", "n": 1}]


def test_nulls_of_lists_and_maps_of_structs_stay_null_when_their_file_is_written_again(shop: Shop) -> None:
    item = pa.struct([("a", pa.int64())])
    values = {"none": None, "empty": ([], []), "some": ([{"a": 1}], [("k", {"a": None})])}
    schema = pa.schema([("id", pa.string()), ("lists", pa.list_(item)), ("maps", pa.map_(pa.string(), item))])
    columns = {"id": list(values), "lists": [], "maps": []}
    for value in values.values():
        lists, maps = value or (None, None)
        columns["lists"].append(lists)
        columns["maps"].append(maps)
    rows = pa.table(columns, schema)
    sink = shop.sink(schema)
    for number, part in enumerate((rows, rows.slice(2))):
        sink.apply(batch_id(number), part, rows.select(["id"]).slice(3))
        files = [pq.read_table(file.removeprefix("file://")) for file in shop.files]
        written = sorted(pa.concat_tables(files).to_pylist(), key=lambda row: list(values).index(row["id"]))
        assert written == rows.to_pylist()


def test_two_writers_of_the_same_rows_at_the_same_time_both_write_all_their_batches(shop: Shop) -> None:
    shop.sink().apply(batch_id(0, query="first"), *batch(a=0, b=0))
    write_at_once(shop.sink, batch, 4)
    assert shop.rows == [{"id": "a", "n": 3}, {"id": "b", "n": 3}]
    for query in ("one", "other"):
        assert shop.sink().last_batch(query) == batch_id(3, query=query)
    assert len(shop.table.snapshots()) == 9, "each batch once"


def test_a_partitioned_table_with_a_column_of_its_own_keeps_both(shop: Shop) -> None:
    """The column keeps its values in rows that change, and is null in new ones."""
    partition = PartitionField(2, 1000, IdentityTransform(), "id")
    shop.make(StringType(), StringType(), LongType(), partition=partition, names="note id n")
    noted = pa.table({"note": ["x", None, "z"], "id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int64())})
    shop.table.append(noted)
    sink = shop.sink()
    sink.apply(batch_id(0), *batch(a=7, d=8, deletes=("b",)))
    rows = [tuple(row.values()) for row in shop.rows]
    assert rows == [("x", "a", 7), ("z", "c", 3), (None, "d", 8)]
    sink.replace(batch_id(0), batch(a=9)[0])
    assert shop.rows == [{"note": "x", "id": "a", "n": 9}]


def test_a_table_without_the_columns_is_refused_or_gets_them(shop: Shop) -> None:
    shop.make(StringType(), IntegerType(), StringType(), names="id n Case")
    narrow = shop.table.schema()
    more = SCHEMA.append(pa.field("tags", pa.list_(pa.struct([("a", pa.int16())]))))
    with pytest.raises(FkJoinError, match=r"lacks the columns tags \(it has Case, id, n\): add them, let evolve=True add them"):
        shop.sink(more)
    texts = pa.schema([("id", pa.string()), ("n", pa.string()), ("new", pa.string())])
    for schema, evolve, says in (
        (SCHEMA, False, "column n is int, which cannot hold every bigint: make it bigint, or cast"),
        (SCHEMA.append(pa.field("case", pa.string())), True, "lacks the columns case"),
        (texts, True, "column n is int, which cannot hold every string"),
    ):
        with pytest.raises(FkJoinError, match=says):
            shop.sink(schema, evolve=evolve)
    Iceberg("shop.it", options=shop.options, evolve=True).examine(more, ("id",))
    assert shop.table.schema() == narrow, "neither a refusal nor a check changes it"
    row = {"id": "a", "n": 2**40, "tags": [{"a": 1}]}
    shop.sink(more, evolve=True).apply(batch_id(0), pa.Table.from_pylist([row], more), batch()[1])
    assert shop.rows == [row | {"Case": None}]
    shop.sink().apply(batch_id(1), *batch(a=5))
    assert shop.rows == [row | {"Case": None, "n": 5}]


def test_columns_that_cannot_be_written_are_refused_by_name(shop: Shop) -> None:
    with pytest.raises(TopologyError, match="to_iceberg: column took is interval day to second, which could not be read"):
        shop.sink(SCHEMA.append(pa.field("took", pa.duration("us"))))
    required = NestedField(3, "of", UUIDType(), required=True)
    schema = Schema(NestedField(1, "id", UUIDType()), NestedField(2, "n", LongType()), required)
    shop.catalog.create_table("shop.it", schema)
    says = "column id is .*uuid.*, which cannot hold every string: .*; column of is .* NOT NULL"
    with pytest.raises(FkJoinError, match=says):
        shop.sink()


@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(1), DayTransform()], ids=str)
def test_a_table_may_be_partitioned_by_what_is_worked_out(shop: Shop, transform: Transform[Any, Any]) -> None:
    column = 2 if isinstance(transform, DayTransform) else 1
    partition = PartitionField(column, 1000, transform, "part")
    shop.make(StringType(), TimestampType(), partition=partition, names="id at")
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us"))])
    sink, at = shop.sink(schema), datetime.datetime(2026, 1, 2)
    sink.apply(batch_id(0), *batch(schema, a=at, b=None, c=at))
    sink.apply(batch_id(1), *batch(schema, ("b",), c=None))
    assert shop.rows == [{"id": "a", "at": at}, {"id": "c", "at": None}]


def test_a_table_that_cannot_be_made_is_refused(shop: Shop) -> None:
    nested = SCHEMA.append(pa.field("a", pa.struct([("b", pa.int64())])))
    sink = Iceberg("shop.it", options=shop.options)
    says = "Iceberg table shop.it cannot be made for .* multiple fields for name a.b.* Rename or"
    for begin in (sink.examine, sink.prepare):
        with pytest.raises(FkJoinError, match=says):
            begin(nested.append(pa.field("a.b", pa.int64())), ("id",))
    assert not shop.catalog.table_exists("shop.it")
    shop.sink(nested.append(pa.field("a_b", pa.int64())))


def test_a_catalog_without_a_place_for_files_is_refused(tmp_path: Path) -> None:
    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    sink = Iceberg("shop.it", options=nowhere)
    for begin in (sink.examine, sink.prepare, sink.examine):
        with pytest.raises(FkJoinError, match="Iceberg table shop.it cannot be made: .* give a warehouse in options"):
            begin(SCHEMA, ("id",))
    load_catalog("default", **nowhere).create_namespace("placed", {"location": f"file://{tmp_path}/placed"})
    for sink in (
        Iceberg("shop.it", options=nowhere | {"warehouse": f"file://{tmp_path}"}),
        Iceberg("placed.it", options=nowhere),
    ):
        sink.examine(SCHEMA, ("id",))
        sink.prepare(SCHEMA, ("id",))


@pytest.mark.parametrize("warehouse", ["file:///proc/lake", "/proc/lake", "file://FOLDER/taken/lake", "FOLDER/taken/lake"])
def test_a_warehouse_that_cannot_be_written_to_is_refused_and_nothing_is_left(tmp_path: Path, warehouse: str) -> None:
    (tmp_path / "taken").write_text("a file")

    def sink(warehouse: str) -> Iceberg:
        options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
        return Iceberg("shop.it", options=options | {"warehouse": warehouse})

    warehouse = warehouse.replace("FOLDER", str(tmp_path))
    path = warehouse.removeprefix("file://")
    says = rf"^Iceberg table shop.it: {path} cannot be written to: .*; make that folder, or"
    for begin in (sink(warehouse).examine, sink(warehouse).prepare):
        with pytest.raises(FkJoinError, match=f"{says} give another place as its catalog's"):
            begin(SCHEMA, ("id",))
    other = sink(f"{tmp_path}/lake")
    other.examine(SCHEMA, ("id",))
    assert other.last_batch("q") is None
    assert [path.name for path in tmp_path.iterdir()] == ["taken"], "neither a check nor a look makes anything"
    if "taken" in warehouse:
        (tmp_path / "taken").unlink()
        (tmp_path / "taken/lake").mkdir(parents=True)
        other = sink(warehouse)
    other.prepare(SCHEMA, ("id",))
    other.apply(batch_id(0), *batch(a=1))
    assert other.last_batch("q") == batch_id(0)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_time_that_iceberg_cannot_have_stops_the_batch(shop: Shop, kind: pa.DataType) -> None:
    """PyIceberg reads the least and the greatest value of a file's column as Python's times."""
    names, (number, day) = ["id", "at"], (pa.int64(), 86_400_000_000)
    if pa.types.is_date(kind):
        number, day = pa.int32(), 1
    sink = shop.sink(pa.schema(zip(names, (pa.string(), kind), strict=True)))
    if kind == pa.timestamp("us", "UTC"):
        kind = pa.timestamp("us", "Europe/Berlin")  # as Spark's session has it

    def write(batch_number: int, days: int) -> None:
        rows = pa.table([pa.array(["a"]), pa.array([days * day], number).view(kind)], names)
        sink.apply(batch_id(batch_number), rows, batch()[1])

    for batch_number, (days, outside) in enumerate(((2_932_896, 2_932_897), (-719_162, -719_163))):
        write(batch_number, days)
        says = "column at has a (date|time) outside of the years 1 to 9999, which Iceberg tables"
        with pytest.raises(FkJoinError, match=says):
            write(batch_number + 1, outside)


def test_a_catalog_that_cannot_be_had_says_why_and_shows_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = {"token": "CaNaRy17", "s3.secret-access-key": "CaNaRy17"}
    for seconds in (0, 0.5):  # the first time, the package imports its client
        with pytest.raises(FkJoinError) as away:
            Iceberg("shop.it", options={"uri": "http://me:CaNaRy17@127.0.0.1:1", **secret}, retry_s=seconds).last_batch("q")
    assert "Start the query again when the outage is over" in str(away.value)
    assert caplog.messages
    with pytest.raises(TopologyError, match="catalog: 'default' cannot be opened: 'none' is not a valid CatalogType. Give its"):
        Iceberg("shop.it", options={"type": "none", **secret}).last_batch("q")
    with pytest.raises(FkJoinError, match=r"iceberg default.shop.it cannot be reached: .*unable to open database file. Fix"):
        Iceberg("shop.it", options={"uri": f"sqlite:///{tmp_path}/none/c.db", **secret}).last_batch("q")
    sink = Iceberg("shop.it", options=secret)
    assert "CaNaRy17" not in f"{away.value}{caplog.text}{sink!r}"
    for name in ("it", "shop.", ".it"):
        with pytest.raises(TopologyError, match='names no namespace: write it as "namespace.table"'):
            Iceberg(name)


MENDED = [
    ServiceUnavailableError("503"),
    CommitStateUnknownException("504"),
    requests.exceptions.ReadTimeout("read timed out"),
    OperationalError("commit", None, Exception("database is locked")),
    OSError("AWS Error SLOW_DOWN during PutObject"),
]
NOT_MENDED = [
    UnauthorizedError("401"),
    requests.exceptions.InvalidURL("no host"),
    OSError("AWS Error ACCESS_DENIED during PutObject"),
    FileNotFoundError("a data file"),
    OperationalError("select", None, Exception("FATAL: password authentication failed for user")),
]


def test_an_error_is_one_that_a_repetition_mends_or_not() -> None:
    assert [error for error in [*MENDED, *NOT_MENDED] if mends(error)] == MENDED


def test_a_table_that_was_dropped_stops_the_query(shop: Shop) -> None:
    sink = shop.sink()
    shop.catalog.drop_table("shop.it")
    with pytest.raises(FkJoinError, match="iceberg default.shop.it is gone. Stop the query, and run fkjoin restore"):
        sink.apply(batch_id(3), *batch(a=1))
    shop.sink().apply(batch_id(0, query="another"), *batch(a=1))
    assert shop.rows == [{"id": "a", "n": 1}]


def test_a_table_that_was_rolled_back_has_no_batch_of_the_query(shop: Shop) -> None:
    """Its properties outlive that."""
    sink = shop.sink()
    for number in range(3):
        sink.apply(batch_id(number), *batch(a=number))
    first, second, _ = (snapshot.snapshot_id for snapshot in shop.table.snapshots())
    with shop.table.manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(second)
    assert sink.last_batch("q") is None
    with pytest.raises(FkJoinError, match="has no batch of the query, which is about to write batch 3"):
        sink.apply(batch_id(3), *batch(a=3))
    sink.replace(batch_id(2), batch(a=2)[0])
    assert sink.last_batch("q") == batch_id(2)
    shop.table.maintenance.expire_snapshots().by_id(first).commit()
    sink.apply(batch_id(3), *batch(a=3))
    assert shop.rows == [{"id": "a", "n": 3}]


@pytest.mark.parametrize("own", [batch(b=2), batch()], ids=["with rows", "without rows"])
def test_a_driver_that_stood_still_adds_nothing_to_empty_batches(shop: Shop, monkeypatch: pytest.MonkeyPatch, own: Any) -> None:
    """It has looked for its batch, and another run commits two batches without rows before its commit."""
    slow, fast = shop.sink(), shop.sink()
    fast.apply(batch_id(0), *batch(a=1))
    later = BatchId("q", 1, 777, 100), BatchId("q", 2, 888, 777)
    stands_still(monkeypatch, slow, [partial(fast.apply, one, *batch()) for one in later])
    with pytest.raises(FkJoinError, match="has batch 2 of the query, which is about to write batch 1"):
        slow.apply(batch_id(1), *own)
    assert shop.rows == [{"id": "a", "n": 1}]
    assert fast.last_batch("q") == BatchId("q", 2, 888)
