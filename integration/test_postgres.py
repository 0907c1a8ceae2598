"""PostgreSQL tables in a real server: what every sink has to do, attempts at a time, restores, and a server that goes away.

A checkpoint and a table that come apart: tests/sinks/test_restored_checkpoint.py.  A query that writes to a table:
integration/test_example_job.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from fkjoin.errors import FkJoinError
from fkjoin.sinks.postgres import Postgres
from fkjoin.testing import SinkContract
from integration.machine import until
from integration.postgres import IDS, NUMBERS, batch, execute, gone, select, sink, stopped
from tests.support.batch_ids import batch_id
from tests.support.sampling import EVERY


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a batch has values of the type as they are; of others Spark makes texts (test_postgres_types.py)."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


@pytest.mark.faults
class TestPostgres(SinkContract):
    every = 1 if EVERY else 14
    types: ClassVar[list[pa.DataType]] = [kind for kind in SinkContract.types if is_plain(kind)]

    @pytest.fixture(autouse=True)
    def place(self, dsn: str) -> None:
        self.dsn = dsn

    def make_sink(self, into: str) -> Postgres:
        return Postgres(f"shop.{into}", self.dsn)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            connection.execute("set time zone 'UTC'")
            return connection.execute(SQL("select * from {}").format(Identifier("shop", into))).fetchall()

    def drop(self, into: str) -> None:
        execute(self.dsn, SQL("drop table {}").format(Identifier("shop", into)))


def test_two_attempts_at_a_batch_at_the_same_time_count_once(dsn: str) -> None:
    sinks = [sink(dsn) for _ in range(3)]
    execute(
        dsn,
        "create table shop.log (n bigint)",  # the rows that are written
        "create function shop.note() returns trigger language plpgsql as "
        "$$ begin insert into shop.log values (new.n); perform pg_sleep(0.3); return new; end $$",
        "create trigger noted before insert or update on shop.it for each row execute function shop.note()",
    )
    attempts = [threading.Thread(target=one.apply, args=(batch_id(0), batch(a=1), gone())) for one in sinks]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join(30)
    assert select(dsn, "select n from shop.log") == [(1,)]


def test_a_batch_that_fails_leaves_nothing(dsn: str) -> None:
    postgres = sink(dsn)
    postgres.apply(batch_id(0), batch(a=1), gone())
    execute(dsn, "alter table shop.it add check (n < 10)")
    with pytest.raises(FkJoinError, match="a row cannot be in table shop.it: id = 'c', column n = 99: new row for relation"):
        postgres.apply(batch_id(1), batch(b=2, c=99), gone("a"))
    assert select(dsn) == [("a", 1)]
    postgres.apply(batch_id(1), batch(b=2), gone("a"))
    assert select(dsn) == [("b", 2)]


def test_a_table_of_keys_alone(dsn: str) -> None:
    postgres = sink(dsn, IDS)
    postgres.apply(batch_id(0), gone("a", "b"), gone())
    postgres.apply(batch_id(1), gone("a"), gone("b"))
    assert select(dsn) == [("a",)]


def test_each_table_of_a_query_knows_which_batches_it_has(dsn: str) -> None:
    """Queries with several sinks: tests/sinks/test_several_sinks.py."""
    other = Postgres("shop.other", dsn)
    other.prepare(NUMBERS, ("id",))
    for postgres in (sink(dsn), other):
        postgres.apply(batch_id(0), batch(a=1), gone())
    assert select(dsn) == select(dsn, "select * from shop.other") == [("a", 1)]


def test_a_restore_leaves_the_rows_of_other_queries(dsn: str) -> None:
    postgres = sink(dsn)
    postgres.apply(batch_id(0), batch(a=1), gone())
    by_its_path = Postgres("it", make_conninfo(dsn, options="-c search_path=shop"))
    by_its_path.prepare(NUMBERS, ("id",))
    by_its_path.apply(batch_id(0, query="another"), batch(b=2), gone())
    with pytest.raises(FkJoinError, match="query another writes to shop.it, too, and a restore would delete its rows"):
        postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn) == [("a", 1), ("b", 2)]


def test_a_table_with_a_value_that_is_unique_is_restored_though_another_row_has_it_since(dsn: str) -> None:
    postgres = sink(dsn, types="id text primary key, n bigint unique")
    postgres.apply(batch_id(0), batch(a=1), gone())
    postgres.apply(batch_id(1), batch(b=1), gone("a"))
    postgres.replace(batch_id(0), batch(a=1))
    assert select(dsn) == [("a", 1)]


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
