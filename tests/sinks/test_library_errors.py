"""Errors of the packages that write targets: they name the sink and a way out, and no message has a secret of an address.

Addresses of databases that cannot be read are refused; ``integration/test_secured.py`` has what needs a broker or a session.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fkjoin.errors import FkJoinError, masked
from fkjoin.jobs.job_kinds import JobError, located
from fkjoin.jobs.job_sections import SinkSection
from fkjoin.sinks import Delta, Iceberg, Postgres
from fkjoin.spark.query_start import starting
from tests.support.addresses import CANARY, MALFORMED
from tests.support.batch_ids import batch_id
from tests.support.sinks import lake

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
ROWS = pa.table({"id": ["a"], "n": pa.array([1], pa.int64())})
NO_KEYS = ROWS.select(["id"]).slice(0, 0)
CALLS: dict[str, tuple[Any, ...]] = {
    "last_batch": ("q",),
    "examine": (SCHEMA, ("id",)),
    "prepare": (SCHEMA, ("id",)),
    "apply": (batch_id(1), ROWS, NO_KEYS),
    "replace": (batch_id(1), ROWS),
}
WAY_OUT = r"\. Fix that \(damaged files of a target: restore it from its backup, then run fkjoin restore\), and start"


def prepared(sink: Any) -> Any:
    sink.prepare(SCHEMA, ("id",))
    return sink


def damaged_delta(folder: Path) -> Any:
    sink = prepared(Delta(folder / "lake"))
    (folder / "lake/_delta_log/00000000000000000001.json").write_text("{broken")
    return sink


def damaged_iceberg(folder: Path) -> Any:
    sink = prepared(Iceberg("shop.it", options=lake(folder)))
    sink.apply(batch_id(0), ROWS, NO_KEYS)
    for file in (folder / "iceberg").rglob("*.metadata.json"):
        file.write_text("{broken")
    return sink


@pytest.mark.parametrize("damaged", [damaged_delta, damaged_iceberg])
@pytest.mark.parametrize("work", CALLS)
def test_a_damaged_table_is_named_with_a_way_out(tmp_path: Path, damaged: Callable[[Path], Any], work: str) -> None:
    sink = damaged(tmp_path)
    with pytest.raises(FkJoinError, match=rf"^(delta /.*lake|iceberg default.shop.it): \w+: .*{WAY_OUT}") as caught:
        getattr(sink, work)(*CALLS[work])
    assert "\n" not in str(caught.value)
    assert "<unknown>" not in str(caught.value)


def error_text(work: Callable[[], object]) -> str:
    """The text of an error, and its traceback with all causes."""
    with pytest.raises(FkJoinError) as caught:
        work()
    return f"{caught.value} {caught.value!r} " + "".join(traceback.format_exception(caught.value))


SECRET = f"me:{CANARY}@"
AWAY = "127.0.0.1:1"
STORE = {"aws_region": "x", "aws_endpoint": f"http://{AWAY}"}
AT_ONCE = {"aws_region": "x", "aws_allow_http": "true", "max_retries": "0"}
OF_DELTA: list[tuple[str, dict[str, str]]] = [
    (f"s3://{SECRET}bucket/lake", STORE),
    (f"s3://bucket/lake?sig={CANARY}", STORE),
    ("s3://bucket/lake", {"aws_endpoint": f"http://{SECRET}{AWAY}", **AT_ONCE}),
    ("s3://bucket/lake", {"aws_endpoint": f"http://:{CANARY}@{AWAY}", **AT_ONCE}),
]
OF_ICEBERG = [
    ("sql", f"{SECRET}127.0.0.1/shop"),
    ("sql", f"postgresql+psycopg://u:x@{CANARY}@h/d"),
    ("sql", f"nodb://{SECRET}127.0.0.1/shop"),
    ("rest", f"http://{SECRET}{AWAY}"),
]
ADDRESSES: list[Any] = [
    *(Delta(address, options, 0.0) for address, options in OF_DELTA),
    *(Iceberg("shop.it", options={"type": kind, "uri": uri}, retry_s=0.0) for kind, uri in OF_ICEBERG),
]


@pytest.mark.parametrize("sink", ADDRESSES, ids=range(len(ADDRESSES)))
def test_no_message_shows_a_secret(sink: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    caplog.set_level(logging.DEBUG, logger="fkjoin")
    for work in (lambda: sink.last_batch("q"), lambda: prepared(sink), lambda: sink.examine(SCHEMA, ("id",))):
        text = error_text(work)
        assert sink.place in text or text.startswith("catalog: ")
        assert CANARY not in text
    assert CANARY not in caplog.text + sink.place + repr(sink)


def test_a_job_shows_no_secret_of_a_path() -> None:
    section = SinkSection(table="joined", path=f"s3://{SECRET}bucket/lake", format="delta")
    assert section.place == "s3://…@bucket/lake"


MASKED = {
    "s3://me:secret@bucket/a": "s3://…@bucket/a",
    "s3://:secret@bucket/a": "s3://…@bucket/a",
    "https://token@host/a": "https://…@host/a",
    "me:se/cret@host/db": "…@host/db",
    "me:se@cret@host/db": "…@host/db",
    "at http://me:secret@host:9000/a?X-Amz-Signature=secret now": "at http://…@host:9000/a?… now",
    "https://host/a?sv&sig=secret": "https://host/a?…",
    "https://host/a#access_token=secret": "https://host/a?…",
    "s3://bucket/a/b and mail@host": "s3://bucket/a/b and mail@host",
    "why? 12:30": "why? 12:30",
}


def test_passwords_and_queries_of_addresses_are_masked() -> None:
    assert {text: masked(text) for text in MASKED} == MASKED


WELL_FORMED = [
    f"postgresql://me:{CANARY}@127.0.0.1:1/db",
    f"postgresql://me:{CANARY}%40%2F@127.0.0.1:1/db?connect_timeout=2",
    f"postgresql://127.0.0.1:1/db?user=me&password={CANARY}",
    f"postgresql://me:a?{CANARY}#@127.0.0.1:1/db",
    f"host=127.0.0.1 port=1 user=me password={CANARY}",
    f"host=127.0.0.1 port=1 user=me password='{CANARY} \\' more'",
]


@pytest.mark.parametrize("dsn", WELL_FORMED)
def test_a_server_that_is_not_there_is_named_without_the_password(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = Postgres("shop.it", dsn, retry_s=0.2)
    with caplog.at_level(logging.DEBUG):
        text = error_text(lambda: prepared(sink))
    assert "postgres shop.it: connection" in text
    assert "127.0.0.1" in text
    assert CANARY not in text + repr(sink) + sink.place + caplog.text
    assert "tried again" in caplog.text


def test_what_is_to_do_depends_on_whether_a_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "no password supplied"
    sink = Postgres("shop.it", "host=127.0.0.1 port=1", retry_s=0)
    for seconds in (0, 0.2):
        says = r"^sinks\.joined: postgres shop\.it: .*Connection refused \(tried "
        with pytest.raises(JobError, match=says) as away, starting(), located("sinks.joined"):
            prepared(replace(sink, retry_s=seconds))
        assert "). Check its host and port, and start again when it answers" in str(away.value)
        assert ("tried once)" in str(away.value)) == (seconds == 0)
        assert str(away.value).endswith("with a greater retry_s") == (seconds > 0)
    text = error_text(lambda: prepared(sink))
    assert "(tried once, retry_s = 0). Start the query again when the outage is over: it continues with this batch; or" in text

    def refused(**_: object) -> None:
        raise psycopg.OperationalError(f"connection failed: fe_sendauth: {wrong}")

    monkeypatch.setattr(psycopg, "connect", refused)
    mend = f"{wrong}. Set PGPASSWORD, or write a password into the address, and start "
    assert f"{mend}the query again: it continues with this batch" in error_text(lambda: prepared(sink))
    with starting():
        assert f"{mend}again" in error_text(lambda: prepared(sink))


@pytest.mark.parametrize("dsn", MALFORMED)
def test_an_address_that_cannot_be_read_is_refused_without_being_shown(dsn: str) -> None:
    text = error_text(lambda: Postgres("shop.it", dsn))
    assert "postgres: the address cannot be read" in text
    assert CANARY not in text


def test_the_ways_of_writing_an_address_that_the_error_names() -> None:
    parts = {"user": "ME", "password": "a%@/:?# ", "host": "HOST", "dbname": "DATABASE"}
    for dsn, port in (
        ("postgresql://ME:a%25%40%2F%3A%3F%23%20@HOST:5432/DATABASE", {"port": "5432"}),
        ("host=HOST dbname=DATABASE user=ME password='a%@/:?# '", {}),
    ):
        assert Postgres("it", dsn)._settings == parts | port
