"""A Delta table whose storage goes away, and several writers of the same rows at the same time."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.sinks.counts import REPEATED, counted, last_events
from fkjoin.sinks.delta import Delta
from fkjoin.spark.query_start import starting
from tests.support.batch_ids import batch_id
from tests.support.writers import write_at_once

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


def sink(path: object, retry_s: float = 60, **options: str) -> Delta:
    delta = Delta(str(path), options, retry_s)
    delta.prepare(SCHEMA, ("id",))
    return delta


def batch(**rows: int) -> tuple[pa.Table, pa.Table]:
    found = pa.table({"id": list(rows), "n": pa.array(list(rows.values()), pa.int64())})
    return found, found.select(["id"]).slice(0, 0)


def test_two_writers_of_the_same_rows_at_the_same_time_both_write_all_their_batches(tmp_path: Path) -> None:
    sink(tmp_path).apply(batch_id(0, query="first"), *batch(a=0, b=0))
    write_at_once(lambda: sink(tmp_path), batch, 8)
    table = DeltaTable(tmp_path)
    assert table.to_pyarrow_table().sort_by("id").to_pydict() == {"id": ["a", "b"], "n": [7, 7]}
    assert [table.transaction_version(query) for query in ("one", "other")] == [7, 7]
    assert table.version() == 17, "each batch once"


def test_an_append_only_table_stops_the_query_at_once_and_goes_on_when_it_no_longer_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DeltaTable.create(tmp_path, SCHEMA, configuration={"delta.appendOnly": "true"})
    made = sink(tmp_path, 2)
    made.apply(batch_id(0), *batch(a=0))
    with pytest.raises(FkJoinError, match="is append-only.*delta.appendOnly to false, and start the query again"):
        made.apply(batch_id(1), *batch(a=1))
    assert caplog.messages == []
    DeltaTable(tmp_path).alter.set_table_properties({"delta.appendOnly": "false"})
    made.apply(batch_id(1), *batch(a=1))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pydict() == {"id": ["a"], "n": [1]}


class Storage(http.server.ThreadingHTTPServer):
    """An object store that answers with a status alone."""

    status = 503
    asked = 0

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "CaNaRy17",
            "AWS_REGION": "here",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "max_retries": "0",
        }


class Answer(http.server.BaseHTTPRequestHandler):
    server: Storage

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def storage() -> Iterator[Storage]:
    server = Storage(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [503, 429, 0])
def test_a_storage_that_is_away_is_tried_for_as_long_as_one_says(
    storage: Storage, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage.status = status or 503
    options = storage.options if status else {**storage.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    before = counted().get((REPEATED, "delta s3://bucket/table"), 0)
    with pytest.raises(FkJoinError) as caught, caplog.at_level(logging.WARNING, "fkjoin"):
        sink("s3://bucket/table", 0.5, **options)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("delta s3://bucket/table: Kernel error -> Generic S3 error: Error performing GET http://127.0.0.1:")
    assert ", retry_s = 0.5). Start the query again when the outage is over: it continues with this batch; or" in line
    (said,) = caplog.messages
    assert said.startswith("delta s3://bucket/table: Kernel error"), "each repetition is counted, and the first is said"
    assert not status or storage.asked > 1
    repeated = counted()[REPEATED, "delta s3://bucket/table"] - before
    assert repeated >= 1
    events = [event for event in last_events() if event.item == REPEATED][-repeated:]
    assert said.startswith(f"{events[0].target}: {events[0].words}; tried again in "), "the page says the same"
    assert "CaNaRy17" not in line + caplog.text
    assert "\x1b" not in line


@pytest.mark.parametrize("status", [400, 403])
def test_a_storage_that_refuses_stops_the_query_at_once(
    storage: Storage, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage.status = status
    with pytest.raises(FkJoinError, match="^delta s3://bucket/table cannot be reached: Kernel error.*Fix that and start"):
        sink("s3://bucket/table", **storage.options)
    with pytest.raises(FkJoinError, match="cannot be reached: Kernel error.*[^.]. Fix that and start again$"), starting():
        sink("s3://bucket/table", **storage.options)
    assert caplog.messages == []


@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), "60"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(TopologyError, match="retry_s: .* is not a number of seconds; 0 tries once, and the default is 60"):
        Delta(tmp_path, {}, given)
