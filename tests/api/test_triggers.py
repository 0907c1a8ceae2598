"""``trigger=`` as a text: what it means, in Python and in job files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.sinks import Parquet
from fkjoin.spark.trigger import arguments_of, interval_ms
from tests.support.job_files import GOOD
from tests.support.sessions import small

INTERVALS = ["10 seconds", "0 seconds", "1 minute", "INTERVAL 250 Milliseconds", "1 hour 30 minutes", " 1.5 seconds ", "+1 day"]
WRONG: list[Any] = ["", "now", "available_now", "availableNow", "10", "10 s", "ten seconds", "1 month", "-1 second", 10, True]


def test_a_trigger_is_an_interval_what_is_there_now_or_sparks_own_arguments() -> None:
    assert [arguments_of(text) for text in INTERVALS] == [{"processingTime": text} for text in INTERVALS]
    assert arguments_of("available-now") == {"availableNow": True}
    assert arguments_of(None) == arguments_of({}) == {}
    assert arguments_of({"once": True}) == {"once": True}


def test_the_time_between_batches_is_told_by_every_interval_and_by_nothing_else() -> None:
    """Windows compare it with their idle time."""
    milliseconds = [10_000, 0, 60_000, 250, 5_400_000, 1500, 86_400_000]
    assert [interval_ms(arguments_of(text)) for text in INTERVALS] == milliseconds
    assert interval_ms({"processingTime": "2 weeks 5 microseconds"}) == 1_209_600_000.005
    others = arguments_of("available-now"), {}, {"once": True}, {"continuous": "1 second"}, {"processingTime": "1 month"}
    assert [interval_ms(when) for when in others] == [None] * 5


@pytest.mark.parametrize("given", WRONG)
def test_another_text_is_refused(given: Any) -> None:
    with pytest.raises(TopologyError, match=r'^trigger: .+ is neither "available-now" nor an interval such as "10 seconds"'):
        arguments_of(given)


def test_a_job_file_takes_and_refuses_the_same_texts(tmp_path: Path) -> None:
    def job_with(text: str) -> JobSection:
        (tmp_path / "job.toml").write_text(GOOD.replace('"available-now"', f'"{text}"'))
        return read_job(tmp_path / "job.toml")

    for text in (*INTERVALS, "available-now"):
        assert job_with(text).trigger == text
    for text in filter(lambda given: isinstance(given, str), WRONG):
        with pytest.raises(JobError, match=r'job.toml: trigger: .+ is neither "available-now" nor an interval'):
            job_with(text)


class NoTopics:
    """Topics that must not be made."""

    connection = Connection("topic", "localhost:1", {}, 1)

    def create(self) -> None:
        raise AssertionError("the trigger is looked at first")


def stage_of(table: TablePlan) -> StageQuery:
    return StageQuery("stage", table.spark, table.rows, NoTopics())


STARTS: dict[str, Callable[[Table, Path, Any], Any]] = {
    "to_parquet": lambda table, folder, trigger: table.to_parquet(folder / "out", checkpoint=folder / "ck", trigger=trigger),
    "to": lambda table, folder, trigger: table.to(Parquet(folder / "out"), checkpoint=folder / "ck", trigger=trigger),
    "stage": lambda table, folder, trigger: stage_of(table._plan).start(folder / "ck", trigger=trigger),
}


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Table:
    small(spark, tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": "a", "lsn": 1}\n')
    return Table.from_files(spark, tmp_path / "in", key="id", version="lsn", schema="id string, lsn bigint")


def test_every_start_refuses_a_wrong_text_before_it_makes_anything(rows: Table, tmp_path: Path) -> None:
    for start in STARTS.values():
        with pytest.raises(TopologyError, match="^trigger: '10 sconds' is neither"):
            start(rows, tmp_path, "10 sconds")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_spark_takes_the_intervals_that_are_taken_and_no_other(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream
    for text in INTERVALS:
        writer.trigger(**arguments_of(text))
    for text in ("now", "10", "10 s", "1 month", "-1 second"):
        with pytest.raises((PySparkException, Exception)):
            writer.trigger(processingTime=text)
