"""Batches that are written once while a real PostgreSQL goes away, restarts or ends a session for others."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from integration.machine import until
from integration.postgres import NUMBERS, batch, execute, gone, select, sink, stopped
from tests.support.batch_ids import batch_id


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of fkjoin by now."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("fkjoin")]


@pytest.fixture
def few(dsn: str) -> Iterator[str]:
    """The address of a role that may be taken something."""
    execute(dsn, "drop role if exists few", "create role few login", "grant all on schema shop to few")
    yield make_conninfo(dsn, user="few")
    execute(dsn, "drop owned by few", "drop role few")


FAILS_ONCE = """
create sequence shop.tries;
create function shop.fail() returns trigger language plpgsql as
$$ begin if nextval('shop.tries') = 1 then {}; end if; return new; end $$;
create trigger failing before insert on shop.it for each row execute function shop.fail()
"""
"""A trigger that fails once: its sequence keeps its count when a transaction is rolled back."""


CODES = ("40001", "40P01", "53200", "55P03", "25006")
"""Serialization, a deadlock, no memory, a lock, a standby."""

FAILURES = {code: f"raise exception '{code}' using errcode = '{code}'" for code in CODES}
TERMINATED = "terminating connection due to administrator command"
FAILURES[TERMINATED] = "perform pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("says", FAILURES)
def test_what_passes_is_repeated(dsn: str, caplog: pytest.LogCaptureFixture, says: str) -> None:
    made = sink(dsn)
    execute(dsn, FAILS_ONCE.format(FAILURES[says]))
    made.apply(batch_id(0), batch(a=1, b=2), gone())
    assert select(dsn) == [("a", 1), ("b", 2)]
    (line,) = lines(caplog)
    assert line.startswith(f"postgres shop.it: {says}")
    assert line.endswith("s, then ever more rarely, for up to 60 s")


def test_a_connection_that_is_lost_after_the_commit_counts_once(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """The answer to the commit is lost, so the batch is tried again and found to be in."""
    made = sink(dsn)
    execute(dsn, FAILS_ONCE.format("perform 1"))
    commit = psycopg.Connection.commit

    def committed(connection: psycopg.Connection[Any]) -> None:
        patch.undo()
        commit(connection)
        raise psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", committed)
        made.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn) == [("a", 1)]
    assert select(dsn, "select last_value from shop.tries") == [(1,)]
    assert len(lines(caplog)) == 1


def test_a_server_that_restarts_is_waited_for(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    made = sink(dsn)
    made.apply(batch_id(0), batch(a=1), gone())
    writing = threading.Thread(target=made.apply, args=(batch_id(1), batch(a=2), gone()))
    with stopped(dsn):
        writing.start()
        until("a warning", lambda: lines(caplog))
    writing.join(60)
    assert select(dsn) == [("a", 2)]
    assert "connection" in lines(caplog)[0]


def test_when_the_time_is_over_the_query_stops_and_says_how_long_it_tried(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    made = sink(dsn, retry_s=0.5)
    execute(dsn, FAILS_ONCE.format("raise exception 'no memory' using errcode = '53200'").replace("= 1 then", "> 0 then"))
    with pytest.raises(FkJoinError) as caught:
        made.apply(batch_id(0), batch(a=1), gone())
    assert len(lines(caplog)) == 1, "the first repetition is said"
    says = r"postgres shop\.it: no memory \(tried (\d+) times in [\d.]+ s, retry_s = 0\.5\)\. Start the query again when the"
    tried = re.match(says, str(caught.value))
    assert tried
    assert int(tried[1]) > 2
    execute(dsn, "drop trigger failing on shop.it")
    made.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn) == [("a", 1)]


MISTAKES = {
    'relation "shop.it" does not exist': ("drop table shop.it", None),
    'column "n" does not exist': ("alter table shop.it rename n to m", "alter table shop.it rename m to n"),
    "permission denied for table it": ("revoke insert on shop.it from few", "grant insert on shop.it to few"),
    'role "few" is not permitted to log in': ("alter role few nologin", "alter role few login"),
    'role "few" does not exist': ("alter role few rename to former", "alter role former rename to few"),
}


@pytest.mark.parametrize("says", MISTAKES)
def test_what_no_repetition_mends_stops_the_query(dsn: str, few: str, caplog: pytest.LogCaptureFixture, says: str) -> None:
    statement, undo = MISTAKES[says]
    made = sink(few)
    execute(dsn, statement)
    with pytest.raises(FkJoinError, match=r"table shop\.it cannot be written to: .*" + says) as caught:
        made.apply(batch_id(0), batch(a=1), gone())
    assert "Fix that and start the query again: it continues with this batch" in str(caught.value)
    assert lines(caplog) == []
    if undo is not None:
        execute(dsn, undo)
        made.apply(batch_id(0), batch(a=1), gone())
        assert select(dsn) == [("a", 1)]


def test_a_table_is_prepared_through_an_outage_too(dsn: str, few: str, caplog: pytest.LogCaptureFixture) -> None:
    """One of a job's queries may begin while the others run."""
    execute(dsn, "alter role few connection limit 1")
    made = Postgres("shop.it", few)
    preparing = threading.Thread(target=made.prepare, args=(NUMBERS, ("id",)))
    with psycopg.connect(few):
        preparing.start()
        until("a warning", lambda: lines(caplog))
    preparing.join(30)
    assert 'too many connections for role "few"' in lines(caplog)[0]
    assert select(dsn) == []
