"""The demo: first run, second run, and what it says."""

from __future__ import annotations

import io
import re
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from fkjoin.cli.demo import FIRST_RUN, PARTS, run_demo
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from tests.support.places import ROOT


def test_the_demo_is_right_and_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PARTITIONS, "2")
    spark.conf.set(BUCKETS, "2")
    spark.conf.set(INDEX_DIR, str(tmp_path / "index"))
    said = io.StringIO()
    first = run_demo(tmp_path / "demo", Console(file=said, width=160), spark)
    second = run_demo(tmp_path / "demo", Console(file=said, width=160), spark)
    assert (first.resumed, first.batches, first.wrong) == (False, FIRST_RUN, 0)
    assert (second.resumed, second.batches, second.wrong) == (True, PARTS - FIRST_RUN, 0)
    assert first.rows > 3000
    for name in ("left-in", "right-in", "stale-dropped", "tombstones-suppressed", "idempotent-update-skip", "out"):
        assert first.count[name] > 0, name
    text = said.getvalue()
    assert "Goes on from the checkpoint of an earlier run" in text
    assert f"the streamed table is equal to it: {second.rows:,} rows." in text
    assert str(tmp_path / "demo" / "joined") in text
    assert str(tmp_path / "demo" / "checkpoint") in text
    assert table_of_changes(spark, tmp_path / "demo").count() == second.rows


def table_of_changes(spark: SparkSession, folder: Path) -> DataFrame:
    """The joined table, as examples/README.md finds it in the demo's folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "examples" / "README.md").read_text(), re.DOTALL)
    lines = [line for line in code.splitlines() if "fkjoin.session(" not in line]
    names = {"spark": spark}
    exec("\n".join(lines).replace("fkjoin-demo", str(folder)), names)
    return names["table"]
