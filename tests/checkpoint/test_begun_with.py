"""The operators that a checkpoint was begun with, where Spark does not give all of them back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fkjoin.checkpoint import begun_with
from fkjoin.sessions.access import UnreadableError


def test_a_query_with_a_function_that_cannot_be_read_back_starts_and_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stores compare it in its place.  No file is read or written, or this would ask a session that is none."""

    def unreadable(frame: Any) -> Iterator[Any]:
        yield SimpleNamespace(name="joined", state=SimpleNamespace(identity=""))
        raise UnreadableError("kept apart")

    monkeypatch.setattr(begun_with, "specs_in", unreadable)
    begun_with.require_begun_with(SimpleNamespace(sparkSession=None), "ck", lambda: "a sink")()  # type: ignore[arg-type]
