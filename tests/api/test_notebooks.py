"""The notebooks: their code runs, and shows what the files show; the one that kills a job in ``make faults``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import executed, kept, shown
from tests.support.sampling import sampled


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.parametrize("name", sampled(["first_join", "exact_sums"], ["first_join"]))
def test_a_notebook_shows_what_it_shows(name: str, tmp_path: Path) -> None:
    expected = shown(kept(name))
    assert len(expected) > 2
    assert shown(executed(name, tmp_path)) == expected
