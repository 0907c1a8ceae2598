"""The command line, in a process of its own where that matters; on Spark: ``tests/cli/test_termination.py``."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import fkjoin
from tests.support.traces import TRACES, expected


def test_replay_in_memory_prints_the_expected_lines() -> None:
    path = TRACES / "left-unicode-keys.in.jsonl"
    run = fkjoin("replay", path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split("\n")[:-1] == expected(path)


def test_a_mistake_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"join": "inner", "extractor": "field"}\n{"side": "left", "key": "k", "value": 1}\n')
    run = fkjoin("replay", path)
    assert run.returncode == 1
    assert run.stderr == f'fkjoin: {path}:2: "ts" must be a whole number of 64 bits, it is null\n'


def test_what_cannot_be_is_refused() -> None:
    path = TRACES / "left-unicode-keys.in.jsonl"
    for arguments, says in (
        (("replay", "nowhere.jsonl"), "'nowhere.jsonl' does not exist"),
        (("replay", path, "--events-per-batch", "0"), "'--events-per-batch'"),
        (("replay", path, "--engine", "flink"), "'--engine'"),
    ):
        run = fkjoin(*arguments)
        assert run.returncode == 2
        assert says in run.stderr


def test_help_and_version() -> None:
    assert "demo" in fkjoin("--help").stdout
    assert fkjoin("--version").stdout == "fkjoin 0.1.0\n"
