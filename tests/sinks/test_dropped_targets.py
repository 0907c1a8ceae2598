"""Targets that are gone when a query starts: refused if the checkpoint has batches, made if it has none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from fkjoin.errors import FkJoinError
from fkjoin.sinks import Delta, Iceberg, restored
from fkjoin.sinks.table_sink import BatchId
from tests.support.sinks import lake

SCHEMA = pa.schema([("id", pa.string())])


class Log:
    """The batches of a checkpoint, all of them done."""

    done = -1

    def __init__(self, *_: Any) -> None:
        self.last = self.done

    def has(self, mark: Any) -> bool:
        return mark.number <= self.last


def start(sink: Any, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the sink with a checkpoint whose last batch is ``done``, and prepare it."""
    for name, stub in {"begun": True, "query_id": "q", "_noted": {}}.items():
        monkeypatch.setattr(restored, name, lambda *_, stub=stub: stub)
    monkeypatch.setattr(restored, "BatchLog", type("At", (Log,), {"done": done}))
    assert restored.ahead(None, "/ck", {"": sink}, "fail") == []
    sink.prepare(SCHEMA, ("id",))


def delta(folder: Path) -> tuple[Any, Callable[[], object]]:
    return Delta(folder / "delta"), lambda: shutil.rmtree(folder / "delta")


def iceberg(folder: Path) -> tuple[Any, Callable[[], object]]:
    options = lake(folder)
    return Iceberg("shop.it", options=options), lambda: load_catalog("default", **options).drop_table("shop.it")


@pytest.mark.parametrize("made", [delta, iceberg])
def test_a_dropped_target_is_refused_if_the_checkpoint_has_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], Any]
) -> None:
    sink, drop = made(tmp_path)
    none = pa.table({"id": []}, SCHEMA)
    start(sink, -1, monkeypatch)
    sink.apply(BatchId("q", 0), none, none)
    start(sink, 0, monkeypatch)  # no batch had rows, and none is known
    sink.apply(BatchId("q", 1), pa.table({"id": ["a"]}, SCHEMA), none)
    start(sink, 1, monkeypatch)
    drop()
    with pytest.raises(FkJoinError, match=r"/ck is at batch 1, and .* is not there: made anew it would lack .* Restore it, or"):
        start(sink, 1, monkeypatch)
    assert not sink.is_there(None), "a refusal makes nothing"
    start(sink, -1, monkeypatch)
    assert sink.last_batch("q") is None
