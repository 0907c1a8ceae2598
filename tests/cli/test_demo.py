"""The demo: first run, second run, and what it says."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from fkjoin.cli import demo
from tests.support.places import ROOT
from tests.support.sessions import small


def test_the_demo_is_right_and_goes_on(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its rows, in fewer batches."""
    small(spark, tmp_path)
    monkeypatch.setattr(demo, "PARTS", 2)
    monkeypatch.setattr(demo, "FIRST_RUN", 1)
    said = io.StringIO()
    first, second = (demo.run_demo(tmp_path / "demo", Console(file=said, width=160), spark) for _ in range(2))
    assert (first.resumed, first.batches, first.wrong) == (False, 1, 0)
    assert (second.resumed, second.batches, second.wrong) == (True, 1, 0)
    assert first.rows > 3000
    for name in ("left-in", "right-in", "stale-dropped", "tombstones-suppressed", "idempotent-update-skip", "out"):
        assert first.count[name] > 0, name
    text = said.getvalue()
    assert "Continues from the checkpoint of an earlier run" in text
    equal = "the streamed table is equal to it: "
    assert f"{equal}{second.rows:,} rows." in text
    assert equal in (ROOT / "README.md").read_text()
    assert table_of_changes(spark, tmp_path / "demo").count() == second.rows


def table_of_changes(spark: SparkSession, folder: Path) -> DataFrame:
    """The joined table, as examples/README.md finds it in the demo's folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "examples" / "README.md").read_text(), re.DOTALL)
    lines = [line for line in code.splitlines() if "fkjoin.session(" not in line]
    names = {"spark": spark}
    exec("\n".join(lines).replace("fkjoin-demo", str(folder)), names)
    return names["table"]
