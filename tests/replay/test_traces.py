"""The golden traces through the stages in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replay.in_memory import replay_in_memory
from tests.support.replay.traces import assert_agrees, expected, read_trace, trace_files
from tests.support.sampling import sampled


def test_there_are_traces() -> None:
    assert len(trace_files()) == 70


@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_one_event_per_batch_gives_the_expected_results(path: Path) -> None:
    assert replay_in_memory(read_trace(path)) == expected(path)


@pytest.mark.faults
@pytest.mark.parametrize("size", sampled([2, 3, 7, 1000], [7]))
def test_any_cut_gives_the_final_table_and_a_subsequence(size: int) -> None:
    for path in trace_files():
        assert_agrees(replay_in_memory(read_trace(path), size), expected(path))
