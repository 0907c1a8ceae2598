"""Batches that are written once while a real PostgreSQL goes away, restarts or ends a session for others."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.postgres import NUMBERS, batch, gone, it_waits, select, stopped
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


class Writing(threading.Thread):
    """A batch that is being written."""

    def __init__(self, sink: Postgres, number: int, **rows: int) -> None:
        super().__init__()
        self._write: Callable[[], None] = lambda: sink.apply(batch_id(number), batch(**rows), gone())
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self.error = error

    def done(self) -> None:
        self.join(60)
        assert not self.is_alive()
        assert self.error is None, self.error


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]


def until_it_waits(dsn: str) -> None:
    """Wait until a session waits for a lock of another."""
    deadline = time.monotonic() + 30
    while not it_waits(dsn):
        assert time.monotonic() < deadline


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


def test_a_deadlock_is_repeated(dsn: str, log: Log) -> None:
    made = sink(dsn)
    made.apply(batch_id(0), batch(a=1, b=1), gone())
    with psycopg.connect(dsn) as other:
        other.execute("set deadlock_timeout = '1min'")  # so that it is the batch that is given up
        other.execute("update shop.it set n = 7 where id = 'b'")
        writing = Writing(made, 1, a=2, b=2)
        until_it_waits(dsn)
        other.execute("update shop.it set n = 7 where id = 'a'")
    writing.done()
    assert select(dsn, "select * from shop.it order by id") == [("a", 2), ("b", 2)]
    assert log.lines[0].startswith("postgres shop.it: deadlock detected; tried again in ")


def test_a_serialization_failure_is_repeated(dsn: str, log: Log) -> None:
    made = sink(make_conninfo(dsn, options="-c default_transaction_isolation=serializable"))
    made.apply(batch_id(0), batch(a=1), gone())
    with psycopg.connect(dsn) as other:
        other.execute("update shop.it set n = 7 where id = 'a'")
        writing = Writing(made, 1, a=2)
        until_it_waits(dsn)
    writing.done()
    assert select(dsn, "select * from shop.it") == [("a", 2)]
    assert log.lines[0].startswith("postgres shop.it: could not serialize access due to concurrent update; tried")


def test_a_server_that_restarts_is_waited_for(dsn: str, log: Log) -> None:
    made = sink(dsn)
    made.apply(batch_id(0), batch(a=1), gone())
    with stopped(dsn):
        writing = Writing(made, 1, a=2)
        assert log.said.wait(30)
    writing.done()
    assert select(dsn, "select * from shop.it") == [("a", 2)]
    assert "connection" in log.lines[0]


def connected(address: str) -> psycopg.Connection[Any]:
    """A connection, once the server has room: one that was closed may count for a moment."""
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(address)
        time.sleep(0.05)


def test_too_many_connections_are_waited_for(dsn: str, log: Log) -> None:
    run(dsn, "drop role if exists few", "create role few login connection limit 1", "grant all on schema shop to few")
    try:
        made = sink(make_conninfo(dsn, user="few"))
        with connected(make_conninfo(dsn, user="few")):
            writing = Writing(made, 0, a=1)
            assert log.said.wait(30)
        writing.done()
        assert select(dsn, "select * from shop.it") == [("a", 1)]
        assert 'too many connections for role "few"' in log.lines[0]
    finally:
        run(dsn, "drop owned by few", "drop role few")


def test_when_the_time_is_over_the_query_stops_and_says_how_long_it_tried(dsn: str, log: Log) -> None:
    made = sink(dsn, retry_s=0.5)
    run(dsn, FAILS_ONCE.format("raise exception 'no memory' using errcode = '53200'").replace("= 1 then", "> 0 then"))
    with pytest.raises(FkJoinError) as caught:
        made.apply(batch_id(0), batch(a=1), gone())
    assert len(log.lines) == 1, "the first repetition is said"
    tries = int(str(caught.value).partition("tried ")[2].split()[0])
    assert tries > 2
    assert str(caught.value) == (
        f"postgres shop.it: no memory (tried {tries} times in {_seconds(str(caught.value))} s, retry_s = 0.5). Start the query "
        "again when the outage is over: it goes on with this batch; or let it try for longer, with a greater retry_s"
    )
    assert tries > 1
    run(dsn, "drop trigger failing on shop.it")
    made.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn, "select * from shop.it") == [("a", 1)]


def _seconds(text: str) -> str:
    return text.split(" times in ")[1].split(" s,")[0]


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
    dsn: str, log: Log, statement: str, undo: str | None, says: str
) -> None:
    run(dsn, "drop role if exists few", "create role few login", "grant all on schema shop to few")
    try:
        made = sink(make_conninfo(dsn, user="few"))
        run(dsn, statement)
        with pytest.raises(FkJoinError, match=r"table shop\.it cannot be written to: .*" + says) as caught:
            made.apply(batch_id(0), batch(a=1), gone())
        assert "Mend that and start the query again: it goes on with this batch" in str(caught.value)
        assert log.lines == []
        if undo is not None:
            run(dsn, undo)
            made.apply(batch_id(0), batch(a=1), gone())
            assert select(dsn, "select * from shop.it") == [("a", 1)]
    finally:
        run(dsn, "drop owned by few", "drop role few")


def test_a_table_is_prepared_through_an_outage_too(dsn: str, log: Log) -> None:
    """One of a job's queries may begin while the others run."""
    run(dsn, "drop role if exists few", "create role few login connection limit 1", "grant all on schema shop to few")
    few = make_conninfo(dsn, user="few")
    try:
        made = Postgres("shop.it", few)
        preparing = threading.Thread(target=made.prepare, args=(NUMBERS, ("id",)))
        with psycopg.connect(few):
            preparing.start()
            assert log.said.wait(30)
        preparing.join(30)
        assert select(dsn, "select * from shop.it") == []
    finally:
        run(dsn, "drop owned by few", "drop role few")
