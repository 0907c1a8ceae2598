"""The examples, each as its README says."""

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

from tests.support.places import ROOT
from tests.support.sessions import short_lived

EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text()
COMMANDS = dict(re.findall(r"^\| `(\w+)` \|.*\| `((?:fkjoin|python) [^`]+)` \|$", README, re.MULTILINE))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return tmp_path


def run(checkout: Path, name: str) -> str:
    """What the example's command prints."""
    program, *arguments = COMMANDS[name].split()
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "fkjoin"]
    done = subprocess.run([*start, *arguments], cwd=checkout, env=short_lived(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def changes(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_every_example_is_in_the_list() -> None:
    assert {*COMMANDS, "notebooks"} == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    listed = README.partition("\n## Notebooks\n")[2].partition("\n## ")[0]
    notebooks = {path.stem for path in (EXAMPLES / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == notebooks


@pytest.mark.spark
def test_orders(checkout: Path) -> None:
    run(checkout, "orders")
    found = changes(checkout / "build/examples/orders/joined")
    assert {row["order_id"]: (row["amount"], row["name"], row["tier"]) for row in found} == {
        "o1": (10.0, "Ada Lovelace", "gold"),
        "o2": (25.0, "Ada Lovelace", "gold"),
        "o4": (80.0, None, None),
    }


@pytest.mark.spark
def test_regions(checkout: Path) -> None:
    run(checkout, "regions")
    (row,) = DeltaTable(checkout / "build/examples/regions/table").to_pyarrow_table().to_pylist()
    assert row == {"region": "north", "items": 3, "revenue": 35.0}
    assert [change["items"] for change in changes(checkout / "build/examples/regions/changes")] == [3]


@pytest.mark.spark
def test_sqlite(checkout: Path) -> None:
    wanted = ["('o1', 10.0, 'Ada Lovelace')", "('o2', 25.0, 'Ada Lovelace')", "('o4', 80.0, None)"]
    for _ in range(2):
        assert [line for line in run(checkout, "sqlite").splitlines() if line.startswith("(")] == wanted


@pytest.mark.spark
def test_debezium(checkout: Path) -> None:
    printed = run(checkout, "debezium")
    rows = re.findall(r"^\|(\d+) *\|([\d.]+) *\|([\w ]+?) *\|", printed, re.MULTILINE)
    assert rows == [("1", "10.0", "Ada Lovelace"), ("2", "26.0", "Ada Lovelace")]
