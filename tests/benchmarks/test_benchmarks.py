"""Workloads of the comparison with other engines, and the prediction of what a join takes.

How fast anything is, is no test's affair.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.operators import require_same
from benchmarks.queries import QUERIES, dated
from benchmarks.sizing import constants, main
from benchmarks.workload import write_phases
from tests.support.places import ROOT


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_a_workload_in_three_phases_and_a_recomputation(name: str, tmp_path: Path) -> None:
    query, out = QUERIES[name], tmp_path / "w.jsonl"
    write_phases(out, dated(query.phases(20, 2000, 200)))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    first, second, last = json.loads(Path(f"{out}.meta.json").read_text())["phase_end"]
    assert 0 < first < second < last == len(lines)
    assert [line["seq"] for line in lines] == list(range(last))
    wanted = query.wanted([lines])
    assert {(len(key), len(row)) for key, row in wanted.items()} == {(len(query.key), len(query.columns))}
    require_same(name, wanted, dict(wanted))
    del lines[first - 1 :]
    with pytest.raises(SystemExit, match=f"{name}: .* differ from a recomputation"):
        require_same(name, query.wanted([lines]), wanted)


def test_the_page_has_the_constants_that_are_used() -> None:
    used = set(re.findall(r'\bk\["(\w+)"\]', (ROOT / "benchmarks" / "sizing.py").read_text()))
    assert used | {"rate"} == set(constants())


def test_the_page_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sizing.md").read_text()
    (command,) = re.findall(r"^    python -m benchmarks\.(sizing predict --left 1000000000 (?:.*\\\n)*.*)$", page, re.M)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    assert main() == 0
    printed = capsys.readouterr().out
    missing = [line for line in printed.splitlines() if line and f"\n{line}\n" not in page]
    assert missing == []
    assert len(printed.splitlines()) > 20
