"""Addresses of databases: those that cannot be read are refused, and the passwords in them are not shown.

``integration/test_secured.py`` has what needs a server, a broker or a session.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from fkjoin.errors import FkJoinError
from fkjoin.jobs.job_kinds import JobError, located
from fkjoin.sinks import Postgres
from fkjoin.spark.query_start import starting
from tests.support.addresses import CANARY, MALFORMED

WELL_FORMED = [
    f"postgresql://me:{CANARY}@127.0.0.1:1/db",
    f"postgresql://me:{CANARY}%40%2F@127.0.0.1:1/db?connect_timeout=2",
    f"postgresql://127.0.0.1:1/db?user=me&password={CANARY}",
    f"postgresql://me:a?{CANARY}#@127.0.0.1:1/db",
    f"host=127.0.0.1 port=1 user=me password={CANARY}",
    f"host=127.0.0.1 port=1 user=me password='{CANARY} \\' more'",
]


def told(work: Callable[[], object]) -> str:
    """The text of an error, and its traceback with all causes."""
    with pytest.raises(FkJoinError) as caught:
        work()
    return f"{caught.value} {caught.value!r} " + "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("dsn", WELL_FORMED)
def test_a_server_that_is_not_there_is_named_without_the_password(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = Postgres("shop.it", dsn, retry_s=0.2)
    with caplog.at_level(logging.DEBUG):
        text = told(lambda: sink.prepare(pa.schema([("id", pa.int64())]), ("id",)))
    assert "postgres shop.it: connection" in text
    assert "127.0.0.1" in text
    assert CANARY not in text + repr(sink) + sink.place + caplog.text
    assert "tried again" in caplog.text


def test_what_is_to_do_depends_on_whether_a_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, wrong = pa.schema([("id", pa.int64())]), "no password supplied"
    sink = Postgres("shop.it", "host=127.0.0.1 port=1", retry_s=0)
    for seconds in (0, 0.2):
        says = r"^sinks\.joined: postgres shop\.it: .*Connection refused \(tried "
        with pytest.raises(JobError, match=says) as away, starting(), located("sinks.joined"):
            replace(sink, retry_s=seconds).prepare(schema, ("id",))
        assert "). Check its host and port, and start again when it answers" in str(away.value)
        assert ("tried once)" in str(away.value)) == (seconds == 0)
        assert str(away.value).endswith("with a greater retry_s") == (seconds > 0)
    text = told(lambda: sink.prepare(schema, ("id",)))
    assert "(tried once, retry_s = 0). Start the query again when the outage is over: it continues with this batch; or" in text

    def refused(**_: object) -> None:
        raise psycopg.OperationalError(f"connection failed: fe_sendauth: {wrong}")

    monkeypatch.setattr(psycopg, "connect", refused)
    mend = f"{wrong}. Set PGPASSWORD, or write a password into the address, and start "
    assert f"{mend}the query again: it continues with this batch" in told(lambda: sink.prepare(schema, ("id",)))
    with starting():
        assert f"{mend}again" in told(lambda: sink.prepare(schema, ("id",)))


@pytest.mark.parametrize("dsn", MALFORMED)
def test_an_address_that_cannot_be_read_is_refused_without_being_shown(dsn: str) -> None:
    text = told(lambda: Postgres("shop.it", dsn))
    assert "postgres: the address cannot be read" in text
    assert CANARY not in text


def test_the_ways_of_writing_an_address_that_the_error_names() -> None:
    parts = {"user": "ME", "password": "a%@/:?# ", "host": "HOST", "dbname": "DATABASE"}
    for dsn, port in (
        ("postgresql://ME:a%25%40%2F%3A%3F%23%20@HOST:5432/DATABASE", {"port": "5432"}),
        ("host=HOST dbname=DATABASE user=ME password='a%@/:?# '", {}),
    ):
        assert Postgres("it", dsn)._settings == parts | port
