"""Delta tables kept up to date: what a batch does, once, beside other writers, and when the storage goes away."""

from __future__ import annotations

import http.server
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.sinks.counts import REPEATED, counted, last_events
from fkjoin.sinks.delta import Delta, _absolute, version_of
from fkjoin.spark.query_start import starting
from tests.support.batch_ids import batch_id
from tests.support.writers import stands_still, write_at_once

NUMBERS = pa.schema([("id", pa.string()), ("n", pa.int64())])


def batch(**rows: int) -> tuple[pa.Table, pa.Table]:
    upserts = pa.table({"id": list(rows), "n": list(rows.values())}, NUMBERS)
    return upserts, upserts.select(["id"]).slice(0, 0)


def table_at(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda found: found["id"])


def prepared(path: Path | str, schema: pa.Schema = NUMBERS, key: tuple[str, ...] = ("id",), **options: Any) -> Delta:
    sink = Delta(path, **options)
    sink.prepare(schema, key)
    return sink


def test_events_that_two_attempts_append_at_a_time_are_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt stands still between its look at the table and its commit, and the other one commits meanwhile."""
    event, keys = batch(a=1)
    events = pa.concat_tables([event, event])
    slow, fast = prepared(tmp_path, key=()), prepared(tmp_path, key=())
    stands_still(monkeypatch, slow, [lambda: fast.apply(batch_id(0), events, keys)])
    slow.apply(batch_id(0), events, keys)
    assert table_at(tmp_path) == events.to_pylist()


def test_columns_are_added_on_request(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([("id", pa.string()), ("NAME", pa.string())]))
    Delta(tmp_path, evolve=True).examine(NUMBERS, ("id",))
    with pytest.raises(FkJoinError, match=r"lacks the columns name, and has columns whose names differ only in case"):
        prepared(tmp_path, NUMBERS.append(pa.field("name", pa.string())), evolve=True)
    assert DeltaTable(tmp_path).version() == 0, "neither a check nor a refusal changes it"
    Delta(tmp_path, evolve=True).examine(NUMBERS.append(pa.field("NAME", pa.string())), ("id",))
    for _ in range(2):
        delta = prepared(tmp_path, evolve=True)
    delta.apply(batch_id(0), *batch(a=1))
    assert table_at(tmp_path) == [{"id": "a", "NAME": None, "n": 1}]
    assert DeltaTable(tmp_path).version() == 2


def test_rows_move_between_partitions_and_files_are_compacted_and_deleted(tmp_path: Path) -> None:
    wanted = pa.schema([("id", pa.string()), ("region", pa.string())])
    delta = prepared(tmp_path, wanted, partition_by="region", optimize_every=3, vacuum_every=4)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})

    def write(number: int, **regions: str | None) -> list[str]:
        """Apply a batch, and return the operations on the table that it made."""
        before = DeltaTable(tmp_path).version()
        rows = pa.table({"id": list(regions), "region": pa.array(regions.values(), pa.string())})
        delta.apply(batch_id(number), rows, pa.table({"id": pa.array(["gone"] if regions else [], pa.string())}))
        return [entry["operation"] for entry in reversed(DeltaTable(tmp_path).history()) if entry["version"] > before]

    assert write(0, a="no/rth", b=None) == ["MERGE"]
    assert write(1, a=None, gone="x") == ["MERGE"]
    assert write(2) == ["WRITE", "OPTIMIZE"], "a batch without rows is a commit, and counts"
    assert write(3, c=None) == ["MERGE", "VACUUM START", "VACUUM END"]
    assert write(4, a="west") == ["MERGE"]
    assert write(4, a="east") == []
    assert table_at(tmp_path) == [{"id": "a", "region": "west"}, {"id": "b", "region": None}, {"id": "c", "region": None}]
    assert DeltaTable(tmp_path).metadata().partition_columns == ["region"]
    prepared(tmp_path, wanted)
    with pytest.raises(TopologyError, match=r"partition_by: Delta table .* exists, partitioned by region: leave it out, or"):
        prepared(tmp_path, wanted, partition_by=["id"])
    with pytest.raises(TopologyError, match="vacuum_every: 0 is not a number of batches; leave it out, or give one from 1 on"):
        Delta(tmp_path, vacuum_every=0)


@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("other", [{"m": [1.5]}, {"n": [1.5]}, {"n": [True]}], ids=["gone", "float", "bool"])
def test_columns_that_another_writer_changed_are_refused(tmp_path: Path, key: tuple[str, ...], other: dict[str, Any]) -> None:
    delta = prepared(tmp_path, key=key)
    rows, keys = batch(a=2**40 + 1)
    delta.apply(batch_id(0), rows, keys.select(key))
    write_deltalake(tmp_path, pa.table({"id": ["z"], **other}), mode="overwrite", schema_mode="overwrite")
    says = r"lacks the columns n \(it has id, m\)|column n is .*, which cannot hold every bigint"
    with pytest.raises(FkJoinError, match=says):
        delta.apply(batch_id(1), rows, keys.select(key))
    assert [row["id"] for row in table_at(tmp_path)] == ["z"]


@pytest.mark.parametrize("key", [("id",), ()])
def test_a_column_that_the_table_does_not_write_is_null(tmp_path: Path, key: tuple[str, ...]) -> None:
    DeltaTable.create(tmp_path, pa.schema([("note", pa.string()), ("n", pa.int64()), ("id", pa.string())]))
    delta = prepared(tmp_path, key=key)
    for number in range(2):
        rows, keys = batch(**{str(number): number})
        delta.apply(batch_id(number), rows, keys.select(key))
        DeltaTable(tmp_path).alter.add_columns(Field(f"more{number}", PrimitiveType("string")))
    nulls = dict.fromkeys(("note", "more0", "more1"))
    assert table_at(tmp_path) == [{"n": number, "id": str(number), **nulls} for number in range(2)]


def test_a_row_that_breaks_a_constraint_stops_the_query_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    delta = prepared(tmp_path, retry_s=2)
    DeltaTable(tmp_path).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(FkJoinError, match=r"has a constraint that a row breaks: 1 rows .* a .*\. Leave such rows out"):
        delta.apply(batch_id(0), *batch(a=-1, b=1))
    assert caplog.messages == []
    delta.apply(batch_id(0), *batch(b=1))
    DeltaTable(tmp_path).alter.drop_constraint("positive")
    delta.apply(batch_id(1), *batch(a=-1, b=1))
    assert [row["n"] for row in table_at(tmp_path)] == [-1, 1]


def test_a_table_that_was_dropped_stops_the_query(tmp_path: Path) -> None:
    delta = prepared(tmp_path / "table")
    shutil.move(tmp_path / "table", tmp_path / "aside")
    with pytest.raises(FkJoinError, match=r"delta .* is gone. Stop the query, and run fkjoin restore JOB.toml, or"):
        delta.apply(batch_id(0), *batch(a=1))
    shutil.move(tmp_path / "aside", tmp_path / "table")
    delta.apply(batch_id(0), *batch(a=1))
    assert table_at(tmp_path / "table") == [{"id": "a", "n": 1}]


def test_a_table_in_a_store_has_one_name() -> None:
    assert len({_absolute(f"{scheme}://bucket/table/") for scheme in ("s3", "s3a", "s3n")}) == 1


def test_of_two_queries_that_make_a_table_the_second_compares_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Delta._make

    def second(sink: Delta, wanted: pa.Schema, *, keep: bool) -> None:
        monkeypatch.undo()
        prepared(tmp_path)
        make(sink, wanted, keep=keep)

    monkeypatch.setattr(Delta, "_make", second)
    with pytest.raises(FkJoinError, match=r"lacks the columns name \(it has id, n\)"):
        prepared(tmp_path, NUMBERS.append(pa.field("name", pa.string())))


def test_a_table_that_another_has_restored_has_no_batch_of_the_query(tmp_path: Path) -> None:
    """Its transactions outlive a RESTORE; upkeep and another query's batches may come after it."""
    delta = prepared(tmp_path)
    for number in range(2):
        delta.apply(batch_id(number), *batch(a=number))
    DeltaTable(tmp_path).optimize.compact()
    assert delta.last_batch("q") == batch_id(1)
    DeltaTable(tmp_path).restore(1)
    DeltaTable(tmp_path).optimize.compact()
    delta.apply(batch_id(0, query="another"), *batch(b=1))
    assert (delta.last_batch("q"), delta.last_batch("another")) == (None, batch_id(0, query="another"))
    with pytest.raises(FkJoinError, match="has no batch of the query, which is about to write batch 2"):
        delta.apply(batch_id(2), *batch(a=2))
    delta.replace(batch_id(1), batch(a=1)[0])
    delta.apply(batch_id(2), *batch(a=2))
    assert table_at(tmp_path) == [{"id": "a", "n": 2}]


