"""Problems that ``fkjoin state verify`` finds in stores that belong together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fkjoin.checkpoint import upkeep


class Frame:
    """An examined store, of which nothing is wrong alone."""

    def __init__(self) -> None:
        self.is_cached = False

    def cache(self) -> Frame:
        self.is_cached = True
        return self

    def unpersist(self) -> None:
        self.is_cached = False


def store(stage: str) -> Any:
    return SimpleNamespace(name=f"joined-{stage}", operator_name="joined", stage=stage, identity=("", {"fused": True}))


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    frames: list[Frame] = []

    def examined(*_: Any) -> Frame:
        frames.append(Frame())
        return frames[-1]

    monkeypatch.setattr(upkeep, "_examined", examined)
    monkeypatch.setattr(upkeep, "_problems", lambda *_: [])
    monkeypatch.setattr(upkeep, "_compared", lambda *_: ["they differ"])
    return frames


@pytest.mark.parametrize(
    ("stages", "problems"),
    [
        (["rekey", "subscription"], ["they differ"]),
        (["rekey", "rekey", "subscription", "subscription"], ["they differ", "they differ"]),
        (["rekey", "rekey", "subscription"], ["joined-subscription: the query has 1 of it, and 2 of rekey"]),
        (["rekey"], []),
    ],
)
def test_stores_of_a_join_are_compared_in_pairs(frames: list[Frame], stages: list[str], problems: list[str]) -> None:
    """A join whose subscriptions are in another query has no store of that stage here."""
    spark: Any = None
    assert upkeep._wrong(spark, [store(stage) for stage in stages]) == problems
    assert [frame.is_cached for frame in frames] == [False] * len(stages)


def test_examined_stores_are_let_go_if_one_cannot_be_compared(frames: list[Frame], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> list[str]:
        raise RuntimeError("no workers")

    monkeypatch.setattr(upkeep, "_compared", fails)
    spark: Any = None
    with pytest.raises(RuntimeError, match="no workers"):
        upkeep._wrong(spark, [store("rekey"), store("subscription")])
    assert [frame.is_cached for frame in frames] == [False, False]
