"""A table's changes as Parquet files in an object store that speaks S3: outages, refusals, limits, and readers in between."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.jobs.job_sections import SinkSection
from fkjoin.jobs.job_sinks import sink_of
from fkjoin.sinks import Parquet, parquet_objects
from fkjoin.sinks.counts import REPEATED, counted
from fkjoin.sinks.parquet_objects import BatchObjects
from fkjoin.spark.object_store import opened
from tests.support.batch_places import HeardBatch, StorePlace
from tests.support.object_store import BUCKET, SECRET, ObjectStore
from tests.support.orders import History, batch_join
from tests.support.queries import table_of
from tests.support.sessions import small
from tests.support.sinks import Backup, finished, joined

NOW = {"availableNow": True}


def attempt(place: StorePlace, batch: Any, number: int = 3) -> None:
    frame = batch.frame if isinstance(batch, HeardBatch) else batch
    about: Any = {"label": "batch", "writer": "1a2b3c4d", "mark": Mark(number, 100), "schema": frame.schema}
    place.batches(frame.sparkSession).publish(batch, None, **about)


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


def test_a_table_in_an_object_store_is_the_batch_join_through_repeats_and_restores(
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
    backup = Backup(tmp_path / "ck")
    history.write(60)
    run()
    assert rows() == batch_join(history)
    written = place.names()
    assert [name[:15] for name in written] == ["batch=00000000-", "batch=00000001-"], "a file for each batch"

    for name in ("1", ".1.crc"):  # the batch is repeated
        (tmp_path / "ck" / "commits" / name).unlink()
    run()
    assert place.names() == written

    backup.restore()
    history.write(60)
    with pytest.raises(FkJoinError, match=rf"ck is at batch 0, and parquet {place.address} is ahead, at batch 1"):
        run()
    assert len(table.restore(sink, checkpoint=tmp_path / "ck")) == 1
    run()
    assert rows() == batch_join(history)
    assert len(object_store.names("joined/_set-aside")) == 1

    object_store.files.delete_dir(f"{BUCKET}/joined")
    with pytest.raises(FkJoinError, match=rf"ck is at batch 1, and parquet {place.address} "):
        run()
    assert len(table.restore(sink, checkpoint=tmp_path / "ck")) == 1
    assert rows() == batch_join(history)

    with pytest.raises(TopologyError, match=r"contains batches of another query \(\w{8}\), and none of the query of"):
        table.to(sink, checkpoint=tmp_path / "other")
    with pytest.raises(TopologyError, match="options: they are for an object store, and .*out is not in one; leave them out"):
        table.to(Parquet(tmp_path / "out", object_store.options), checkpoint=tmp_path / "other")


def test_a_store_that_refuses_stops_the_query_at_once_and_one_that_is_away_after_a_while(
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


def test_options_leave_the_address_and_the_region_to_the_environment(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
