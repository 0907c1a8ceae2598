"""The sinks that are tables, through the tests that users have for theirs; PostgreSQL's is in integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fkjoin.sinks import Delta
from fkjoin.testing import SinkContract


class TestDelta(SinkContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.at = tmp_path

    def make_sink(self, into: str) -> Delta:
        return Delta(self.at / into)

    def read_rows(self, into: str) -> list[dict[str, Any]]:
        return DeltaTable(self.at / into).to_pyarrow_table().to_pylist()
