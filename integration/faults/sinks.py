"""A table written to a sink of any kind, whose moments may be heard of: ``python -m integration.faults.sinks ABOUT.json``.

The table is a materialized join of the growing logs of ``tests.support.orders.History``.  As a program it is a driver
that may be told to crash, or to stand still, at a moment of a batch's write.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltalake.table import TableMerger
from psycopg import Connection
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import Table, session
from fkjoin.checkpoint import claim
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS, SHORT_LIVED
from fkjoin.sinks import Delta, Iceberg, Kafka, Parquet, Postgres
from fkjoin.sinks.parquet_objects import BatchObjects
from fkjoin.storage.local_files import LocalFiles
from integration.faults.victims import DRIVER_FILE, crash_if_told
from tests.support.object_store import BUCKET, options_of
from tests.support.sessions import STAGE_PARTS
from tests.support.sinks import joined, lake

KINDS = ("parquet", "objects", "delta", "iceberg", "postgres", "topic", "several")
"""Kinds of sinks: ``objects`` is Parquet in an object store, and ``several`` Parquet and then Delta in one query.

A user's own function for ``foreachBatch``: integration/faults/driver.py.
"""

BEFORE, AT_COMMIT, AFTER = "before", "at the commit of", "after"
"""The moments of a batch's write.  At its commit all is ready, and no reader can see it.  With several sinks, the moment after
the first one's write is the moment before the second one's.
"""

TOPIC_OPTIONS = {"kafka.max.block.ms": "2000", "kafka.delivery.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
"""Options of a producer that waits some seconds for brokers, not two minutes."""


@dataclass(frozen=True)
class Writing:
    """A sink and its target; ``address``: of the database or the brokers, or the object store's port."""

    kind: str
    folder: str
    address: str = ""

    @property
    def place(self) -> Path:
        """The folder of a sink that writes to one; for several sinks, that of the last one."""
        return Path(self.folder) / ("delta" if self.kind == "several" else self.kind)

    @property
    def topic(self) -> str:
        return f"faults-{Path(self.folder).name}"

    def start(self, spark: SparkSession, **more: Any) -> StreamingQuery:
        """Start the query, or go on with it."""
        return self._table(spark).to(*self._sinks(), checkpoint=Path(self.folder) / "ck", **more)

    def restore(self, spark: SparkSession) -> list[str]:
        """Make the target what the checkpoint's state is."""
        return self._table(spark).restore(*self._sinks(), checkpoint=Path(self.folder) / "ck")

    def _table(self, spark: SparkSession) -> Table:
        return joined(spark, Path(self.folder)).materialize("kept")

    def _sinks(self) -> list[Any]:
        folder = Path(self.folder)
        made: dict[str, Callable[[], Any]] = {
            "parquet": lambda: Parquet(folder / "parquet"),
            "objects": lambda: Parquet(f"s3a://{BUCKET}/{self.topic}", options_of(int(self.address))),
            "delta": lambda: Delta(folder / "delta"),
            "iceberg": lambda: Iceberg("shop.it", options=lake(folder)),
            "postgres": lambda: Postgres("shop.it", self.address),
            "topic": lambda: Kafka(self.topic, self.address, options=TOPIC_OPTIONS),
        }
        kinds = ("parquet", "delta") if self.kind == "several" else (self.kind,)
        return [made[kind]() for kind in kinds]


def moments(told: Callable[[str], None]) -> list[tuple[Any, str, Any]]:
    """Return objects, their attributes and new values, by which ``told`` hears of the moments of each batch's write."""
    writes = False

    def around(function: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*given: Any) -> None:
            nonlocal writes
            told(BEFORE)
            writes = True
            try:
                function(*given)
            finally:
                writes = False
            told(AFTER)

        return wrapped

    def begins(begin: Callable[..., Any]) -> Callable[..., Any]:
        return lambda sink, table: around(begin(sink, table))

    def commits(function: Callable[..., Any], is_one: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            if writes and is_one(*given):
                told(AT_COMMIT)
            return function(*given)

        return wrapped

    return [
        *((kind, "begin", begins(kind.begin)) for kind in (Parquet, Kafka, Delta, Iceberg, Postgres)),
        (LocalFiles, "rename", commits(LocalFiles.rename, lambda _, path, *__: path.endswith("/ready"))),
        (BatchObjects, "_copy", commits(BatchObjects._copy)),
        (TableMerger, "execute", commits(TableMerger.execute)),
        (SqlCatalog, "commit_table", commits(SqlCatalog.commit_table)),
        (Connection, "commit", commits(Connection.commit)),
    ]


def main(about: Path) -> None:
    given = json.loads(about.read_text())
    writing = Writing(**given["writing"])
    claim.RENEWED_EVERY_S, claim.LAPSES_AFTER_S = 0.5, 1.0
    Path(os.environ["FKJOIN_FAULT"]).with_name(DRIVER_FILE).write_text(str(os.getpgid(0)))
    for place in moments(lambda moment: crash_if_told("sink write", moment)):
        setattr(*place)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.jars": given["jars"],
        PARTITIONS: str(STAGE_PARTS),
        BUCKETS: str(STAGE_PARTS),
        INDEX_DIR: f"{writing.folder}/index-of-driver",
    }
    spark = session("writer", master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    writing.start(spark, trigger={"processingTime": "100 milliseconds"}).awaitTermination()


def command(writing: Writing, jars: str) -> list[str]:
    """The command that runs this program for the writing."""
    about = Path(writing.folder) / "about.json"
    about.write_text(json.dumps({"writing": asdict(writing), "jars": jars}))
    return [sys.executable, "-m", "integration.faults.sinks", str(about)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
