"""The golden traces through the stages in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkjoin import TraceError
from fkjoin.replay.in_memory import replay_in_memory
from fkjoin.replay.traces import read_trace
from tests.support.traces import assert_agrees, expected, trace_files


def test_there_are_traces() -> None:
    assert len(trace_files()) == 70


@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_one_event_per_batch_gives_the_expected_lines(path: Path) -> None:
    assert list(replay_in_memory(read_trace(path))) == expected(path)


@pytest.mark.parametrize("size", [2, 3, 7, 1000])
def test_any_cut_gives_the_final_table_and_a_subsequence(size: int) -> None:
    for path in trace_files():
        assert_agrees(list(replay_in_memory(read_trace(path), size)), expected(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ('{"join": "outer", "extractor": "field"}\n', ":1: the header must be like"),
        ('{"join": "inner", "extractor": "field"}\n{"side": "up"}\n', ':2: "side" must be "left" or "right"'),
        ('{"join": "inner", "extractor": "field"}\n\nnot json\n', ":2: not JSON"),
        ('{"join": "inner", "extractor": "field"}\n[1]\n', ":2: must be a JSON object"),
        (
            '{"join": "inner", "extractor": "field"}\n{"side": "left", "key": 1, "value": null, "ts": 1}\n',
            '"key" must be a string',
        ),
        (
            '{"join": "inner", "extractor": "field"}\n{"side": "left", "key": "k", "value": {"fk": 3}, "ts": 1}\n',
            'the foreign key "fk" must be a string or null, it is 3',
        ),
        (
            '{"join": "inner", "extractor": "field"}\n{"side": "left", "key": "k", "value": null, "ts": "now"}\n',
            '"ts" must be a whole number',
        ),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=says.replace("(", "\\(")):
        read_trace(path)


def test_events_without_a_key_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "null-key.jsonl"
    path.write_text(
        '{"join": "left", "extractor": "field"}\n'
        '{"side": "left", "key": null, "value": {"fk": "a"}, "ts": 1}\n'
        '{"side": "left", "key": "k", "value": {"fk": "a"}, "ts": 2}\n'
    )
    got = list(replay_in_memory(read_trace(path)))
    assert got == [
        '{"after": 1, "key": "k", "value": {"left": {"fk": "a"}, "right": null}, "ts": 2}',
        '{"final": {"k": {"left": {"fk": "a"}, "right": null}}}',
    ]
