"""Several attempts at one batch of Parquet files, as of two drivers after a crash: one counts, whole, whichever comes first.

In a folder, and in an object store that speaks S3; of that also outages, refusals, limits, and readers in between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from fkjoin.analysis.written import ABOUT
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.jobs.job_sections import SinkSection
from fkjoin.jobs.job_sinks import sink_of
from fkjoin.sinks import Parquet, parquet_objects
from fkjoin.sinks.counts import REPEATED, counted
from fkjoin.sinks.parquet_objects import BatchObjects
from fkjoin.spark.object_store import opened
from fkjoin.storage.local_files import LocalFiles
from tests.support.batch_places import BatchPlace, HeardBatch, LocalPlace, StorePlace
from tests.support.object_store import BUCKET, SECRET, ObjectStore
from tests.support.orders import History, batch_join
from tests.support.queries import table_of
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, joined

QUERY = "1a2b3c4d-and so on"


@pytest.fixture(params=["a folder", "an object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BatchPlace]:
    if request.param == "a folder":
        yield LocalPlace(tmp_path)
        assert list((tmp_path / "_unfinished").iterdir()) == []
    else:
        made = StorePlace(request.getfixturevalue("object_store"), request.node.name)
        yield made
        assert [name for name in made.names() if name.startswith("_unfinished")] == []


@pytest.fixture
def thousand(spark: SparkSession) -> DataFrame:
    return spark.range(1000)


def attempt(place: BatchPlace, batch: Any, number: int = 3, began_ms: int = 100) -> None:
    frame = batch.frame if isinstance(batch, HeardBatch) else batch
    at = place.batches(frame.sparkSession)
    at.publish(batch, None, label="batch", writer=QUERY[:8], mark=Mark(number, began_ms), schema=frame.schema)


def there(place: BatchPlace) -> int:
    """The number of rows that are there; none is there twice."""
    found = [row["id"] for row in place.rows()]
    assert len(found) == len(set(found))
    return len(found)


def test_an_attempt_that_begins_while_another_is_at_work_takes_nothing_from_it(place: BatchPlace, thousand: DataFrame) -> None:
    begun, first_done = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert first_done.wait(60)

    second = threading.Thread(target=attempt, args=(place, HeardBatch(thousand, before=before)))

    def after() -> None:
        second.start()
        assert begun.wait(60)

    attempt(place, HeardBatch(thousand, after=after))
    assert there(place) == 1000
    first_done.set()
    second.join(60)
    assert there(place) == 1000
    assert {name.partition("/")[0] for name in place.names()} == {"batch=00000003-1a2b3c4d"}


@pytest.mark.parametrize("began_ms", [100, 101], ids=["of one batch", "of two batches of a number"])
def test_of_two_that_publish_at_the_same_time_one_counts(
    place: BatchPlace, thousand: DataFrame, monkeypatch: pytest.MonkeyPatch, began_ms: int
) -> None:
    """The second one comes when the first has seen that there is nothing."""
    copied, renamed = BatchObjects._copy, LocalFiles.rename

    def slower(files: LocalFiles, path: str, target: str) -> bool:
        if path.endswith("/ready"):
            monkeypatch.undo()
            attempt(place, thousand, began_ms=began_ms)
        return renamed(files, path, target)

    def slower_copy(*given: Any) -> None:
        monkeypatch.undo()
        attempt(place, thousand, began_ms=began_ms)
        copied(*given)

    monkeypatch.setattr(LocalFiles, "rename", slower)
    monkeypatch.setattr(BatchObjects, "_copy", slower_copy)
    refused = pytest.raises(FkJoinError, match="is about to write another batch") if began_ms == 101 else nullcontext()
    with refused:
        attempt(place, thousand)
    assert LocalFiles.rename is renamed, "the second one was there"
    assert BatchObjects._copy is copied, "the second one was there"
    assert there(place) == 1000


def test_an_attempt_that_seemed_dead_publishes_nothing(spark: SparkSession, place: BatchPlace, thousand: DataFrame) -> None:
    """Its draft is deleted while it stands still, with none of its files written, some of them, or all."""

    def clear() -> None:
        place.batches(spark).clear_drafts(QUERY)

    gone = r"cannot be renamed|No such file|another run of the query has deleted the draft of batch 3: does one still write"
    with pytest.raises((FkJoinError, PythonException), match=gone):
        attempt(place, HeardBatch(thousand, after=clear))
    if isinstance(place, LocalPlace):
        with pytest.raises(PythonException, match="No such file"):
            attempt(place, HeardBatch(thousand, before=clear))
    assert place.names() == []
    attempt(place, thousand)
    assert there(place) == 1000


def test_a_driver_that_stood_still_during_a_restore_publishes_nothing(place: BatchPlace, thousand: DataFrame) -> None:
    """Its next batches would lie beside those of the query that goes on, under names of their own."""

    def restore() -> None:
        place.put(ABOUT, b'{"restores": 1}')

    with pytest.raises(FkJoinError, match="was restored by another process, which now owns this checkpoint"):
        attempt(place, HeardBatch(thousand, after=restore))
    with pytest.raises(FkJoinError, match="was restored by another process"):
        attempt(place, thousand, number=4)
    assert place.names() == []


def test_files_of_tasks_that_come_second_are_not_published(spark: SparkSession, place: BatchPlace, thousand: DataFrame) -> None:
    def late() -> None:
        (draft,) = {name.rpartition("/")[0] for name in place.names()}
        place.put(f"{draft}/part-0a.parquet", b"torn")

    attempt(place, HeardBatch(thousand, after=late))
    assert there(place) == 1000


def test_another_batch_of_a_number_that_is_there_is_refused(place: BatchPlace, thousand: DataFrame) -> None:
    attempt(place, thousand)
    for frame in (thousand, thousand.limit(0)):
        with pytest.raises(FkJoinError, match="has batch 3 of the query, which is about to write another batch of that"):
            attempt(place, frame, began_ms=101)
    attempt(place, thousand)
    assert there(place) == 1000


def test_drafts_of_other_queries_stay(spark: SparkSession, place: BatchPlace) -> None:
    for name in ("batch=00000001-1a2b3c4d-0f", "batch=00000001-1a2b3c4d", "batch=00000001-5e6f7a8b-0f"):
        place.put(f"_unfinished/{name}/part-0.parquet", b"torn")
    if isinstance(place, LocalPlace):
        place.put("_unfinished/gone-1/part-0.parquet", b"torn")
    place.batches(spark).clear_drafts(QUERY)
    assert place.names() == ["_unfinished/batch=00000001-5e6f7a8b-0f/part-0.parquet"]
    place.batches(spark).clear_drafts("5e6f7a8b")


NOW = {"availableNow": True}


class Back(logging.Handler):
    """A handler that ends an outage once the log ``fkjoin`` says that something is tried again."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self.outage = store.gone()

    def begin(self) -> None:
        logging.getLogger("fkjoin").addHandler(self)
        self.outage.__enter__()

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("fkjoin").removeHandler(self)
        self.outage.__exit__(None, None, None)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_batch_waits_for_a_store_that_is_away(
    spark: SparkSession, object_store: ObjectStore, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The outage begins before a task writes, or before the driver publishes what the tasks have written."""
    place = StorePlace(object_store, f"away {moment}")
    counts = counted().get((REPEATED, f"parquet {place.address}"), 0)
    outages = [Back(object_store)]
    attempt(place, HeardBatch(spark.range(1000), **{moment: lambda: outages and outages.pop().begin()}))
    assert outages == []
    assert sorted(row["id"] for row in place.rows()) == list(range(1000))
    assert len(place.names()) == 1
    assert caplog.messages[0].startswith(f"parquet {place.address}: When ")
    assert counted()[REPEATED, f"parquet {place.address}"] - counts == len(caplog.messages)
    assert SECRET not in caplog.text


def test_the_largest_file_is_what_s3_copies_and_smaller_batches_go(
    spark: SparkSession, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(object_store, "large")
    monkeypatch.setattr(parquet_objects, "LARGEST_COPY", 3000)
    with pytest.raises(FkJoinError, match=r"the file of a batch has \d+ bytes, and S3 copies at most 3000 at once\. Start"):
        attempt(place, spark.range(1000))
    assert place.names() == []
    attempt(place, spark.range(10))
    assert len(place.rows()) == 10


def test_a_table_in_an_object_store_is_the_batch_join_through_restores(
    spark: SparkSession, tmp_path: Path, object_store: ObjectStore
) -> None:
    small(spark, tmp_path)
    history, place = History(tmp_path), StorePlace(object_store, "joined")

    sink = Parquet(place.address, object_store.options)
    table = joined(spark, tmp_path).materialize("kept")

    def run() -> None:
        finished(table.to(sink, checkpoint=tmp_path / "ck", trigger=NOW))

    def rows() -> dict[str, Any]:
        found = table_of(place.rows(), "order_id").items()
        return {key: {name: row[name] for name in ("items", "region")} for (key,), row in found}

    history.write(60)
    run()
    backup, first = Backup(tmp_path / "ck"), rows()
    history.write(60)
    run()
    assert rows() == batch_join(history)
    assert [name[:15] for name in place.names()] == ["batch=00000000-", "batch=00000001-"], "a file for each batch"

    backup.restore()
    with pytest.raises(FkJoinError, match=rf"ck is at batch 0, and parquet {place.address} is ahead, at batch 1"):
        run()
    assert len(table.restore(sink, checkpoint=tmp_path / "ck")) == 1
    assert rows() == first
    assert len(object_store.names("joined/_set-aside")) == 1

    history.write(60)
    run()
    assert rows() == batch_join(history)

    with pytest.raises(TopologyError, match=r"contains batches of another query \(\w{8}\), and none of the query of"):
        table.to(sink, checkpoint=tmp_path / "other")
    with pytest.raises(TopologyError, match="options: they are for an object store, and .*out is not in one; leave them out"):
        table.to(Parquet(tmp_path / "out", object_store.options), checkpoint=tmp_path / "other")


def test_a_store_that_refuses_stops_at_once_and_others_late(
    object_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"s3a://{BUCKET}/refused"
    with object_store.asking_for_keys(), pytest.raises(FkJoinError) as caught:
        BatchObjects(place, object_store.options, 60).folders()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"parquet {place} cannot be reached: When listing objects")
    assert "INVALID_ACCESS_KEY_ID" in line
    assert line.endswith("Fix that and start the query again: it continues with this batch")
    assert SECRET not in line
    assert caplog.messages == []
    BatchObjects(place, object_store.options, 60).check()
    with pytest.raises(FkJoinError, match="s3://no-lake/refused cannot be reached: NO_SUCH_BUCKET: there is no no-lake"):
        BatchObjects("s3://no-lake/refused", object_store.options, 60).check()
    with object_store.gone(), pytest.raises(FkJoinError, match=r"NETWORK_CONNECTION.*retry_s = 0\.1\)\. Start the query again"):
        BatchObjects(f"s3a://{BUCKET}/away", object_store.options, 0.1).folders()


REFUSED = {
    "s3a://b/x": ("nope", r"s3a://b cannot be opened: .*'nope'\. They are arguments of pyarrow.fs.S3FileSystem"),
    "s3://b/x": ("request_timeout", r"cannot be opened: could not convert string to float: 'x'\."),
    "gs://b/x": ("nope", "pyarrow.fs.GcsFileSystem, as texts"),
    "abfss://c@account.dfs.core.windows.net/x": ("nope", "pyarrow.fs.AzureFileSystem, as texts"),
}


def test_options_that_a_store_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "r")
    for place, (name, says) in REFUSED.items():
        with pytest.raises(TopologyError, match=f"options: .*{says}"):
            opened(place, {name: "x"})


def test_the_environment_has_the_address_and_the_region(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{object_store.port}")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    keys = {"access_key": "me", "secret_key": SECRET}
    BatchObjects(f"s3a://{BUCKET}/there", {**keys, "request_timeout": "5"}, 0).check()
    assert [opened(f"s3a://{BUCKET}", options)[0].region for options in ({}, keys)] == ["eu-west-1", "eu-west-1"]
    assert opened(f"s3a://{BUCKET}", {"region": "us-west-2"})[0].region == "us-west-2"


def test_paths_in_stores_and_secrets() -> None:
    assert opened("gs://bucket/a/b #?%20", {"anonymous": "true"})[1] == "bucket/a/b #?%20"
    assert opened("gs://bucket", {"anonymous": "true"})[1] == "bucket"
    assert opened("abfss://files@account.dfs.core.windows.net/a", {"account_key": "aGVsbG8="})[1] == "files/a"
    assert SECRET not in repr(Parquet("s3://b/x", {"secret_key": SECRET}))
    says = "path: the address has a secret in it: leave it out, and give it in options"
    with pytest.raises(TopologyError, match=says) as caught:
        Parquet(f"s3://me:{SECRET}@b/x")
    assert SECRET not in str(caught.value)
    with pytest.raises(TopologyError, match="path: s3a://b/p//q has a folder without a name in it: write s3a://b/p/q"):
        Parquet("s3a://b/p//q")
    assert Parquet("s3a://b/p/q/").place.endswith("q/")
    section = SinkSection(table="t", path="s3://b/x", options={"secret_key": SECRET}, retry_s=5)
    assert sink_of(section) == Parquet("s3://b/x", {"secret_key": SECRET}, 5)
    assert SECRET not in repr(section)
