"""The notebooks: their code runs, and shows what the files show; the one that kills a job in ``make faults``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.notebooks import executed, kept, shown, shown_here
from tests.support.sampling import EVERY, sampled
from tests.support.sessions import small


@pytest.mark.faults
@pytest.mark.parametrize("name", sampled(["first_join", "exact_sums"], ["first_join"]))
def test_a_notebook_shows_what_it_shows(
    spark: SparkSession, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample runs in the session of the tests, and in ``make faults`` each notebook has a kernel of its own."""
    expected = shown(kept(name))
    assert len(expected) > 2
    if EVERY:
        found = shown(executed(name, tmp_path))
    else:
        small(spark, tmp_path)
        monkeypatch.setattr(SparkSession, "stop", lambda session: None)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        found = shown_here(name)
    assert found == expected
