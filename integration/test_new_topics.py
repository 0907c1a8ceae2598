"""Topics that are deleted and created again under their names: noticed, refused, or read in the place of the one before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Table, TopologyError, fk_join
from fkjoin.checkpoint.begun import DOCUMENT, Begun
from fkjoin.kafka import Debezium, Json
from fkjoin.kafka.internal import StageQuery
from fkjoin.storage.local_files import LocalFiles
from tests.support.queries import table_of, write_lines
from tests.support.sinks import finished

from .broker import Broker, Record, Transactions
from .jobs import document, from_topic, job_file
from .machine import until

pytestmark = pytest.mark.usefixtures("least_tables")


def send(broker: Broker, topic: str, **rows: Any) -> None:
    broker.send(topic, [Record(key.encode(), None if row is None else document(**row)) for key, row in rows.items()])


class Shop:
    """Orders and customers; orders are counted by customer, in Parquet."""

    def __init__(self, spark: SparkSession, broker: Broker, name: str, folder: Path) -> None:
        self.spark, self.broker, self.folder, self.name = spark, broker, folder, name
        self.orders, self.customers = f"{name}-orders", f"{name}-customers"
        broker.create(self.orders, self.customers, partitions=2)

    def table(self, topic: str, value: str, **options: Any) -> Table:
        return from_topic(self.spark, self.broker, topic, Json(value), **options)

    def run(self, **options: Any) -> dict[str, int]:
        """Read all there is, and return the table that the changes so far make."""
        orders = self.table(self.orders, "customer string, n int", options={"maxOffsetsPerTrigger": 16}, **options)
        table = orders.group_by("customer", name="count").count()
        where: Any = {"checkpoint": self.folder / "count-ck", "trigger": "available-now"}
        finished(table.to_parquet(self.folder / "count", **where))
        rows = table_of(changes(self.spark, self.folder / "count"), "customer")
        return {name: row["count"] for (name,), row in rows.items()}


def changes(spark: SparkSession, folder: Path) -> list[Any]:
    """The rows that a query has written, in order of its batches."""
    return spark.read.parquet(str(folder)).orderBy("batch").collect()


@pytest.fixture
def shop(spark: SparkSession, broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    return Shop(spark, broker, f"shop{abs(hash(request.node.name)) % 10_000}", tmp_path)


def send_with_marks(broker: Broker, topic: str, numbers: Iterable[int]) -> None:
    """Send orders in a transaction, and then transactions that are aborted: their marks end the topic."""
    transactions = Transactions(broker, topic)
    orders = [Record(f"o{number}".encode(), document(customer="d", n=number)) for number in numbers]
    transactions.commit(*orders)
    for _ in range(12):
        transactions.abort(orders[0])


@pytest.mark.nightly
def test_a_start_over_begins_again_after_a_kill(shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kill comes before a file is written, when the files before it are whole; the second one comes later.

    Then the query stops amid the new topic's records, which end with marks of transactions.
    """
    send(broker, shop.orders, **{f"o{number}": {"customer": "c", "n": number} for number in range(8)})
    assert shop.run() == {"c": 8}
    broker.anew(shop.orders, partitions=1)
    send_with_marks(broker, shop.orders, range(4, 16))
    reached: list[str] = []

    written = LocalFiles.write

    def write(files: LocalFiles, path: str, data: bytes) -> None:
        if path.startswith(step):
            reached.append(step)
            raise KeyboardInterrupt
        written(files, path, data)

    for step in ("offsets", DOCUMENT):
        with monkeypatch.context() as killed:
            killed.setattr(LocalFiles, "write", write)
            with pytest.raises(KeyboardInterrupt):
                shop.run(on_new_topic="start-over")
        assert reached[-1] == step
        with pytest.raises(FkJoinError, match="was deleted and created again"):
            shop.run()
    checkpoint = shop.folder / "count-ck"
    known = Begun.of(shop.spark, str(checkpoint)).topics
    orders = shop.table(shop.orders, "customer string, n int", options={"maxOffsetsPerTrigger": 4}, on_new_topic="start-over")
    table = orders.group_by("customer", name="count").count()
    query = table.to_parquet(shop.folder / "count", checkpoint=checkpoint, trigger={"processingTime": "0 seconds"})
    until("two batches", lambda: len(query.recentProgress) > 1)
    query.stop()
    assert Begun.of(shop.spark, str(checkpoint)).topics != known
    assert shop.run() == {"d": 12}