def test_columns_and_properties_are_no_rows_of_another_writer(tmp_path: Path) -> None:
    delta = prepared(tmp_path)
    delta.apply(batch_id(0), *batch(a=1))
    delta.apply(batch_id(1), *batch(a=2))
    DeltaTable(tmp_path).alter.add_columns(Field("more", PrimitiveType("string")))
    DeltaTable(tmp_path).alter.set_table_properties({"delta.appendOnly": "false"})
    assert version_of(DeltaTable(tmp_path), "q", batch_id(0).mark) == 1
    write_deltalake(tmp_path, batch(z=9)[0].append_column("more", pa.array(["x"])), mode="append")
    with pytest.raises(FkJoinError, match=r"its version 5 \(WRITE\) was written by another writer"):
        version_of(DeltaTable(tmp_path), "q", batch_id(0).mark)


def test_two_writers_of_the_same_rows_at_the_same_time_both_write_all_their_batches(tmp_path: Path) -> None:
    prepared(tmp_path).apply(batch_id(0, query="first"), *batch(a=0, b=0))
    write_at_once(lambda: prepared(tmp_path), batch, 8)
    table = DeltaTable(tmp_path)
    assert table.to_pyarrow_table().sort_by("id").to_pydict() == {"id": ["a", "b"], "n": [7, 7]}
    assert [table.transaction_version(query) for query in ("one", "other")] == [7, 7]
    assert table.version() == 17, "each batch once"


