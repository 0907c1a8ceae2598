"""Fixtures that tests of checkpoints share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin.cli import state as state_cli


@pytest.fixture(scope="module")
def state_command(spark: SparkSession) -> Iterator[Any]:
    """Runs ``fkjoin state …`` in the tests' session: exit status and lines."""

    def run_command(*arguments: str) -> tuple[int, list[str]]:
        result = CliRunner().invoke(state_cli.app, arguments, catch_exceptions=False)
        return result.exit_code, result.output.splitlines()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_cli, "_session", lambda *_: contextlib.nullcontext(spark))
        yield run_command


@pytest.fixture
def another() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is alive."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(30)
