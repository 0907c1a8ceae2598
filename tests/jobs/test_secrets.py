"""Secrets of a job file reach the JVM without being on any command line, and nothing that is printed has them."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from fkjoin.errors import SessionError
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.sessions import launch
from tests.support.job_files import GOOD, PLAIN, job, write_rows
from tests.support.processes import Command, linux

CANARY = "hush-4f1d9"


def test_a_secret_comes_from_a_file_and_no_error_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    monkeypatch.setenv("FKJOIN_NAME", "night")
    text = GOOD.replace("[spark]", '[spark]\n"spark.a.password" = "${FKJOIN_NAME}-${file:{folder}/secret}"')
    path = job(tmp_path, text)
    with pytest.raises(JobError, match=rf"job.toml: spark: spark.a.password: {secret} cannot be read: No such file"):
        read_job(path)
    secret.write_text(f"{CANARY}\n")
    assert read_job(path).spark.settings["spark.a.password"] == f"night-{CANARY}", "without the line's end"
    for wrong in ('version = ["${file:{folder}/secret}", 1]', 'on_error = "${file:{folder}/secret}"'):
        with pytest.raises(JobError, match="tables.orders.") as refused:
            read_job(job(tmp_path, text.replace('version = "lsn"', wrong, 1)))
        assert CANARY not in str(refused.value)
    secret.write_bytes(CANARY.encode() + b"\xff")
    with pytest.raises(JobError, match="secret cannot be read: it is not UTF-8") as refused:
        read_job(path)
    assert CANARY not in repr(refused.value)


def test_properties_and_options_are_read_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are readable by their owner alone; ours begins with the settings of a file that the user has."""
    theirs = tmp_path / "theirs"
    theirs.write_text("spark.theirs=1")
    for given, rest in (
        ("pyspark-shell", ["--load-spark-defaults", "pyspark-shell"]),
        (f"--properties-file {theirs} --jars x pyspark-shell", ["--jars", "x", "pyspark-shell"]),
        (f"--jars x --properties-file={theirs} pyspark-shell", ["--jars", "x", "pyspark-shell"]),
    ):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
        start = Path(tempfile.mkdtemp(dir=tmp_path))
        settings = {"spark.a b": " x=\u00e9\n\U0001f600", "spark.driver.extraJavaOptions": "-Da='b \\ c' -Xmx1g"}
        _, *arguments = launch._arguments(settings, start)
        assert arguments == ["--properties-file", str(start / "settings"), *rest]
        written = (start / "settings").read_text()
        assert written.startswith("spark.theirs=1\n") == ("theirs" in given)
        name, value = launch._escaped("spark.a b"), launch._escaped(" x=\u00e9\n\U0001f600")
        assert f"{name}={value}\n" in written
        assert f"={launch._escaped(f'-Xmx1g @{start}/java-options')}\n" in written, "Spark refuses it, and says why"
        assert (start / "java-options").read_text() == '"-Da=b \\\\ c"\n'
        for file in ("settings", "java-options"):
            assert (start / file).stat().st_mode & 0o777 == 0o600
    assert value == "\\u0020\\u0078\\u003d\\u00e9\\u000a\\ud83d\\ude00"


def test_options_that_cannot_be_taken_apart_are_refused_and_not_printed(tmp_path: Path) -> None:
    wrong = (f"-Da='{CANARY}", f'-Da="{CANARY}', f"-Da={CANARY}\\")
    for name, options in product(("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"), wrong):
        with pytest.raises(SessionError, match=f"{name}: a quotation mark has no other one") as refused:
            launch._arguments({name: options}, tmp_path)
        assert CANARY not in "".join(traceback.format_exception(refused.value))
        assert list(tmp_path.iterdir()) == [], "no JVM is started, and nothing is written for one"


@linux
@pytest.mark.spark
def test_no_process_log_or_file_of_a_job_has_a_secret(
    command: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is told to end leaves nothing, and prints nothing else than its lines.

    Nor does it start a process for each file that Hadoop makes, to set its permissions (``fkjoin.sessions.local``).
    """
    chmod = tmp_path / "bin" / "chmod"
    chmod.parent.mkdir()
    chmod.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/started\nexec /bin/chmod "$@"\n')
    chmod.chmod(0o755)
    monkeypatch.setenv("PATH", f"{chmod.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "secret").write_text(f"{CANARY}\n")
    write_rows(tmp_path)
    text = PLAIN.replace('trigger = "available-now"\n', "")
    text = text.replace(
        '"spark.driver.extraJavaOptions" = "',
        '"spark.fkjoin.buckets" = 1\n"spark.hadoop.fs.s3a.secret.key" = "${file:{folder}/secret}"\n'
        '"spark.driver.extraJavaOptions" = "-Djavax.net.ssl.trustStorePassword=${file:{folder}/secret} ',
    )
    one = command("run", str(job(tmp_path, text)), "--spark-log", str(tmp_path / "spark.log"))
    lines: dict[int, str] = {}

    def batch() -> bool:
        lines.update(one.processes())
        return (tmp_path / "job.log").exists() and (tmp_path / "job.log").stat().st_size > 0

    one.wait_for("a batch", batch)
    assert any("deploy.SparkSubmit" in line for line in lines.values())
    assert [line for line in lines.values() if CANARY in line] == []
    environment = Path(f"/proc/{one.java()}/environ").read_bytes()
    assert CANARY.encode() not in environment
    (folder,) = one.temporary.glob("fkjoin-run-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    os.kill(one.process.pid, signal.SIGTERM)
    one.ends()
    said = one.said.read_text()
    assert one.process.returncode == 0, said
    assert [line for line in said.splitlines() if not re.match(r"\d{4}-\d\d-\d\d [\d:]{8} \w", line)] == []
    assert "orders stopped after" in said.splitlines()[-1]
    assert list(one.temporary.iterdir()) == []
    assert not (tmp_path / "started").exists()
    assert CANARY not in said
    places = [path for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / "secret"]
    assert len(places) > 20
    assert [path for path in places if CANARY.encode() in path.read_bytes()] == []