def test_a_table_that_is_written_as_it_is_read_cannot_start_over(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The topic is made anew between two starts of one table."""
    broker.create("as-read", "as-read-out", partitions=1)
    send(broker, "as-read", a={"n": 1})
    table = from_topic(spark, broker, "as-read", Json("n int"), on_new_topic="start-over")

    def run() -> None:
        where: Any = {"checkpoint": tmp_path, "trigger": "available-now"}
        finished(table.to_kafka("as-read-out", broker.bootstrap, **where))

    run()
    broker.anew("as-read", partitions=1)
    send(broker, "as-read", a={"n": 2})
    with pytest.raises(FkJoinError, match=r"nothing knows which rows to delete.*write \.materialize"):
        run()


@pytest.mark.nightly
def test_a_delete_event_and_its_tombstone_end_a_topic(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The tombstone is not read if the table has a version."""
    broker.create("events", partitions=1)

    def event(key: str, op: str, lsn: int) -> Record:
        row = None if op == "d" else {"id": key}
        return Record(json.dumps({"id": key}).encode(), document(op=op, after=row, source={"lsn": lsn}))

    def run(**options: Any) -> list[tuple[str, str]]:
        form = Debezium("id string")
        table = from_topic(spark, broker, "events", form, key=form, version="source.lsn", **options)
        where: Any = {"checkpoint": tmp_path / "ck", "trigger": "available-now"}
        finished(table.materialize("kept").to_parquet(tmp_path / "out", **where))
        return [(row.id, row._operation) for row in changes(spark, tmp_path / "out")]

    broker.send("events", [event("a", "c", 1), event("b", "c", 2)])
    assert sorted(run()) == [("a", "insert"), ("b", "insert")]
    broker.anew("events", partitions=1)
    broker.send("events", [event("c", "c", 1), event("c", "d", 2), Record(b'{"id": "c"}', None)])
    assert sorted(run(on_new_topic="start-over")[2:]) == [("a", "delete"), ("b", "delete")]


def test_what_cannot_start_over_says_so(shop: Shop, broker: Broker) -> None:
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("n int", {"on_new_topic": "again"}, "on_new_topic: 'again' is not one of fail, start-over"),
        ("n int", {"on_new_topic": "start-over", "roots": 1}, "on_new_topic: a table with roots= cannot start over"),
        ("n int", {"version": "n", "roots": 1}, "version: with roots=, the positions in the records' headers"),
        ("seq int", {"version": "sek"}, r"version: .* has no column 'sek'; did you mean 'seq'\?"),
        ("at string", {"timestamp": "at"}, "timestamp: at is string, a timestamp or bigint is needed"),
        ("headers string", {"headers": True}, "headers: the value has a column 'headers' already; leave headers=False"),
        ("_Position int", {"positions": True}, "positions: the key or the value has a column '_position' already; leave"),
    ]
    for value, options, says in refused:
        with pytest.raises(TopologyError, match=says):
            shop.table(shop.orders, value, **options)
        options.popitem()
        assert shop.table(shop.orders, value, **options).columns == ["key", value.split()[0]]
    orders = shop.table(shop.orders, "customer string", on_new_topic="start-over")
    customers = shop.table(shop.customers, "name string")
    with pytest.raises(TopologyError, match='a table with on_new_topic="start-over" cannot be in a staged deployment'):
        fk_join(orders, customers, "customer", deployment="staged")
    orders = shop.table(shop.orders, "customer string")
    assert fk_join(orders, customers, "customer", deployment="staged").stages


def test_a_staged_aggregate_of_a_join_notices_each_topic_that_is_new(shop: Shop, broker: Broker, tmp_path: Path) -> None:
    def regroup() -> StageQuery:
        orders, customers = (shop.table(topic, value) for topic, value in tables.items())
        joined = fk_join(orders, customers, "customer", name="joined")
        (query,) = joined.group_by("right.name", name="by", deployment="staged", application="by-name").count().stages
        return query

    tables = {shop.orders: "customer string", shop.customers: "name string"}
    send(broker, shop.orders, a={"customer": "c"})
    send(broker, shop.customers, c={"name": "Ada"})
    regroup().start(tmp_path / "regroup", trigger="available-now").awaitTermination()
    broker.anew(shop.customers, partitions=2)
    send(broker, shop.customers, c={"name": "Bo"})
    for use in (StageQuery.start, StageQuery.check):
        with pytest.raises(FkJoinError, match=f"topic {shop.customers} .*created again"):
            use(regroup(), str(tmp_path / "regroup"))
    write_lines(tmp_path / "names", "1", [{"key": "c", "name": "Ada", "n": 1}])
    files = Table.from_files(shop.spark, tmp_path / "names", name="names", key="key", version="n")
    both = fk_join(shop.table(shop.orders, "customer string"), files, "customer")
    with pytest.raises(TopologyError, match=r"made from topics \(Table.from_kafka\), and names is not one"):
        both.group_by("right.name", deployment="staged").count()


def test_a_job_starts_over(shop: Shop, broker: Broker, tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    """Its other topic stands, and is read on."""
    more = """
    trigger = "available-now"
    sinks.out = {table = "all", path = "{folder}/out"}
    [joins.all]
    left = "orders"
    right = "customers"
    extractor = "customer"
    joiner = ["left.n", "right.name"]
    """
    tables = {"orders": "customer string, n int", "customers": "name string"}
    job = job_file(shop.name, tmp_path, broker, tables, more)
    send(broker, shop.customers, c={"name": "Ada"}, d={"name": "Bo"})
    send(broker, shop.orders, a={"customer": "c", "n": 1}, b={"customer": "d", "n": 2})
    fkjoin_here("run", job)
    broker.anew(shop.orders, partitions=1)
    with pytest.raises(FkJoinError, match=f"topic {shop.orders} was created again and has no records yet"):
        fkjoin_here("run", job, "--start-over", shop.orders)
    send(broker, shop.orders, b={"customer": "c", "n": 3})
    for check in ([], ["--check"]):
        with pytest.raises(FkJoinError, match=f"fkjoin run --start-over {shop.orders}"):
            fkjoin_here("run", job, *check)
    with pytest.raises(FkJoinError, match="--start-over: no table of the job is read from topic 'order'"):
        fkjoin_here("run", job, "--start-over", "order")
    send(broker, shop.customers, c={"name": "Ada L."})
    fkjoin_here("run", job, "--start-over", shop.orders)
    written = {(row.key, row._operation): row.name for row in changes(shop.spark, tmp_path / "out")[2:]}
    assert written == {("b", "update"): "Ada L.", ("a", "delete"): None}
    fkjoin_here("run", job, "--check")
    begun = Begun.of(shop.spark, f"{tmp_path}/checkpoint/sink-out")
    assert begun.topics[shop.orders].ends == [(0, 0)]
