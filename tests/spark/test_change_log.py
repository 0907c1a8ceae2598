"""A bucket's change log in Spark's state: what is written is sent by a thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fkjoin.codec.messages import pack
from fkjoin.spark.change_log import SparkLog, packed_metas, unpacked_metas
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import RekeySpec, StateSpec, WorkerStage
from fkjoin.state.errors import CorruptLogError, StoreMismatchError
from tests.support.engine import Mapped, Value
from tests.support.oracle import Change, messages

PATIENCE_S = 30


class Asked:
    """States that record the order of their calls, and answer no write before they may."""

    def __init__(self, fails: str = "") -> None:
        self.order: list[str] = []
        self.may, self.fails = threading.Event(), fails
        self.meta, self.segments = Value(), Mapped()

    def __getattr__(self, name: str) -> Any:
        state: Any = self.meta if name in ("get", "update") else self.segments

        def call(*arguments: Any) -> Any:
            if name in ("update", "updateValue", "removeKey") and not self.may.wait(PATIENCE_S):
                raise TimeoutError("nobody let it be written")
            self.order.append(name)
            if name == self.fails:
                raise RuntimeError(f"{name} failed")
            return getattr(state, name)(*arguments)

        return call


def test_who_writes_goes_on_and_who_leaves_has_written() -> None:
    asked = Asked()
    with SparkLog(asked, asked) as state:
        log = state.of(0)
        assert log.meta() is None
        log.put_segment(0, b"zero")
        log.put_segment(1, b"one")
        log.remove_segment(0)
        log.set_meta(b"meta")
        assert log.meta() == b"meta"  # no state need be asked
        assert asked.order == ["get"]
        asked.may.set()
    assert asked.order == ["get", "updateValue", "updateValue", "removeKey", "update"]
    assert asked.meta.get() == (b"meta",)
    assert asked.segments == {(1,): (b"one",)}


def test_a_read_waits_for_the_writes_before_it() -> None:
    asked = Asked()
    with SparkLog(asked, asked) as state:
        log = state.of(0)
        log.put_segment(7, b"seven")
        threading.Timer(0.1, asked.may.set).start()
        assert log.segment(7) == b"seven"
    assert asked.order == ["updateValue", "getValue"]


@pytest.mark.parametrize("fails", ["updateValue", "removeKey", "update"])
def test_a_write_that_fails_is_the_last_and_is_told_by_the_next_read_and_at_the_end(fails: str) -> None:
    asked = Asked(fails)
    asked.segments[0,] = (b"zero",)
    asked.may.set()
    state = SparkLog(asked, asked)
    log = state.of(0)
    assert log.meta() is None
    log.put_segment(1, b"one")
    log.remove_segment(0)
    log.set_meta(b"meta")
    with pytest.raises(RuntimeError, match=f"{fails} failed"):
        log.segment(0)
    with pytest.raises(RuntimeError, match=f"{fails} failed"):
        state.__exit__(None, None, None)
    assert asked.order[-1] == fails


def test_an_error_of_the_work_itself_is_the_one_that_is_raised() -> None:
    asked = Asked("updateValue")
    threading.Timer(0.1, asked.may.set).start()
    state = SparkLog(asked, asked)
    state.of(0).put_segment(1, b"one")
    state.__exit__(ValueError, None, None)
    assert asked.order == ["updateValue"]  # and nothing is under way any more


def test_meta_records_that_are_cut_short_are_refused() -> None:
    whole = packed_metas([b"", b"some", b"other"])
    assert unpacked_metas(whole) == [b"", b"some", b"other"]
    for size in set(range(1, len(whole))) - {1, 5, 13}:
        with pytest.raises(CorruptLogError, match=r"meta records end after \d+ of \d+ bytes: restore the checkpoint from a"):
            unpacked_metas(whole[:size])


def test_stages_of_an_operator_have_logs_of_their_own_and_those_of_other_stages_are_refused() -> None:
    meta, segments = Value(), Mapped()
    with SparkLog(meta, segments, 3) as state:
        for stage in range(3):
            state.of(stage).put_segment(7, b"segment of %d" % stage)
            state.of(stage).set_meta(b"meta of %d" % stage)
    with SparkLog(meta, segments, 3) as state:
        state.of(1).remove_segment(7)
        state.of(1).set_meta(b"later")
    with SparkLog(meta, segments, 3) as state:
        assert [state.of(stage).segment(7) for stage in range(3)] == [b"segment of 0", None, b"segment of 2"]
        assert [state.of(stage).meta() for stage in range(3)] == [b"meta of 0", b"later", b"meta of 2"]
    words = "the state has 3 stages, and the operator has 2: use the optimizer's rules"
    with pytest.raises(StoreMismatchError, match=words), SparkLog(meta, segments, 2) as state:
        state.of(0).meta()


def test_results_are_handed_on_before_the_log_is_written(tmp_path: Path) -> None:
    spec = RekeySpec(StateSpec("join", 1, 1000, str(tmp_path), "{}"))
    processor = StageProcessor(WorkerStage(spec))
    asked = processor._meta = processor._segments = Asked()
    payload = pack(messages([Change(True, b"a", b"row", 1, b"x")], left=True))
    columns = {"bucket": [0], "payload": [payload], "counter": [None], "count": [0]}
    frame = pd.DataFrame(columns | {"batch_ms": [0]})
    results = processor.handleInputRows((0,), iter([frame]), None)
    assert sum(next(results)["payload"].notna())
    assert set(asked.order) == {"get"}
    asked.may.set()
    assert not list(results)
    assert [name for name in asked.order if name != "get"] == ["updateValue", "update"]
