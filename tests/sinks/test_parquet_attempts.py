"""Several attempts at one batch of Parquet files, as of two drivers after a crash: one counts, whole, whichever comes first.

In a folder, and in an object store.
"""

from __future__ import annotations

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
from fkjoin.errors import FkJoinError
from fkjoin.sinks.parquet_objects import BatchObjects
from fkjoin.storage.local_files import LocalFiles
from tests.support.batch_places import BatchPlace, HeardBatch, LocalPlace, StorePlace

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


def test_an_attempt_that_was_taken_for_dead_publishes_nothing(
    spark: SparkSession, place: BatchPlace, thousand: DataFrame
) -> None:
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


def test_a_driver_that_stood_still_while_the_sink_was_restored_publishes_nothing(
    place: BatchPlace, thousand: DataFrame
) -> None:
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
