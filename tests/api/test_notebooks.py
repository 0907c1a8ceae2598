"""The notebooks of files: each runs in a kernel of its own, and shows what its file shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import executed, kept, shown


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("name", ["first_join", "exact_sums"])
def test_a_notebook_shows_what_it_shows(name: str, tmp_path: Path) -> None:
    texts = shown(kept(name))
    assert len(texts) > 2
    assert shown(executed(name, tmp_path)) == texts
