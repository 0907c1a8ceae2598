"""Mistakes that people make, each with the whole message that it gets: the first line says enough by itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Query, QueryError, SessionError, Table, fk_join
from fkjoin.checkpoint import claim, claim_files
from fkjoin.sessions.connector import package
from fkjoin.sessions.settings import PARTITIONS, _classic
from tests.support.job_files import write_rows
from tests.support.queries import write_lines
from tests.support.sessions import small

NOW: Any = {"trigger": "available-now"}
FAIL: Any = {"on_error": "fail"}


@dataclass
class Shop:
    """Orders and customers."""

    spark: SparkSession
    folder: Path

    def orders(self, **more: Any) -> Table:
        return Table.from_files(self.spark, self.folder / "orders", **{"key": "id", "version": "lsn"} | more)

    def customers(self, **more: Any) -> Table:
        return Table.from_files(self.spark, self.folder / "customers", **{"key": "customer", "version": "lsn"} | more)

    def joined(self, extractor: Any = "customer", joiner: Any = None, **more: Any) -> Table:
        return fk_join(self.orders(**more), self.customers(), extractor, joiner=joiner, name="joined")

    def run(self, table: Table, to: str = "out", checkpoint: str = "ck") -> None:
        table.to_parquet(self.folder / to, checkpoint=self.folder / checkpoint, **NOW).awaitTermination()

    def begun(self) -> None:
        """A checkpoint that has a batch, and data for another one."""
        self.run(self.joined())
        write_lines(self.folder / "orders", "2", [{"id": "o2", "customer": "c1", "amount": 2, "lsn": 2}])

    def link_to_nothing(self) -> Path:
        (self.folder / "link").symlink_to(self.folder / "gone")
        return self.folder / "link"

    def file(self) -> Path:
        (self.folder / "file").touch()
        return self.folder / "file"


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    small(spark, tmp_path, buckets=1)
    write_rows(tmp_path)
    return Shop(spark, tmp_path)


def customer_of(key: Any, row: Any) -> Any:
    return named(row)


def named(row: Any) -> Any:
    return {"c1": 1}[row.customer + "?"]


def misnamed(left: Any, right: Any) -> Any:
    return left["amount"] + right["name"]


def added(key: Any, row: Any, total: Any) -> Any:
    return total / (row.amount - 5)


def killed(key: Any, row: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def only(row: Any) -> Any:
    return row


class FullDisk:
    place = "disk"

    def begin(self, table: Any) -> Any:
        def write(batch: Any, query: str, number: int) -> None:
            raise OSError(28, "No space left on device")

        return write


def changed_extractor(shop: Shop) -> None:
    shop.begun()
    shop.run(shop.joined("upper(customer)"))


def other_operators(shop: Shop) -> None:
    shop.begun()
    shop.run(shop.orders().group_by("customer", name="by").count())


def in_use(shop: Shop) -> None:
    (shop.folder / "ck").mkdir()
    owner = {"host": "elsewhere", "process": 1, "machine": claim._machine()}
    (shop.folder / "ck" / f"{claim_files.CLAIM_FILE}.1").write_text(json.dumps(owner))
    shop.run(shop.joined())


def damaged(shop: Shop) -> None:
    shop.begun()
    for file in [*shop.folder.glob("ck/state/0/0/*.changelog"), *shop.folder.glob("ck/state/0/0/*.zip")]:
        file.write_bytes(file.read_bytes()[:50])
    shop.run(shop.joined())


def bad_line(shop: Shop) -> None:
    (shop.folder / "orders" / "2.json").write_text('{"id":\n')
    schema = "id string, customer string, amount bigint, lsn bigint"
    shop.run(fk_join(shop.orders(schema=schema, **FAIL), shop.customers(), "customer", name="joined"))


def stopped(shop: Shop) -> None:
    context, table = shop.spark._sc, shop.orders()
    kept, context._jsc = context._jsc, None  # as ``stop`` leaves it
    try:
        for use in (lambda: table.filter("amount > 1"), lambda: table.changes, lambda: shop.run(table)):
            with pytest.raises(FkJoinError, match="the Spark session was stopped"):
                use()
        shop.customers()
    finally:
        context._jsc = kept


AGAIN = "start the query again: it goes on with this batch"
ASIDE = f'what to do: set such %s aside, with on_error="dead-letter" for the table; or mend what is wrong; then {AGAIN}'
NEW = "start this version of the job with a new checkpoint and an empty target, or go back to what the checkpoint was made with"
ELSEWHERE = "make that folder, or give another place"
LEARNED = (
    "learned: give schema= with the types that most lines have; if a query has read these files before, give schema= as "
    '"fkjoin state columns CHECKPOINT" prints it'
)
OF_BOTH = "It has: left.amount, left.customer, left.id, right.customer, right.name."

MISTAKES: dict[str, tuple[Callable[[Shop], object], str]] = {
    "an extractor of an unknown column": (
        lambda shop: shop.joined("custmer"),
        "extractor: left table orders has no column 'custmer'; did you mean 'customer'? It has: amount, customer, id.",
    ),
    "an extractor of another type": (
        lambda shop: shop.joined("amount"),
        "extractor: amount of left table orders is bigint, but key column customer of right table customers is string; cast "
        'one of them, for instance extractor="cast(amount as string)". The columns of orders from FOLDER/orders and customers '
        f"from FOLDER/customers were {LEARNED}",
    ),
    "an extractor with one argument": (
        lambda shop: shop.joined(only),
        "extractor: only(row) is called with (key, row); let it take these",
    ),
    "a condition that is none": (
        lambda shop: shop.orders().filter("amount"),
        "condition: amount is bigint, a boolean is needed: write a comparison. The columns of orders from FOLDER/orders "
        f"were {LEARNED}",
    ),
    "a version that is none": (
        lambda shop: shop.orders(version="customer"),
        "version: customer is string, whole numbers are needed; cast it, for a timestamp with unix_micros(…). The columns of "
        f"orders from FOLDER/orders were {LEARNED}",
    ),
    "a condition of an unknown column": (
        lambda shop: shop.orders().filter("amont > 1"),
        "condition: in 'amont > 1', table orders has no column 'amont'; did you mean 'amount'? It has: amount, customer, id.",
    ),
    "a condition that is cut off": (
        lambda shop: shop.orders().filter("amount >"),
        "condition: 'amount >' cannot be evaluated over table orders (amount, customer, id): Syntax error at or near end of "
        "input. (line N, pos 8)",
    ),
    "a joiner of an unknown column": (
        lambda shop: shop.joined(joiner=["amount"]),
        f"joiner: the joined row has no column 'amount'; did you mean 'left.amount'? {OF_BOTH}",
    ),
    "a joiner of an unknown field": (
        lambda shop: shop.joined(joiner=["left.amont"]),
        f"joiner: the joined row has no column 'left.amont'; did you mean 'left.amount'? {OF_BOTH}",
    ),
    "a joiner that names a column twice": (
        lambda shop: shop.joined(joiner=["left.customer", "right.customer"]),
        "joiner: two columns are called 'customer'; give one of them an alias",
    ),
    "a joiner with one argument": (
        lambda shop: shop.joined(joiner=only),
        "joiner: only(row) is called with (left, right); let it take these",
    ),
    "an adder with one argument": (
        lambda shop: shop.orders().group_by("customer").aggregate(0, only, only),  # type: ignore[arg-type]
        "adder: only(row) is called with (key, value, aggregate); let it take these",
    ),
    "two sources of one name": (
        lambda shop: fk_join(shop.orders(name="it"), shop.customers(name="it"), "customer"),
        "name: two sources of this join are called 'it' (stream of amount, customer, id, lsn, and stream of customer, lsn, "
        "name); give one another name=",
    ),
    "a table merged with one of its name": (
        lambda shop: shop.orders().merge(shop.orders()),
        "others[0]: orders is merged with itself, or another table has its name; give each table once, with a name= of its own",
    ),
    "a DataFrame for a table": (
        lambda shop: fk_join(shop.orders(), shop.spark.range(1), "customer"),  # type: ignore[arg-type]
        "right: a Table is needed, this is a DataFrame; wrap it with Table.from_stream(df, key=…, version=…)",
    ),
    "an unknown key": (
        lambda shop: shop.orders(key="order"),
        "key: orders has no column 'order'. It has: amount, customer, id, lsn.",
    ),
    "a folder that is not there": (
        lambda shop: Table.from_files(shop.spark, shop.folder / "order", key="id", version="lsn"),
        'path: FOLDER/order is not there; correct it, or, if files come later: give format="json", "parquet" or "csv"',
    ),
    "a session without the connector": (
        lambda shop: Table.from_kafka(shop.spark, "orders", "localhost:1", key="string", value="string"),
        "Spark's Kafka connector is missing: start the session with fkjoin.session(kafka=True), in a job file kafka = true "
        f"in [spark]; with spark-submit, --packages {package()}",
    ),
    "a session that was stopped": (
        stopped,
        "the Spark session was stopped: make a new one with fkjoin.session(), and the tables anew with it",
    ),
    "a checkpoint of another extractor": (
        changed_extractor,
        'checkpoint: FOLDER/ck was made by another job: of store joined-rekey, extractor was "customer" and is now '
        f'"upper(customer)"; {NEW}',
    ),
    "a checkpoint of other operators": (
        other_operators,
        "checkpoint: FOLDER/ck was made by another job: its operators were joined-rekey, joined-subscription, joined-resolve "
        "and are now by-regroup, by-aggregate, perhaps by other rules of the optimizer (spark.fkjoin.optimize, "
        f"spark.fkjoin.optimizer.excludedRules); {NEW}",
    ),
    "a checkpoint in use": (
        in_use,
        "checkpoint: FOLDER/ck is in use by process 1 on elsewhere: stop that job first. It renewed its claim in the last "
        "60 s; once it is gone, a start takes the claim over",
    ),
    "a checkpoint that is a file": (
        lambda shop: shop.run(shop.orders(), checkpoint=shop.file().name),
        f"FOLDER/file cannot be written to: FOLDER/file is a file; {ELSEWHERE}",
    ),
    "a folder that is a link to nothing": (
        lambda shop: shop.run(shop.orders(), to=shop.link_to_nothing().name),
        f"FOLDER/link cannot be written to: FOLDER/link is a link to FOLDER/gone, which does not exist; {ELSEWHERE}",
    ),
    "a Delta table in a link to nothing": (
        lambda shop: shop.joined().to_delta(shop.link_to_nothing(), checkpoint=shop.folder / "ck"),
        f"FOLDER/link cannot be written to: FOLDER/link is a link to FOLDER/gone, which does not exist; {ELSEWHERE}",
    ),
    "a Delta table in a file": (
        lambda shop: shop.joined().to_delta(shop.file(), checkpoint=shop.folder / "ck"),
        f"FOLDER/file cannot be written to: FOLDER/file is a file; {ELSEWHERE}",
    ),
    "a source kept in Delta": (
        lambda shop: shop.orders().to_delta(shop.folder / "out", checkpoint=shop.folder / "ck"),
        'orders: a source\'s changes come as they are read, several of a row in a batch: write .materialize("orders") first '
        "(in a job file, materialize = true), so that each batch has a row's last one",
    ),
    "a database that is not there": (
        lambda shop: shop.joined().to_postgres("it", "host=127.0.0.1 port=1", checkpoint=shop.folder / "ck", retry_s=0),
        'postgres it: connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused (tried once). '
        "Check its host and port, and start again when it answers",
    ),
    "an extractor that throws": (
        lambda shop: shop.run(shop.joined(customer_of, **FAIL)),
        "query joined failed: extractor of orders, key o1: KeyError: 'c1?' (test_mistakes.py, line N, in named: "
        'return {"c1": 1}[row.customer + "?"])\n'
        f"where: batch 0 of checkpoint FOLDER/ck\n{ASIDE % 'rows'}",
    ),
    "a joiner that throws": (
        lambda shop: shop.run(shop.joined(joiner=misnamed, **FAIL)),
        "query joined failed: joiner of joined, key o1: TypeError: unsupported operand type(s) for +: 'int' and "
        '\'str\' (test_mistakes.py, line N, in misnamed: return left["amount"] + right["name"])\n'
        f"where: batch 0 of checkpoint FOLDER/ck\n{ASIDE % 'rows'}",
    ),
    "an adder that throws": (
        lambda shop: shop.run(shop.orders().group_by("customer", name="by").aggregate(0.0, added, added)),
        "query by failed: by-aggregate, bucket 0: value of group c1: adder: ZeroDivisionError: float division by zero "
        "(test_mistakes.py, line N, in added: return total / (row.amount - 5))\n"
        f"where: batch 0 of checkpoint FOLDER/ck\nwhat to do: mend what the first line names, and {AGAIN}",
    ),
    "an expression that throws": (
        lambda shop: shop.run(shop.orders(**FAIL).map_values("1 / (amount - 5) as x", name="x")),
        "query x failed: map_values of orders, key o1: ZeroDivisionError: division by zero; use try_divide or nullif\n"
        f"where: batch 0 of checkpoint FOLDER/ck\n{ASIDE % 'rows'}",
    ),
    "a line that is no JSON": (
        bad_line,
        "query joined failed: table orders: FOLDER/orders/2.json, line N: not JSON that fits "
        'struct<id:string,customer:string,amount:bigint,lsn:bigint>: {"id":\n'
        f"where: batch 0 of checkpoint FOLDER/ck\n{ASIDE % 'lines'}",
    ),
    "a sink that throws": (
        lambda shop: shop.joined().to(FullDisk(), checkpoint=shop.folder / "ck", **NOW).awaitTermination(),
        "query joined failed: sink disk: OSError: [Errno 28] No space left on device\n"
        "where: batch 0 of checkpoint FOLDER/ck; test_mistakes.py, line N, in write: "
        'raise OSError(28, "No space left on device")\n'
        f"what to do: make room on that disk, and {AGAIN}",
    ),
    "a worker that is killed": (
        lambda shop: shop.run(shop.joined(killed)),
        "query joined failed: Python worker exited unexpectedly (crashed). Consider setting "
        "'spark.sql.execution.pyspark.udf.faulthandler.enabled' or'spark.python.worker.faulthandler.enabled' configuration to "
        "'true' for the better Python traceback.\n"
        "where: batch 0 of checkpoint FOLDER/ck\n"
        "what to do: give the session more memory (spark.driver.memory, spark.executor.memory, for Python "
        f"spark.executor.memoryOverhead), and {AGAIN}; limits such as maxOffsetsPerTrigger hold from the batch after it",
    ),
    "state that is damaged": (
        damaged,
        "query joined failed: checkpoint FOLDER/ck is damaged, its state cannot be read (…)\n"
        "where: batch 1 of checkpoint FOLDER/ck\n"
        "what to do: restore it from a backup (to the same path), or start with a new checkpoint and an empty target, and "
        "replay the sources",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_message(shop: Shop, mistake: str) -> None:
    make, says = MISTAKES[mistake]
    with pytest.raises(FkJoinError) as found:
        make(shop)
    said = str(found.value).replace(str(shop.folder), "FOLDER")
    said = re.sub(r"(line|was|tried|in) \d+", r"\1 N", re.sub(r"\(ChecksumException: .*\)", "(…)", said))
    assert said == says
    if isinstance(found.value, QueryError):
        assert isinstance(found.value, StreamingQueryException), "users may catch that"
        assert "=== Streaming Query ===" in found.value.details


def test_what_is_gone_can_be_made_again_or_another_place_be_given(shop: Shop) -> None:
    """The ways out of messages about folders, and about a session, whose context is put back here."""
    place = shop.link_to_nothing().name
    with pytest.raises(FkJoinError, match="make that folder, or give another place$"):
        shop.run(shop.orders(), to=place)
    shop.run(shop.orders(), to="another")
    (shop.folder / "gone").mkdir()
    shop.run(shop.orders(), to=place, checkpoint="of-the-link")
    assert list((shop.folder / "gone").glob("batch=*"))
    with pytest.raises(FkJoinError, match="make a new one"):
        stopped(shop)
    shop.run(shop.orders(), to="third", checkpoint="third-ck")


def test_what_spark_refuses_has_a_way_out_that_is_one(shop: Shop) -> None:
    """Places of file systems that the session does not have, a sink and a setting that there are not, a file that is none."""
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

    with pytest.raises(FkJoinError, match=r"own: the query does not start: Failed to find the data source: jsn\. .* mended$"):
        start("jsn")
    start("json").awaitTermination()

    with pytest.raises(SessionError, match=r"^settings: Spark refuses one: The value 'many' in the config .*; change it, or"):
        _classic({PARTITIONS: "many"})
    assert _classic({PARTITIONS: shop.spark.conf.get(PARTITIONS) or ""}) is shop.spark

    pq = shop.folder / "pq"
    shop.spark.range(3).selectExpr("id", "id as lsn").coalesce(1).write.parquet(str(pq))
    table = Table.from_files(shop.spark, pq, key="id", version="lsn", format="parquet")
    bad = pq / "z.parquet"
    for number in range(2):
        bad.write_bytes(b"PAR1 is not all of it")
        with pytest.raises(QueryError, match=rf"what to do: put a whole file in place of file://{bad}, under its name, and "):
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
