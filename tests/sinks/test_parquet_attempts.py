"""Several attempts at one batch of Parquet files, as of two drivers after a crash: one counts, whole, whoever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from fkjoin.analysis.written import ABOUT
from fkjoin.checkpoint import files as of_spark
from fkjoin.checkpoint.batch_log import Mark
from fkjoin.checkpoint.files import hadoop, moved
from fkjoin.errors import FkJoinError
from fkjoin.sinks import parquet_folders
from fkjoin.sinks.parquet_folders import clear_drafts, publish

pytestmark = pytest.mark.spark

QUERY = "1a2b3c4d-and so on"


@dataclass
class Batch:
    """A batch that calls a function before and after it is worked out."""

    frame: DataFrame
    before: Callable[[], Any] = lambda: None
    after: Callable[[], Any] = lambda: None

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802  as Spark has it
        return self.frame.sparkSession

    def mapInArrow(self, function: Any, schema: str) -> Batch:  # noqa: N802
        return Batch(self.frame.mapInArrow(function, schema), self.before, self.after)

    def collect(self) -> list[Any]:
        self.before()
        rows = self.frame.collect()
        self.after()
        return rows


def attempt(place: Path, batch: Any, number: int = 3, began_ms: int = 100) -> None:
    frame = batch.frame if isinstance(batch, Batch) else batch
    publish(batch, None, str(place), label="batch", writer=QUERY[:8], mark=Mark(number, began_ms), schema=frame.schema)


@pytest.fixture
def thousand(spark: SparkSession) -> DataFrame:
    return spark.range(1000)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert list((tmp_path / "_unfinished").iterdir()) == []


def there(spark: SparkSession, place: Path) -> int:
    return spark.read.parquet(str(place)).count()


def test_an_attempt_that_begins_while_another_is_at_work_takes_nothing_from_it(
    spark: SparkSession, tmp_path: Path, thousand: DataFrame
) -> None:
    begun, first_done = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert first_done.wait(60)

    second = threading.Thread(target=attempt, args=(tmp_path, Batch(thousand, before=before)))

    def after() -> None:
        second.start()
        assert begun.wait(60)

    attempt(tmp_path, Batch(thousand, after=after))
    assert there(spark, tmp_path) == 1000
    first_done.set()
    second.join(60)
    assert there(spark, tmp_path) == 1000
    assert [path.name for path in tmp_path.glob("batch=*")] == ["batch=00000003-1a2b3c4d"]


def test_of_two_that_publish_at_the_same_time_one_counts(
    spark: SparkSession, tmp_path: Path, thousand: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(path: Any, target: Any, files: Any) -> bool:
        if path.getName() == "ready":
            monkeypatch.setattr(parquet_folders, "moved", moved)
            attempt(tmp_path, thousand)
        return moved(path, target, files)

    monkeypatch.setattr(parquet_folders, "moved", slower)
    attempt(tmp_path, thousand)
    assert parquet_folders.moved is moved, "the second one was there"
    assert there(spark, tmp_path) == 1000


def test_an_attempt_that_was_taken_for_dead_publishes_nothing(spark: SparkSession, tmp_path: Path, thousand: DataFrame) -> None:
    """Its folder goes while it stands still: its files are not there, some of them, or all."""

    def clear() -> None:
        clear_drafts(spark, str(tmp_path), QUERY)

    with pytest.raises((FkJoinError, PythonException), match=r"cannot be renamed|No such file"):
        attempt(tmp_path, Batch(thousand, after=clear))
    with pytest.raises(PythonException, match="No such file"):
        attempt(tmp_path, Batch(thousand, before=clear))
    assert list(tmp_path.glob("batch=*")) == []
    attempt(tmp_path, thousand)
    assert there(spark, tmp_path) == 1000


def test_a_driver_that_stood_still_while_the_sink_was_set_back_publishes_nothing(
    spark: SparkSession, tmp_path: Path, thousand: DataFrame
) -> None:
    """Its next batches would lie beside those of the query that goes on, under names of their own."""

    def set_back() -> None:
        (tmp_path / ABOUT).write_text('{"set_backs": 1}')

    with pytest.raises(FkJoinError, match="was set back since this query began, and another query goes on with it"):
        attempt(tmp_path, Batch(thousand, after=set_back))
    with pytest.raises(FkJoinError, match="was set back since this query began"):
        attempt(tmp_path, thousand, number=4)
    assert list(tmp_path.glob("batch=*")) == []


def test_files_of_tasks_that_come_second_are_not_published(spark: SparkSession, tmp_path: Path, thousand: DataFrame) -> None:
    def late() -> None:
        (draft,) = (tmp_path / "_unfinished").iterdir()
        (draft / "part-late.parquet").write_bytes(next(draft.glob("part-*")).read_bytes())

    attempt(tmp_path, Batch(thousand, after=late))
    assert there(spark, tmp_path) == 1000


def test_another_batch_of_a_number_that_is_there_is_refused(spark: SparkSession, tmp_path: Path, thousand: DataFrame) -> None:
    attempt(tmp_path, thousand)
    for frame in (thousand, thousand.limit(0)):
        with pytest.raises(
            FkJoinError, match="has batch 3 of the query already, which is about to write another batch of that"
        ):
            attempt(tmp_path, frame, began_ms=101)
    attempt(tmp_path, thousand)
    assert there(spark, tmp_path) == 1000


def test_drafts_of_other_queries_stay(spark: SparkSession, tmp_path: Path) -> None:
    drafts = tmp_path / "_unfinished"
    for name in ("batch=00000001-1a2b3c4d-0f", "batch=00000001-1a2b3c4d", "gone-1", "batch=00000001-5e6f7a8b-0f"):
        (drafts / name / "ready").mkdir(parents=True)
    clear_drafts(spark, str(tmp_path), QUERY)
    assert [path.name for path in drafts.iterdir()] == ["batch=00000001-5e6f7a8b-0f"]
    clear_drafts(spark, str(tmp_path), "5e6f7a8b")


@pytest.mark.parametrize("here", [True, False], ids=["as a local folder", "by Hadoop, as on HDFS"])
def test_a_folder_is_moved_to_no_name_that_is_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(of_spark, "local_path", lambda path, files: None)
    (tmp_path / "_unfinished").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (a, files), (b, _), (c, _) = (hadoop(spark, str(tmp_path / name)) for name in "abc")
    assert not moved(a, b, files)
    assert [(tmp_path / name / "file").read_text() for name in "ab"] == ["a", "b"]
    assert moved(a, c, files)
    assert (tmp_path / "c" / "file").read_text() == "a"
    with pytest.raises(FkJoinError, match=r"a cannot be renamed to .*d: .*(No such|not exist).*\. Is the folder writable"):
        moved(a, hadoop(spark, str(tmp_path / "d"))[0], files)
