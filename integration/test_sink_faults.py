"""Sinks of each kind: they have the batch join after restores, second drivers and outages at each moment of a write."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fkjoin.checkpoint import claim
from fkjoin.checkpoint.claim_files import CLAIM_FILE
from fkjoin.errors import FkJoinError
from fkjoin.kafka import admin
from integration.faults.sinks import AFTER, AT_COMMIT, BEFORE, KINDS, Writing, command, moments
from integration.machine import Process
from integration.postgres import it_waits, kept_rows, select, stopped
from tests.support.orders import History, batch_join
from tests.support.queries import table_of
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.sinks import Backup, there

RESTORE = "a restore to a backup taken"
SECOND = "a second driver, started"
OUTAGE = "an outage that begins"
KILLED = "a driver killed"
BOTH = "a restore and a second driver, started"

NO_POINT: dict[tuple[str, ...], str] = {
    (RESTORE, "topic"): "a topic is never restored: docs/upgrading.md says what a table made from it may have",
    (BOTH, "topic"): "as of a restore alone",
    (BOTH, AT_COMMIT, "postgres"): "the table cannot be restored while the first driver's transaction is open",
    (AT_COMMIT, "topic"): "each record can be seen as soon as it is there",
}
"""Reasons for which a kind of sink has no point for a fault, or at a moment."""

EVERY = [
    (fault, moment, kind)
    for fault, moment, kind in product((RESTORE, SECOND, OUTAGE, KILLED, BOTH), (BEFORE, AT_COMMIT, AFTER), KINDS)
    if not {(fault, kind), (moment, kind), (fault, moment, kind)} & NO_POINT.keys()
]

SAMPLE = [(KILLED, AT_COMMIT, "postgres")]
"""``make faults`` tries ``EVERY`` one.

In ``make test``, backups taken between batches: tests/sinks/test_restored_checkpoint.py; several attempts at a time, and a
driver that stands still: tests/sinks/test_parquet_attempts.py; a claim that lapses:
tests/checkpoint/test_claims_and_clocks.py; outages: integration/test_postgres.py, tests/sinks/test_parquet_attempts.py.
"""

NOW: Any = {"trigger": {"availableNow": True}}


At = Callable[[str, Callable[[], Any]], None]
"""Sets a function that is called at the next moment of a name, in a batch's write here."""


class Place:
    """A sink, what has been written to it, and how it goes away."""

    def __init__(self, kind: str, spark: SparkSession, folder: Path, request: pytest.FixtureRequest) -> None:
        self.kind, self.spark, self.folder, self.checkpoint = kind, spark, folder, folder / "ck"
        self.fixture = request.getfixturevalue
        self.broker = self.fixture("broker") if kind == "topic" else None
        self.dsn = self.fixture("dsn") if kind == "postgres" else ""
        self.store = self.fixture("object_store") if kind == "objects" else None
        address = self.broker.bootstrap if self.broker else str(self.store.port) if self.store else self.dsn
        self.writing = Writing(kind, str(folder), address)
        if self.broker:
            self.broker.create(self.writing.topic, partitions=2)
        self.history = History(folder)
        self.history.write(60)

    def run(self) -> None:
        self.writing.start(self.spark, **NOW).awaitTermination()

    def go_on(self) -> None:
        """Have another batch, and assert that all is right."""
        self.history.write(60)
        self.run()
        assert self.is_right()

    def is_right(self) -> bool:
        """Tell whether the sink has the batch join; fail if a change is there twice."""
        wanted = {key: tuple(row.values()) for key, row in batch_join(self.history).items()}
        kinds = ("parquet", "delta") if self.kind == "several" else (self.kind,)
        return all(self._rows(kind) == wanted for kind in kinds)

    def _rows(self, kind: str) -> dict[str, Any]:
        if kind == "postgres":
            return kept_rows(self.dsn) if select(self.dsn, "select to_regclass('shop.it')") != [(None,)] else {}
        if kind == "objects":
            table = table_of(self.store.rows(self.writing.topic), "order_id")
            rows = {key: row for (key,), row in table.items()}
        elif kind == "topic":
            records = self.broker.table(self.writing.topic)
            rows = {key.decode(): json.loads(value) for key, value in records.items()}
        else:
            begun = {"parquet": "batch=*", "delta": "_delta_log/*.json", "iceberg": "lake/shop/it/metadata/*"}[kind]
            is_begun = list((self.folder / kind).glob(begun))
            rows = there(self.spark, self.folder, kind) if is_begun else {}
        return {key: (row["items"], row["region"]) for key, row in rows.items()}

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """Take away the sink's server, or the disk of its folder."""
        if self.kind == "postgres":
            with stopped(self.dsn):
                yield
        elif self.broker or self.store:
            with (self.broker or self.store).gone():
                yield
        else:
            place, away = self.writing.place, self.folder / "away"
            place.rename(away)
            place.touch()
            yield
            place.unlink()
            away.rename(place)

    @contextlib.contextmanager
    def driver(self) -> Iterator[Process]:
        """A driver of its own process that has written the first batch; it is killed in the end."""
        first = Process(self.folder, command(self.writing, self.fixture("connector")))
        try:
            first.wait_for("the first batch", self.is_right)
            yield first
        finally:
            first.kill()

    def stand_still(self, first: Process, moment: str) -> None:
        """Let the driver stop at the moment of its next batch."""
        first.arm(f"sink write|{moment}|driver that stands still")
        self.history.write(60)
        first.wait_for("it stands still", first.stands_still, pause_s=0.05)

    def let_claims_lapse(self) -> None:
        for held in self.checkpoint.glob(f"{CLAIM_FILE}*"):
            os.utime(held, (0, 0))
        self.fixture("monkeypatch").setattr(claim, "LAPSES_AFTER_S", 1.0)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    waiting: dict[str, Callable[[], Any]] = {}
    for place in moments(lambda moment: waiting.pop(moment, lambda: None)()):
        monkeypatch.setattr(*place)
    return waiting.__setitem__


