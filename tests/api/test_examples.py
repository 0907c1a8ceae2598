"""The examples are in their list; in ``make faults`` each does as its README says, and notebooks show what they show."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from fkjoin.jobs.job_file import read_job
from tests.support.notebooks import executed, kept, shown
from tests.support.places import ROOT
from tests.support.sessions import short_lived

EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text()
COMMANDS = dict(re.findall(r"^\| `(\w+)` \|.*\| `((?:fkjoin|python) [^`]+)` \|$", README, re.MULTILINE))


def program(checkout: Path, name: str) -> str:
    """Run the command of an example in a process of its own, and return what it prints."""
    word, *arguments = COMMANDS[name].split()
    module = [] if word == "python" else ["-m", "fkjoin"]
    command = [sys.executable, *module, *arguments]
    done = subprocess.run(command, cwd=checkout, env=short_lived(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def changes(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def require_orders(folder: Path) -> None:
    rows = {row["order_id"]: (row["amount"], row["name"], row["tier"]) for row in changes(folder)}
    assert rows == {
        "o1": (10.0, "Ada Lovelace", "gold"),
        "o2": (25.0, "Ada Lovelace", "gold"),
        "o4": (80.0, None, None),
    }


def test_every_example_is_in_the_list() -> None:
    assert {*COMMANDS, "notebooks"} == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    listed = README.partition("\n## Notebooks\n")[2].partition("\n## ")[0]
    notebooks = {path.stem for path in (EXAMPLES / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == notebooks


def test_the_job_of_orders_can_be_read() -> None:
    job = read_job(EXAMPLES / "orders" / "job.toml")
    assert (set(job.tables), set(job.sinks)) == ({"orders", "customers"}, {"joined"})


@pytest.mark.nightly
@pytest.mark.spark
def test_each_command_does_what_it_says(tmp_path: Path) -> None:
    """SQLite's is run again."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    names = ("orders", "regions", "sqlite", "sqlite", "debezium")
    printed = [program(tmp_path, name) for name in names]
    built = tmp_path / "build" / "examples"
    require_orders(built / "orders" / "joined")
    (row,) = DeltaTable(built / "regions" / "table").to_pyarrow_table().to_pylist()
    assert row == {"region": "north", "items": 3, "revenue": 35.0}
    assert [change["items"] for change in changes(built / "regions" / "changes")] == [3]
    wanted = ["('o1', 10.0, 'Ada Lovelace')", "('o2', 25.0, 'Ada Lovelace')", "('o4', 80.0, None)"]
    for text in printed[2:4]:
        assert [line for line in text.splitlines() if line.startswith("(")] == wanted
    rows = re.findall(r"^\|(\d+) *\|([\d.]+) *\|([\w ]+?) *\|", printed[4], re.MULTILINE)
    assert rows == [("1", "10.0", "Ada Lovelace"), ("2", "26.0", "Ada Lovelace")]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("name", ["first_join", "exact_sums"])
def test_a_notebook_shows_what_it_shows(name: str, tmp_path: Path) -> None:
    expected = shown(kept(name))
    assert len(expected) > 2
    assert shown(executed(name, tmp_path)) == expected
