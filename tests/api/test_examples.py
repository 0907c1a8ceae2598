"""The examples, each as its README says: one, and in ``make faults`` the others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.places import ROOT
from tests.support.sampling import sampled
from tests.support.sessions import short_lived

EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text()
COMMANDS = dict(re.findall(r"^\| `(\w+)` \|.*\| `((?:fkjoin|python) [^`]+)` \|$", README, re.MULTILINE))


RUNS = sampled(["orders", "regions", "sqlite", "sqlite", "debezium"], ["orders"])


class Ran(NamedTuple):
    """The folder in which the examples ran, and what each run printed."""

    checkout: Path
    printed: dict[str, list[str]]


def python(checkout: Path, *arguments: str) -> str:
    """Run a program, and return what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=checkout, env=short_lived(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Each command in a process of its own."""
    checkout, printed = tmp_path_factory.mktemp("checkout"), defaultdict[str, list[str]](list)
    shutil.copytree(EXAMPLES, checkout / "examples")
    for name in RUNS:
        program, *arguments = COMMANDS[name].split()
        module = [] if program == "python" else ["-m", "fkjoin"]
        printed[name].append(python(checkout, *module, *arguments))
    return Ran(checkout, printed)


def changes(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_every_example_is_in_the_list() -> None:
    assert {*COMMANDS, "notebooks"} == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    listed = README.partition("\n## Notebooks\n")[2].partition("\n## ")[0]
    notebooks = {path.stem for path in (EXAMPLES / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == notebooks


@pytest.mark.faults
@pytest.mark.spark
def test_orders(ran: Ran) -> None:
    found = changes(ran.checkout / "build/examples/orders/joined")
    assert {row["order_id"]: (row["amount"], row["name"], row["tier"]) for row in found} == {
        "o1": (10.0, "Ada Lovelace", "gold"),
        "o2": (25.0, "Ada Lovelace", "gold"),
        "o4": (80.0, None, None),
    }


@pytest.mark.nightly
@pytest.mark.spark
def test_regions(ran: Ran) -> None:
    (row,) = DeltaTable(ran.checkout / "build/examples/regions/table").to_pyarrow_table().to_pylist()
    assert row == {"region": "north", "items": 3, "revenue": 35.0}
    assert [change["items"] for change in changes(ran.checkout / "build/examples/regions/changes")] == [3]


@pytest.mark.nightly
@pytest.mark.spark
def test_sqlite(ran: Ran) -> None:
    """Also when it is run again."""
    wanted = ["('o1', 10.0, 'Ada Lovelace')", "('o2', 25.0, 'Ada Lovelace')", "('o4', 80.0, None)"]
    assert [[line for line in one.splitlines() if line.startswith("(")] for one in ran.printed["sqlite"]] == [wanted] * 2


@pytest.mark.nightly
@pytest.mark.spark
def test_debezium(ran: Ran) -> None:
    (printed,) = ran.printed["debezium"]
    rows = re.findall(r"^\|(\d+) *\|([\d.]+) *\|([\w ]+?) *\|", printed, re.MULTILINE)
    assert rows == [("1", "10.0", "Ada Lovelace"), ("2", "26.0", "Ada Lovelace")]
