"""Tables of files in a job file: ``on_error``, dead letters, and columns that the job keeps."""

from __future__ import annotations

import base64
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin.checkpoint.begun import Begun
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_sections import DeadLettersSection, JobSection
from fkjoin.sessions.settings import TIME_ZONE
from fkjoin.spark.dead_letters import as_records
from tests.support.files import write
from tests.support.job_files import run_queries
from tests.support.sessions import small


@pytest.fixture(autouse=True)
def _one_bucket(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, validate=True)


def job(spark: SparkSession, folder: Path, sinks: Sequence[str] = (), format: str = "parquet", **orders: Any) -> Job:
    spec = {
        "name": "orders",
        "checkpoint": f"{folder}/checkpoint",
        "trigger": "available-now",
        "tables": {
            "orders": {"path": f"{folder}/orders", "key": "id", "version": "lsn", **orders},
            "customers": {"path": f"{folder}/customers", "key": "customer", "version": "lsn"},
        },
        "joins": {"joined": {"left": "orders", "right": "customers", "extractor": "customer", "materialize": True}},
        "sinks": {"out": {"table": "joined", "path": f"{folder}/out", "format": format}}
        | {f"of-{table}": {"table": table, "path": f"{folder}/of-{table}"} for table in sinks},
        "dead_letters": {"path": f"{folder}/dead"},
    }
    return Job(JobSection.model_validate(spec), spark)


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("part-*.json")) for line in path.read_text().splitlines()]


def test_a_job_keeps_columns_also_when_their_files_were_archived(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    region = tmp_path / "orders" / "region=eu"
    write(tmp_path / "customers", "1.json", '{"customer":"c1","name":"Ada","lsn":1}')
    write(region, "1.json", '{"id":"o1","customer":"c1","amount":5,"lsn":1}', '{"id":"o2","cust')
    run_queries(job(spark, tmp_path))
    assert {letter["file"].rpartition("/")[2] for letter in letters(tmp_path / "dead" / "joined")} == {"1.json"}
    kept = Begun.read(spark, str(tmp_path / "checkpoint")).columns["orders"].schema
    assert kept is not None
    assert kept.names == ["amount", "customer", "id", "lsn", "region"], "a line that does not fit makes no column"
    shutil.rmtree(region)
    job(spark, tmp_path).check()
    zone = str(spark.conf.get(TIME_ZONE))
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    try:
        with pytest.raises(FkJoinError, match=f"dead-letters-joined was started in the time zone {zone}, .* Asia/Tokyo, "):
            job(spark, tmp_path).check()
    finally:
        spark.conf.set(TIME_ZONE, zone)
    write(region, "2.json", '{"id":"o3","customer":"c1","amount":5.5,"lsn":2}')
    write(region, "3.json", '{"id":"o4","customer":"c1","amount":6,"coupon":"X","lsn":"3x"}')
    write(region, "4.json", '{"id":"o5","customer":"c1","amount":6,"coupon":"X","lsn":4}')
    with caplog.at_level(logging.WARNING, "fkjoin"):
        made = job(spark, tmp_path)  # though a version has become text
    assert [record.args[:2] for record in caplog.records if record.name == "fkjoin"] == [("orders", "coupon")]
    run_queries(made)
    rows = {row.id: (row.left.amount, row.left.region) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert rows == {"o1": (5, "eu"), "o5": (6, "eu")}
    names = [(letter["table"], letter["file"].rpartition("/")[2]) for letter in letters(tmp_path / "dead" / "joined")]
    assert sorted(names) == [("orders", "1.json"), ("orders", "2.json"), ("orders", "3.json")], "each once"


def test_a_batch_that_was_cut_off_after_sparks_sink_had_it_is_in_there_once(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "customers", "1.json", '{"customer":"c1","name":"Ada","lsn":1}')
    for number in range(2):
        write(tmp_path / "orders", f"{number}.json", f'{{"id":"o{number}","customer":"c1","lsn":1}}', f"no JSON {number}")
        run_queries(job(spark, tmp_path, format="json"))
    for query in ("sink-out", "dead-letters-joined"):
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / query / "commits" / name).unlink()
    write(tmp_path / "orders", "2.json", '{"id":"o2","customer":"c1","lsn":1}')
    run_queries(job(spark, tmp_path, format="json"))
    assert sorted(row["id"] for row in spark.read.json(str(tmp_path / "out")).collect()) == ["o0", "o1", "o2"]
    letters_once = spark.read.json(str(tmp_path / "dead" / "joined")).collect()
    assert sorted(base64.b64decode(letter["value"]) for letter in letters_once) == [b"no JSON 0", b"no JSON 1"]


@pytest.mark.nightly
def test_dead_letters_ahead_of_a_restored_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "customers", f"{number}.json", f'{{"customer":"c{number}","name":"Ada","lsn":{number}}}')
        write(tmp_path / "orders", f"{number}.json", '{"id":"o1","customer":"c1","lsn":1}', f"no JSON {number}")
        run_queries(job(spark, tmp_path))
        if number == 0:
            shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")
    made = job(spark, tmp_path)
    for refused in (made.restore, made.require_together):
        with pytest.raises(FkJoinError, match=r"dead-letters-joined is at batch 0, and .*dead.joined .*: give another path"):
            refused()
    made.spec = made.spec.model_copy(update={"dead_letters": DeadLettersSection(path=f"{tmp_path}/later")})
    assert len(made.restore()) == 1
    made.require_together()
    run_queries(made)
    assert len(letters(tmp_path / "later" / "joined")) == 1


def test_each_table_of_a_sink_has_its_dead_letters_in_a_folder_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "customers", "1.json", '{"customer":"c1","name":"Ada","lsn":1}')
    write(tmp_path / "orders", "1.json", '{"id":"o1","customer":"c1","lsn":1}', "no JSON")
    run_queries(job(spark, tmp_path, sinks=["orders"]), at_once=True)
    for table in ("joined", "orders"):
        assert [base64.b64decode(letter["value"]) for letter in letters(tmp_path / "dead" / table)] == [b"no JSON"]


def test_dead_letters_are_records_with_what_is_known_of_them(spark: SparkSession) -> None:
    columns = "table string, file string, value binary, topic string, partition int, offset bigint, key binary, reason string"
    headers = "headers array<struct<key: string, value: binary>>"
    rows = [("orders", "f", b"{", None, None, None, None, "why"), ("t", None, b"v", "t", 1, 2, b"k", "what")]
    frame = spark.createDataFrame([(*row, None) for row in rows], f"{columns}, {headers}")
    of_file, of_topic = as_records(frame).collect()
    of_letter = {item.key.removeprefix("fkjoin."): bytes(item.value) for item in of_file.headers}
    assert of_letter == {"table": b"orders", "file": b"f", "reason": b"why"}
    about = ("table", "topic", "partition", "offset", "reason")
    assert [item.key for item in of_topic.headers] == [f"fkjoin.{name}" for name in about]
    assert (bytes(of_topic.key), bytes(of_topic.value), of_file.key) == (b"k", b"v", None)
    files_only = frame.select("table", "file", "value", "reason")
    assert as_records(files_only).columns == ["key", "value", "headers"]
