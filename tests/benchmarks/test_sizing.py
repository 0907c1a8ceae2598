"""The prediction of what a join takes: its constants, its arithmetic, and what the page on sizing shows of it."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import sizing
from benchmarks.sizing import Size, compared, constants, expected, main, measure
from tests.support.places import ROOT

SMALL = Size(left=1_000_000, right=200_000, rate=1000)


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


def test_seconds_are_held_to_the_speed_of_the_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = SMALL, replace(SMALL, left=2_000_000)
    slow = [{**expected(size), "updates_per_s": 10_000.0, "rebuild_s": 3 * expected(size)["rebuild_s"]} for size in sizes]
    assert {round(differs, 9) for _, differs in compared(list(zip(sizes, slow, strict=True)))} == {0}
    slow[1] |= {"updates_per_s": 5000.0, "index_bytes": 1.2 * slow[1]["index_bytes"]}
    found = [round(differs, 9) for _, differs in compared(list(zip(sizes, slow, strict=True)))]
    assert [differs for differs in found if differs] == [0.2, -0.5]


@pytest.mark.parametrize(("part", "code"), [(1.2, 0), (1.3, 1), (0.7, 1)])
def test_a_measurement_that_differs_ends_with_1(part: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(size: Size, folder: Path) -> dict[str, float]:
        return expected(size) | ({"peak_mib": part * expected(size)["peak_mib"]} if size.left == 500 else {})

    monkeypatch.setattr(sizing, "measured", found)
    assert measure([200, 500]) == code