def restored(place: Place, moment: str, at: At) -> None:
    place.run()
    place.history.write(60)
    backups: list[Backup] = []
    at(moment, lambda: backups.append(Backup(place.checkpoint)))
    place.run()
    place.history.write(60)
    place.run()
    (backup,) = backups
    backup.restore()
    place.history.write(60)
    with pytest.raises(FkJoinError, match=r"ck is at batch [01], and .* is ahead, at batch 2: the checkpoint was restored"):
        place.run()
    assert place.writing.restore(place.spark)
    place.run()
    assert place.is_right()


class Back(logging.Handler):
    """A handler that ends an outage once the log ``fkjoin`` says that something is tried again."""

    def __init__(self, outage: contextlib.ExitStack) -> None:
        super().__init__()
        self.outage = outage

    def emit(self, record: logging.LogRecord) -> None:
        self.outage.close()


def gone(place: Place, moment: str, at: At) -> None:
    """Take the sink away: the query waits for it, or stops and goes on with the batch when it is started again."""
    place.run()
    place.history.write(60)
    begun: list[str] = []
    with contextlib.ExitStack() as outage:

        def begin() -> None:
            outage.enter_context(place.gone())
            begun.append(moment)

        at(moment, begin)
        back, log = Back(outage), logging.getLogger("fkjoin")
        log.addHandler(back)
        outage.callback(log.removeHandler, back)
        noticed = False
        for _ in range(2):  # an outage after the write is noticed by the batch that comes next
            with contextlib.suppress(FkJoinError, PySparkException, Py4JJavaError, OSError, DeltaError):
                place.run()
                noticed |= back not in log.handlers
                place.history.write(60)
                continue
            noticed = True
            break
        assert begun
        assert noticed, "nobody has seen the outage: the test tests nothing"
    place.run()
    assert place.is_right()


def followed(place: Place, moment: str, _: At) -> None:
    """Stop the first driver until its claim lapses, and let it go on when the second has done its batch, and others."""
    with place.driver() as first:
        place.stand_still(first, moment)
        with pytest.raises(FkJoinError, match="ck is in use by process"):
            place.run()
        place.let_claims_lapse()
        second = place.writing.start(place.spark, **NOW)
        while second.isActive and not (place.dsn and it_waits(place.dsn)):
            time.sleep(0.05)
        if not second.isActive and place.kind != "topic":
            second.awaitTermination()
            place.go_on()
        first.go_on()
        with contextlib.suppress(PySparkException):  # Spark lets one of the two end the batch
            second.awaitTermination()
            first.wait_for_its_end()
    place.go_on()


def killed(place: Place, moment: str, _: At) -> None:
    with place.driver() as first:
        first.arm(f"sink write|{moment}|driver")
        place.history.write(60)
        first.wait_for_its_end()
    place.go_on()


def restored_under(place: Place, moment: str, _: At) -> None:
    """Stop the first driver, run the second on the backup, and let the first go on with a number that the sink lacks."""
    with place.driver() as first:
        first_batch = place.checkpoint / "commits" / "0"
        first.wait_for("it is done", first_batch.exists)  # the query does nothing during the backup
        backup = Backup(place.checkpoint)
        place.history.write(60)
        first.wait_for("the second batch", place.is_right)
        place.stand_still(first, moment)
        backup.restore()
        place.let_claims_lapse()
        assert place.writing.restore(place.spark)
        place.run()
        assert place.is_right()
        first.go_on()
        first.wait_for_its_end()
        assert place.is_right()
    place.go_on()


FAULTS = {RESTORE: restored, SECOND: followed, OUTAGE: gone, KILLED: killed, BOTH: restored_under}


@pytest.mark.faults
@pytest.mark.parametrize(("fault", "moment", "kind"), sampled(EVERY, SAMPLE), ids=lambda word: word.replace(" ", "-"))
def test_a_sink_is_the_batch_join_after(
    fault: str, moment: str, kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, at: At
) -> None:
    small(spark, tmp_path)
    request.getfixturevalue("monkeypatch").setattr(admin, "_TIMEOUT_S", 3)
    FAULTS[fault](Place(kind, spark, tmp_path, request), moment, at)
