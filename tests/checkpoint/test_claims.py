"""The claim that a query holds on its checkpoint, whichever call starts it: from before its start until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import QueryError, Table, TopologyError
from fkjoin.checkpoint import claim as of_claims
from fkjoin.checkpoint.claim_files import CLAIM_FILE
from fkjoin.errors import FkJoinError
from fkjoin.sinks import Parquet
from fkjoin.spark.trigger import interval_of
from tests.support.orders import History, tables
from tests.support.sessions import small
from tests.support.sinks import Memory


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Table:
    small(spark, tmp_path)
    History(tmp_path).write(10)
    return tables(spark, tmp_path)[0]


def waiting() -> list[threading.Thread]:
    """Threads that wait for queries to end, to give up their claims."""
    return [thread for thread in threading.enumerate() if thread.name == "fkjoin-claim-of-query"]


def ended() -> None:
    for thread in waiting():
        thread.join(60)
    assert waiting() == []


def test_every_call_refuses_a_checkpoint_of_others(orders: Table, tmp_path: Path, another: subprocess.Popen[bytes]) -> None:
    (tmp_path / "ck").mkdir()
    owner = json.dumps({"host": socket.gethostname(), "process": another.pid})
    claim = tmp_path / "ck" / f"{CLAIM_FILE}.1"
    claim.write_text(owner)
    about: Any = {"checkpoint": tmp_path / "ck", "trigger": {"availableNow": True}}
    calls: list[Callable[[], Any]] = [
        lambda: orders.to_parquet(tmp_path / "out", **about),
        lambda: orders.to(Parquet(tmp_path / "out"), **about),
        lambda: orders.to_kafka("topic", "localhost:1", **about),
    ]
    for call in calls:
        with pytest.raises(FkJoinError, match=f"in use by process {another.pid} on .*: stop that"):
            call()
    assert claim.read_text() == owner
    assert not (tmp_path / "out").exists()


def test_a_query_holds_its_claim_until_it_is_stopped_and_may_be_started_again_at_once(orders: Table, tmp_path: Path) -> None:
    def claim() -> str:
        (file,) = (tmp_path / "ck").glob(f"{CLAIM_FILE}*")
        return file.read_text()

    for _ in range(2):
        query = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck")
        owner = json.loads(claim())
        assert (owner["host"], owner["process"]) == (socket.gethostname(), os.getpid())
        query.processAllAvailable()
        query.stop()
    (first, *_) = [*waiting(), None]
    again = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck")
    if first is not None:
        first.join(60)
    assert claim(), "the one that ended gives up its own hold only"
    again.stop()
    ended()
    assert claim() == ""


def test_a_query_that_fails_or_does_not_start_gives_up_its_claim(orders: Table, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="disk is full"):
        orders.to(Memory("disk", {0}), checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
    ended()
    assert (tmp_path / "ck" / f"{CLAIM_FILE}.1").read_text() == ""
    with pytest.raises(TopologyError, match="options: they are for an object store"):
        orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "new", options={"region": "x"})
    assert not (tmp_path / "new").exists()


def test_a_second_query_of_a_name_and_a_checkpoint_without_a_name_are_refused(orders: Table, tmp_path: Path) -> None:
    """A notebook's cell that is run twice does this.  The first query goes on, and each way out that is named is tried."""
    first = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck")
    with pytest.raises(FkJoinError, match=r"^query_name: a query called orders runs in this session already: stop"):
        orders.to_parquet(tmp_path / "out2", checkpoint=tmp_path / "ck2")
    in_use = "in use by query orders of this session: stop that one first, or give another check"
    with pytest.raises(FkJoinError, match=in_use):
        orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert first.isActive
    assert (tmp_path / "ck" / f"{CLAIM_FILE}.1").read_text(), "its claim stays"
    another = orders.to_parquet(tmp_path / "out2", checkpoint=tmp_path / "ck2", query_name="another", trigger="90 seconds")
    assert (interval_of(first), interval_of(another)) == (0.0, 90.0), "the page asks Spark for it"
    another.stop()
    second = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", query_name="second")
    with contextlib.suppress(StreamingQueryException):  # Spark stops the first one
        first.awaitTermination()
    assert second.isActive
    assert (tmp_path / "ck" / f"{CLAIM_FILE}.1").read_text(), "the claim is the second one's"
    second.stop()
    ended()
    assert (tmp_path / "ck" / f"{CLAIM_FILE}.1").read_text() == ""
    orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck").stop()
    ended()
    for call in (orders.to_parquet, lambda path, **more: orders.to(Parquet(path), **more)):
        with pytest.raises(TopologyError, match="^checkpoint: '' is not a folder of a query's own; give one"):
            call(tmp_path / "other", checkpoint="")


def test_a_query_whose_claim_was_taken_over_stops(orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver finds this after it stood still, or after it could not reach the storage for a minute."""
    monkeypatch.setattr(of_claims, "RENEWED_EVERY_S", 0.1)
    query = orders.to_parquet(tmp_path / "out", checkpoint=tmp_path / "ck", query_name="slow")
    (tmp_path / "ck" / f"{CLAIM_FILE}.2").write_text('{"host": "elsewhere", "process": 7}')
    says = (
        r"^query slow failed: process 7 on elsewhere has taken over the claim on checkpoint .*ck\n"
        r"where: (batch 0 of )?checkpoint .*ck\nwhat to do: let only one process use the checkpoint: "
    )
    with pytest.raises(QueryError, match=says):
        query.awaitTermination()
    assert not query.isActive
    assert isinstance(query.exception(), QueryError)
    ended()
    assert (tmp_path / "ck" / f"{CLAIM_FILE}.2").read_text(), "it is the other's"