def test_an_append_only_table_stops_the_query_until_it_no_longer_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DeltaTable.create(tmp_path, NUMBERS, configuration={"delta.appendOnly": "true"})
    made = prepared(tmp_path, retry_s=2)
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
def test_a_storage_that_is_away_is_tried_for_a_time(storage: Storage, status: int, caplog: pytest.LogCaptureFixture) -> None:
    storage.status = status or 503
    options = storage.options if status else {**storage.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    before = counted().get((REPEATED, "delta s3://bucket/table"), 0)
    with pytest.raises(FkJoinError) as caught, caplog.at_level(logging.WARNING, "fkjoin"):
        prepared("s3://bucket/table", retry_s=0.5, options=options)
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
def test_a_storage_that_refuses_stops_at_once(storage: Storage, status: int, caplog: pytest.LogCaptureFixture) -> None:
    storage.status = status
    with pytest.raises(FkJoinError, match="^delta s3://bucket/table cannot be reached: Kernel error.*Fix that and start"):
        prepared("s3://bucket/table", options=storage.options)
    with pytest.raises(FkJoinError, match="cannot be reached: Kernel error.*[^.]. Fix that and start again$"), starting():
        prepared("s3://bucket/table", options=storage.options)
    assert caplog.messages == []


@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), "60"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(TopologyError, match="retry_s: .* is not a number of seconds; 0 tries once, and the default is 60"):
        Delta(tmp_path, {}, given)
