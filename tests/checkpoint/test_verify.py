"""Problems that ``fkjoin state verify`` finds in stores that belong together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from fkjoin.checkpoint import upkeep

SPARK: Any = None


def store(stage: str) -> Any:
    name, identity = f"joined-{stage}", ("", {"fused": True})
    return SimpleNamespace(name=name, operator_name="joined", stage=stage, identity=identity)


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """What is found in each store, of which nothing is wrong alone."""
    frame = MagicMock()
    frame.cache.return_value = frame
    monkeypatch.setattr(upkeep, "_examined", lambda *_: frame)
    monkeypatch.setattr(upkeep, "_problems", lambda *_: [])
    monkeypatch.setattr(upkeep, "_compared", lambda *_: ["they differ"])
    return frame


@pytest.mark.parametrize(
    ("stages", "problems"),
    [
        (["rekey", "subscription"], ["they differ"]),
        (["rekey", "rekey", "subscription", "subscription"], ["they differ", "they differ"]),
        (["rekey", "rekey", "subscription"], ["joined-subscription: the query has 1 of it, and 2 of rekey"]),
        (["rekey"], []),
    ],
)
def test_stores_of_a_join_are_compared_in_pairs(frame: MagicMock, stages: list[str], problems: list[str]) -> None:
    """A join whose subscriptions are in another query has no store of that stage here."""
    assert upkeep._wrong(SPARK, [store(stage) for stage in stages]) == problems
    assert frame.cache.call_count == frame.unpersist.call_count == len(stages)


def test_examined_stores_are_let_go_if_one_cannot_be_compared(frame: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_compared", MagicMock(side_effect=RuntimeError("no workers")))
    with pytest.raises(RuntimeError, match="no workers"):
        upkeep._wrong(SPARK, [store("rekey"), store("subscription")])
    assert frame.unpersist.call_count == 2
