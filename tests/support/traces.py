"""The golden traces, and what makes outputs agree with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

TRACES = ROOT / "tests" / "traces"


def trace_files() -> list[Path]:
    return sorted(TRACES.glob("*.in.jsonl"))


def expected(path: Path) -> list[str]:
    return path.with_name(path.name.replace(".in.", ".expect.")).read_text(encoding="utf-8").split("\n")[:-1]


def is_subsequence(short: list[Any], long: list[Any]) -> bool:
    rest = iter(long)
    return all(item in rest for item in short)


def by_key(lines: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Each key's outputs, without the place where they came."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, lines):
        found.setdefault(line["key"], []).append({"value": line["value"], "ts": line.get("ts")})
    return found


def assert_agrees(got: list[str], want: list[str]) -> None:
    """Assert that the final tables are the same, and outputs are some of those expected, in their order."""
    assert json.loads(got[-1]) == json.loads(want[-1])
    outputs = by_key(want[:-1])
    for key, found in by_key(got[:-1]).items():
        assert is_subsequence(found, outputs.get(key, [])), (key, found)
