"""Older releases of Spark: a job that crashes and goes on, there and on the newest one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import StateReader
from fkjoin.checkpoint.upkeep import verify
from tests.support.orders import History, batch_join
from tests.support.places import ROOT
from tests.support.sessions import small
from tests.support.version_job import read_back, sum_up, summed

pytestmark = pytest.mark.nightly

RELEASES = re.findall(r"^pyspark==((\d+\.\d+)\.\d+)$", (ROOT / "compat.lock").read_text(), re.MULTILINE)


def job(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The job that is killed and goes on, on the newest release of the line."""
    environment = ROOT / f".venv-{line}"
    if not (environment / "ready").is_file():
        missing = f"there is no Spark {line} here: make environments"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    program = [environment / "bin" / "python", "-m", "tests.support.version_job", folder]
    return subprocess.run(program, cwd=ROOT, env=own(line), capture_output=True, text=True, check=False)


def own(line: str) -> dict[str, str]:
    """An environment in which workers have the Spark of the line, too."""
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(ROOT / f".venv-{line}" / "bin" / "python")}
    return {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"} | python


@pytest.mark.parametrize(("release", "line"), [pytest.param(*one, id=one[1]) for one in RELEASES])
def test_a_killed_job_goes_on_there_and_on_the_newest(spark: SparkSession, tmp_path: Path, release: str, line: str) -> None:
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
    ran = job(line, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    assert found["crashed"] == -signal.SIGKILL, ran.stderr[-3000:]
    assert found["written"] == ["000.jsonl"]
    assert summed(tmp_path) == history.by_region()
    assert found["version"] == release
    assert found["read"] == batch_join(history)
    spreads = tuple(map(int, line.split("."))) >= (4, 2)
    there = f"partitions: {tmp_path / 'checkpoint'} has 2 already"
    needs = f"fkjoin state rescale needs Spark 4.2 or newer, and this is {release}; run it, and"
    unspread = f'{needs} the query after it, in a Python environment with "pyspark>=4.2"'
    assert found["rescaled"] == (there if spreads else unspread)

    wanted = batch_join(history)
    with StateReader(tmp_path / "checkpoint", "joined") as reader:
        rows = reader.get_many(list(wanted))
    items = [row and (row["left"]["items"], row["right"]["region"]) for row in rows]
    assert items == [row and (row["items"], row["region"]) for row in wanted.values()]

    small(spark, tmp_path, partitions=2)
    assert read_back(spark, tmp_path) == wanted
    if line == "4.0":  # the newest Spark does not load such change logs
        return
    history.write(60)
    sum_up(spark, tmp_path)
    assert summed(tmp_path) == history.by_region()
    assert verify(spark, tmp_path / "checkpoint") == []
