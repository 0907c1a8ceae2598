"""Errors of the packages that write targets: they name the sink and a way out, and no message has a secret of an address.

Addresses of databases that cannot be read are refused; ``integration/test_secured.py`` has what needs a server, a broker or
a session.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.errors import FkJoinError, masked
from fkjoin.jobs.job_sections import SinkSection
from fkjoin.sinks import Delta, Iceberg
from tests.support.addresses import CANARY
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
        with pytest.raises(FkJoinError) as caught:
            work()
        assert sink.place in str(caught.value) or str(caught.value).startswith("catalog: ")
        assert CANARY not in "".join(traceback.format_exception(caught.value))
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
