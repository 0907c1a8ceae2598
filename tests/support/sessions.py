"""Spark sessions of tests, and settings for small tables."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sampling import EVERY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK_4_0, SPARK_4_1 = (version("pyspark").startswith(line) for line in ("4.0.", "4.1."))
"""True on a Spark of that line; docs/versions.md says which values it does not have."""


STAGE_PARTS = 2 if EVERY else 1
"""Partitions and buckets of stages.  A task takes its time however little it does, and an operator of a batch has one in each
partition; stages of one bucket are one operator.  In a test of each operator there are two in all runs."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In ``make compat``, skip a test that needs what its Spark lacks, with the words of the refusal."""
    report = yield
    said = str(call.excinfo.value) if call.excinfo is not None else ""
    if "FKJOIN_COMPAT" in os.environ and " or newer, and this is " in said:
        report.outcome, report.longrepr = "skipped", (report.location[0], report.location[1] or 0, said.splitlines()[-1])
    return report


def short_lived(**more: str) -> dict[str, str]:
    """An environment for programs that start a JVM for a minute; see ``fkjoin.sessions.settings.SHORT_LIVED``."""
    from fkjoin.sessions.settings import SHORT_LIVED

    return os.environ | {"JAVA_TOOL_OPTIONS": SHORT_LIVED, **more}


def small(
    spark: SparkSession, folder: Path, buckets: int = STAGE_PARTS, partitions: int = STAGE_PARTS, *, validate: bool = False
) -> None:
    """Settings for tables that are built from here on: few partitions, indexes under ``folder``, all of the optimizer."""
    from fkjoin.sessions.settings import BUCKETS, EXCLUDED, INDEX_DIR, OPTIMIZE, PARTITIONS, VALIDATE

    chosen = {PARTITIONS: partitions, BUCKETS: buckets, INDEX_DIR: folder / "index", OPTIMIZE: "true", EXCLUDED: ""}
    chosen[VALIDATE] = str(validate).lower()
    for name, value in chosen.items():
        spark.conf.set(name, str(value))


@contextlib.contextmanager
def conf(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings for a while."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@pytest.fixture
def small_tables(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Small tables, and rules that a test may leave out: they are back for the tests after it."""
    from fkjoin.sessions.settings import EXCLUDED

    small(spark, tmp_path, buckets=2, validate=True)
    yield
    spark.conf.set(EXCLUDED, "")


def only_session(name: str, **conf: Any) -> Iterator[SparkSession]:
    """One local Spark session for all tests of a run that need a JVM; of thousands of executions it keeps the last plans."""
    from fkjoin.sessions.settings import SHORT_LIVED, session

    kept = dict.fromkeys(("sql_ui_retainedExecutions", "ui_retainedJobs", "ui_retainedStages"), 100)
    here = {"ui_enabled": "false", "driver_host": "127.0.0.1", "driver_extraJavaOptions": SHORT_LIVED, **kept}
    made = session(name, master="local[2]", **here, **conf)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    status = made.sparkContext._gateway.proc.poll()
    assert status is None, f"the JVM did not live to see the tests' end: it left with status {status}"
    made.stop()


@pytest.fixture
def fkjoin_here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The command line in this process and its session, which a job's settings go into: a JVM takes ten seconds.

    It gives what is printed; ``FkJoinError`` comes as it is.
    """
    from typer.testing import CliRunner

    from fkjoin.cli.main import app

    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def call(*arguments: object) -> str:
        small(spark, tmp_path, buckets=2)
        command = [*map(str, arguments), "--spark-log", str(tmp_path / "spark.log")]
        return str(CliRunner().invoke(app, command, catch_exceptions=False).stdout)

    yield call
    small(spark, tmp_path)


@pytest.fixture
def refused_here(
    fkjoin_here: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run a command in this process and its session, require status 1, and return what it prints, as ``out`` and ``err``."""
    from fkjoin.__main__ import main

    def call(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["fkjoin", *map(str, arguments), "--spark-log", str(tmp_path / "refused.log")])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, before)
        assert ended.value.code == 1
        return capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks of other tests have counted in this process, too, if it has imported them: that takes more than a second."""
    counts = sys.modules.get("fkjoin.sinks.counts")
    if counts is not None:
        events = {item: deque(maxlen=kept.maxlen) for item, kept in counts._events.items()}
        monkeypatch.setattr(counts, "_counts", Counter())
        monkeypatch.setattr(counts, "_events", events)
