"""Batches that are written once while a real PostgreSQL goes away, restarts or ends a session for others."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import NUMBERS, batch, gone, select, stopped
from tests.support.batch_ids import batch_id


class Log(logging.Handler):
    """The warnings of ``fkjoin``, and an event for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.said.set()


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger("fkjoin").addHandler(handler)
    yield handler
    logging.getLogger("fkjoin").removeHandler(handler)


def sink(dsn: str, retry_s: float = 60) -> Postgres:
    made = Postgres("shop.it", dsn, retry_s=retry_s)
    made.prepare(NUMBERS, ("id",))
    return made


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]


@pytest.fixture
def few(dsn: str) -> Iterator[str]:
    """The address of a role that may be taken something."""
    run(dsn, "drop role if exists few", "create role few login", "grant all on schema shop to few")
    yield make_conninfo(dsn, user="few")
    run(dsn, "drop owned by few", "drop role few")


FAILS_ONCE = """
create sequence shop.tries;
create function shop.fail() returns trigger language plpgsql as
$$ begin if nextval('shop.tries') = 1 then {}; end if; return new; end $$;
create trigger failing before insert on shop.it for each row execute function shop.fail()
"""
"""A trigger that fails once: its sequence keeps its count when a transaction is rolled back."""


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ("perform pg_terminate_backend(pg_backend_pid())", "terminating connection due to administrator command"),
        ("raise exception 'serialization' using errcode = '40001'", "serialization"),
        ("raise exception 'a deadlock' using errcode = '40P01'", "a deadlock"),
        ("raise exception 'no memory' using errcode = '53200'", "no memory"),
        ("raise exception 'a lock' using errcode = '55P03'", "a lock"),
        ("raise exception 'a standby' using errcode = '25006'", "a standby"),
    ],
)
def test_what_passes_is_repeated(dsn: str, log: Log, failure: str, says: str) -> None:
    made = sink(dsn)
    run(dsn, FAILS_ONCE.format(failure))
    made.apply(batch_id(0), batch(a=1, b=2), gone())
    assert select(dsn, "select * from shop.it order by id") == [("a", 1), ("b", 2)]
    (line,) = log.lines
    assert line.startswith(f"postgres shop.it: {says}")
    assert line.endswith("s, then ever more rarely, for up to 60 s")


def test_a_connection_that_is_lost_after_the_commit_counts_once(dsn: str, log: Log) -> None:
    """The answer to the commit is lost, so the batch is tried again and found to be in."""
    made = sink(dsn)
    run(dsn, FAILS_ONCE.format("perform 1"))
    commit = psycopg.Connection.commit
    lost: list[bool] = []

    def committed(connection: psycopg.Connection[Any]) -> None:
        commit(connection)
        if not lost:
            lost.append(True)
            raise psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", committed)
        made.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn, "select * from shop.it") == [("a", 1)]
    assert select(dsn, "select last_value from shop.tries") == [(1,)]
    assert len(log.lines) == 1


def test_a_server_that_restarts_is_waited_for(dsn: str, log: Log) -> None:
    made = sink(dsn)
    made.apply(batch_id(0), batch(a=1), gone())
    writing = threading.Thread(target=made.apply, args=(batch_id(1), batch(a=2), gone()))
    with stopped(dsn):
        writing.start()
        assert log.said.wait(30)
    writing.join(60)
    assert select(dsn, "select * from shop.it") == [("a", 2)]
    assert "connection" in log.lines[0]


def test_when_the_time_is_over_the_query_stops_and_says_how_long_it_tried(dsn: str, log: Log) -> None:
    made = sink(dsn, retry_s=0.5)
    run(dsn, FAILS_ONCE.format("raise exception 'no memory' using errcode = '53200'").replace("= 1 then", "> 0 then"))
    with pytest.raises(FkJoinError) as caught:
        made.apply(batch_id(0), batch(a=1), gone())
    assert len(log.lines) == 1, "the first repetition is said"
    says = r"postgres shop\.it: no memory \(tried (\d+) times in [\d.]+ s, retry_s = 0\.5\)\. Start the query again when the"
    tried = re.match(says, str(caught.value))
    assert tried
    assert int(tried[1]) > 2
    run(dsn, "drop trigger failing on shop.it")
    made.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn, "select * from shop.it") == [("a", 1)]


@pytest.mark.parametrize(
    ("statement", "undo", "says"),
    [
        ("drop table shop.it", None, 'relation "shop.it" does not exist'),
        ("alter table shop.it rename n to m", "alter table shop.it rename m to n", 'column "n" does not exist'),
        ("revoke insert on shop.it from few", "grant insert on shop.it to few", "permission denied for table it"),
        ("alter role few nologin", "alter role few login", 'role "few" is not permitted to log in'),
        ("alter role few rename to former", "alter role former rename to few", 'role "few" does not exist'),
    ],
)
def test_what_no_repetition_mends_stops_the_query_at_once(
    dsn: str, few: str, log: Log, statement: str, undo: str | None, says: str
) -> None:
    made = sink(few)
    run(dsn, statement)
    with pytest.raises(FkJoinError, match=r"table shop\.it cannot be written to: .*" + says) as caught:
        made.apply(batch_id(0), batch(a=1), gone())
    assert "Fix that and start the query again: it continues with this batch" in str(caught.value)
    assert log.lines == []
    if undo is not None:
        run(dsn, undo)
        made.apply(batch_id(0), batch(a=1), gone())
        assert select(dsn, "select * from shop.it") == [("a", 1)]


def test_a_table_is_prepared_through_an_outage_too(dsn: str, few: str, log: Log) -> None:
    """One of a job's queries may begin while the others run."""
    run(dsn, "alter role few connection limit 1")
    made = Postgres("shop.it", few)
    preparing = threading.Thread(target=made.prepare, args=(NUMBERS, ("id",)))
    with psycopg.connect(few):
        preparing.start()
        assert log.said.wait(30)
    preparing.join(30)
    assert 'too many connections for role "few"' in log.lines[0]
    assert select(dsn, "select * from shop.it") == []
