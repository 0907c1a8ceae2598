"""Mistakes that users make, each with the whole message that it gets: the first line says enough by itself."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Query, QueryError, SessionError, Table, fk_join
from fkjoin.checkpoint import claim
from fkjoin.sessions.connector import package
from fkjoin.sessions.settings import PARTITIONS, _classic
from tests.support.job_files import write_rows
from tests.support.queries import write_lines
from tests.support.sessions import small

NOW: Any = {"trigger": "available-now"}


@dataclass
class Shop:
    """Orders and customers, and places that nothing can be written to."""

    spark: SparkSession
    folder: Path

    def orders(self, **more: Any) -> Table:
        return Table.from_files(self.spark, self.folder / "orders", **{"key": "id", "version": "lsn"} | more)

    def customers(self) -> Table:
        return Table.from_files(self.spark, self.folder / "customers", key="customer", version="lsn")

    def joined(self, extractor: Any = "customer", joiner: Any = None, **more: Any) -> Table:
        return fk_join(self.orders(**more), self.customers(), extractor, joiner=joiner, name="joined")

    def run(self, table: Table, to: str = "out", checkpoint: str = "ck") -> None:
        table.to_parquet(self.folder / to, checkpoint=self.folder / checkpoint, **NOW).awaitTermination()

    def refusal(self, make: Callable[[Shop], object]) -> str:
        """The message of a mistake, without what differs from run to run."""
        with pytest.raises(FkJoinError) as found:
            make(self)
        if isinstance(found.value, QueryError):
            assert isinstance(found.value, StreamingQueryException), "users may catch that"
            assert "=== Streaming Query ===" in found.value.details
        said = str(found.value).replace(str(self.folder), "FOLDER")
        return re.sub(r"(line|was|tried|in) \d+", r"\1 N", re.sub(r"\(ChecksumException: .*\)", "(…)", said))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    small(spark, tmp_path, buckets=1)
    write_rows(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    return Shop(spark, tmp_path)


ELSEWHERE = "make that folder, or give another place"
LEARNED = (
    "learned: give schema= with the types that most lines have; if a query has read these files before, give schema= as "
    '"fkjoin state columns CHECKPOINT" prints it'
)

WHILE_BUILDING: dict[str, Callable[[Shop], object]] = {
    "extractor: amount of left table orders is bigint, but key column customer of right table customers is string; cast "
    'one of them, for instance extractor="cast(amount as string)". The columns of orders from FOLDER/orders and customers '
    f"from FOLDER/customers were {LEARNED}": lambda shop: shop.joined("amount"),
    "condition: 'amount >' cannot be evaluated over table orders (amount, customer, id): Syntax error at or near end of "
    "input. (line N, pos 8)": lambda shop: shop.orders().filter("amount >"),
    "joiner: the joined row has no column 'left.amont'; did you mean 'left.amount'? It has: left.amount, left.customer, "
    "left.id, right.customer, right.name.": lambda shop: shop.joined(joiner=["left.amont"]),
    'path: FOLDER/order is not there; correct it, or, if files come later: give format="json", "parquet" or "csv"': (
        lambda shop: Table.from_files(shop.spark, shop.folder / "order", key="id", version="lsn")
    ),
    "Spark's Kafka connector is missing: start the session with fkjoin.session(kafka=True), in a job file kafka = true "
    f"in [spark]; with spark-submit, --packages {package()}": (
        lambda shop: Table.from_kafka(shop.spark, "orders", "localhost:1", key="string", value="string")
    ),
    f"FOLDER/file cannot be written to: FOLDER/file is a file; {ELSEWHERE}": (
        lambda shop: shop.run(shop.orders(), checkpoint="file")
    ),
    f"FOLDER/link cannot be written to: FOLDER/link is a link to FOLDER/gone, which does not exist; {ELSEWHERE}": (
        lambda shop: shop.joined().to_delta(shop.folder / "link", checkpoint=shop.folder / "ck")
    ),
}
"""Mistakes that the session notices, by their messages; ``tests/api/test_ways_out_while_building.py`` has more."""


def test_a_mistake_while_building_has_its_message(shop: Shop) -> None:
    assert [shop.refusal(make) for make in WHILE_BUILDING.values()] == list(WHILE_BUILDING)


def test_a_query_with_a_damaged_checkpoint_is_refused(shop: Shop) -> None:
    """Other causes: tests/checkpoint/test_failure.py; a checkpoint of another job: tests/jobs/test_mistakes.py."""
    shop.run(shop.joined())
    write_lines(shop.folder / "orders", "2", [{"id": "o2", "customer": "c1", "amount": 2, "lsn": 2}])
    for file in [*shop.folder.glob("ck/state/0/0/*.changelog"), *shop.folder.glob("ck/state/0/0/*.zip")]:
        file.write_bytes(file.read_bytes()[:50])
    assert shop.refusal(lambda shop: shop.run(shop.joined())) == (
        "query joined failed: checkpoint FOLDER/ck is damaged, its state cannot be read (…)\n"
        "where: batch 1 of checkpoint FOLDER/ck\n"
        "what to do: restore it from a backup (to the same path), or start with a new checkpoint and an empty target, and "
        "replay the sources"
    )


def test_what_is_gone_can_be_made_again(shop: Shop) -> None:
    """The ways out of messages about folders, and about a session, whose context is put back here."""
    context, table = shop.spark._sc, shop.orders()
    kept, context._jsc = context._jsc, None  # as ``stop`` leaves it
    try:
        uses: list[Callable[[], object]] = [shop.customers, lambda: shop.run(table)]
        uses += [lambda: table.changes, lambda: table.filter("amount > 1")]
        uses += [lambda: table.group_by("customer").count(), lambda: fk_join(table, table, "customer")]
        for use in uses:
            with pytest.raises(FkJoinError, match=r"the Spark session was stopped: make a new one with fkjoin\.session"):
                use()
    finally:
        context._jsc = kept
    with pytest.raises(FkJoinError, match="make that folder, or give another place$"):
        shop.run(shop.orders(), to="link")
    (shop.folder / "gone").mkdir()
    shop.run(shop.orders(), to="link")
    assert list((shop.folder / "gone").glob("batch=*"))


def test_what_spark_refuses_has_a_way_out_that_is_one(shop: Shop) -> None:
    """Places of file systems that the session does not have, a sink and a setting that there are not."""
    version = shop.spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # type: ignore[union-attr]
    lacks = "cannot be opened: {}; give a place that this session can reach, or a session the {}"
    aws = lacks.format(
        "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        f'setting spark.jars.packages = "org.apache.hadoop:hadoop-aws:{version}"',
    )
    foo = lacks.format('UnsupportedFileSystemException: No FileSystem for scheme "foo"', "jars and the settings of its file")
    for place, says in (("s3a://bucket/x", aws), ("foo://bucket/x", foo)):
        for schema in (None, "id string, lsn bigint"):
            with pytest.raises(FkJoinError, match=re.escape(says if schema else says.split("; ")[0].split(": ", 1)[1])):
                Table.from_files(shop.spark, place, key="id", version="lsn", format="json", schema=schema)
        with pytest.raises(FkJoinError, match=re.escape(says)):
            shop.orders().to_parquet(shop.folder / "out", checkpoint=place)

    def start(format: str) -> Query:
        write = shop.orders().changes.writeStream.format(format).option("checkpointLocation", str(shop.folder / "own"))
        begin = write.trigger(availableNow=True).start
        return claim.start_claimed(shop.spark, str(shop.folder / "own"), lambda: begin(str(shop.folder / "own-out")))

    with pytest.raises(FkJoinError, match=r"own: .* cannot start: Failed to find .*: jsn\. .* Fix this and start it again$"):
        start("jsn")
    start("json").awaitTermination()

    with pytest.raises(SessionError, match=r"^settings: Spark refuses one: The value 'many' in the config .*; change it, or"):
        _classic({PARTITIONS: "many"})
    assert _classic({PARTITIONS: shop.spark.conf.get(PARTITIONS) or ""}) is shop.spark


@pytest.mark.nightly
def test_a_file_that_cannot_be_read_is_replaced_or_left_out(shop: Shop) -> None:
    pq = shop.folder / "pq"
    shop.spark.range(3).selectExpr("id", "id as lsn").coalesce(1).write.parquet(str(pq))
    table = Table.from_files(shop.spark, pq, key="id", version="lsn", format="parquet")
    bad = pq / "z.parquet"
    for number in range(2):
        bad.write_bytes(b"PAR1 is not all of it")
        with pytest.raises(QueryError, match=rf"what to do: replace file://{bad} by an undamaged file of the same name, and "):
            shop.run(table, f"pq-{number}", f"pq-ck-{number}")
        if number:
            bad.unlink()
            shop.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        else:
            shutil.copy(next(pq.glob("part-*.parquet")), bad)
        try:
            shop.run(table, f"pq-{number}", f"pq-ck-{number}")
        finally:
            shop.spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        assert shop.spark.read.parquet(str(shop.folder / f"pq-{number}")).count() == (3 if number else 6)
