"""Purging of internal topics beside a job: when it is done, and what is said when it fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.jobs import purging
from fkjoin.kafka import purging as of_kafka

STAGE: Any = object()


def test_an_interval_or_never() -> None:
    assert purging.interval_s("never") is None
    assert purging.interval_s("1 minute 30 seconds") == 90
    for text in ("always", "0 seconds", "10"):
        with pytest.raises(TopologyError, match=f"^purge: '{text}' is neither \"never\" nor an interval such as"):
            purging.interval_s(text)


def test_a_failure_is_said_once_until_a_purge_succeeds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [FkJoinError("refused\nmore"), FkJoinError("refused"), {}, ValueError("away"), FkJoinError("away")]
    said, taken, done = list[str](), list[int](), threading.Event()

    def purge_read(stages: Any, checkpoints: Any) -> Any:
        assert (stages, checkpoints) == ([STAGE], ["ck"])
        outcome = outcomes.pop(0)
        if not outcomes:
            done.set()
            done.wait()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(purging, "purge_read", purge_read)
    monkeypatch.setattr(purging, "internal_records", lambda stages: {"topic": len(taken)})
    with purging.purging([STAGE], ["ck"], 0.001, say=said.append, take=lambda records: taken.append(records["topic"])):
        assert done.wait(30)
    assert said == [f"internal topics are not purged: {why}; tried again every 0 s" for why in ("refused", "away")]
    assert taken[:5] == [0, 1, 2, 3, 4]
    for stages, every_s in ((list[Any](), 1.0), ([STAGE], None)):
        with purging.purging(stages, ["ck"], every_s, say=print, take=print):
            assert "fkjoin-purge" not in {thread.name for thread in threading.enumerate()}, "there is nothing to purge"


def test_nothing_is_purged_before_each_query_has_committed_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without a batch may be a reader that begins."""
    read: dict[str, Any] = {"rekey": {}, "resolve": {"topic": [{0: 7}]}, "new": None}
    purged = list[Any]()
    stage: Any = SimpleNamespace(spark=None)
    monkeypatch.setattr(of_kafka, "internal_connections", lambda stages: {"topic": None})
    monkeypatch.setattr(of_kafka, "committed_offsets", lambda spark, checkpoint, topics: read[checkpoint])
    monkeypatch.setattr(of_kafka, "purge", lambda stages, checkpoints: purged.append(checkpoints) or {"topic": {0: 7}})
    assert of_kafka.purge_read([stage], list(read)) == {}
    assert purged == []
    read["new"] = {"topic": [{0: 3}]}
    assert of_kafka.purge_read([stage], list(read)) == {"topic": {0: 7}}
    assert purged == [["resolve", "new"]], "rekey reads no internal topic"


def test_records_are_deleted_up_to_the_reader_that_is_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without an offset of a partition has read nothing of it."""
    read: dict[str, Any] = {"one": {"topic": [{0: 7, 1: 4}]}, "another": {"topic": [{0: 3}]}}
    deleted = list[Any]()
    stage: Any = SimpleNamespace(spark=None)
    connection = SimpleNamespace(bootstrap_servers="kafka:9092", options={"kafka.security.protocol": "SSL"})
    monkeypatch.setattr(of_kafka, "internal_connections", lambda stages: {"topic": connection})
    monkeypatch.setattr(of_kafka, "committed_offsets", lambda spark, checkpoint, topics: read[checkpoint])
    monkeypatch.setattr(of_kafka, "delete_records", lambda *arguments: deleted.append(arguments))
    assert of_kafka.purge([stage], list(read)) == {"topic": {0: 3, 1: 0}}
    assert deleted == [("topic", "kafka:9092", connection.options, {0: 3, 1: 0})]
