"""The notebook that reads topics, on a real broker; tests/api/test_notebooks.py has one of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import executed, kept, shown
from tests.support.sampling import EVERY

from .broker import Broker


@pytest.mark.faults
@pytest.mark.skipif(not EVERY, reason="a notebook starts a JVM: make faults")
def test_from_debezium_to_delta(broker: Broker, connector: str, tmp_path: Path) -> None:
    expected = shown(kept("debezium_to_delta"))
    assert len(expected) > 2
    book = executed("debezium_to_delta", tmp_path, {"kafka=True": f'jars="{connector}"'}, BROKER=broker.bootstrap)
    assert shown(book) == expected
