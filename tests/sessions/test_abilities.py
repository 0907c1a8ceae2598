"""Abilities of a session's Spark, and the refusals by name of one that lacks them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException

from fkjoin.errors import SessionError
from fkjoin.sessions.abilities import CONNECT


class Server:
    """A session of a server that analyzes an operator, or refuses it."""

    version = "4.0.5"

    def __init__(self, *columns: str) -> None:
        self._columns = list(columns)

    def range(self, end: int) -> Any:
        return SimpleNamespace(groupBy=lambda *_: self)

    def transformWithStateInPandas(self, *_: Any) -> Any:  # noqa: N802
        return self

    @property
    def columns(self) -> list[str]:
        if not self._columns:
            raise AnalysisException("Function with EvalType: 211 is not supported")
        return self._columns


def test_both_sides_of_spark_connect_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.group import GroupedData

    client, server = CONNECT
    newer: Any = Server("id")
    server.require(newer)
    older: Any = Server()
    with pytest.raises(SessionError, match=r"a server of Spark Connect needs Spark 4\.1 or newer, and this is 4\.0\.5; start"):
        server.require(older)
    if hasattr(GroupedData, "transformWithStateInPandas"):
        client.require(newer)
        monkeypatch.delattr(GroupedData, "transformWithStateInPandas")
    with pytest.raises(SessionError, match=f"a client of Spark Connect .* this is {pyspark.__version__}; pip install"):
        client.require(newer)
