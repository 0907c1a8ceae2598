"""Golden traces: a header that says how to join, then one change a line, in the order of one log.

``{"join": "inner"|"left", "extractor": "field"|"key-prefix"}``, then ``{"side", "key", "value", "ts"}``;
a null value is a tombstone.  ``field``: the foreign key is the left value's member ``fk`` (absent or
null: none); ``key-prefix``: the left key up to its first ``:`` (no ``:``: none).

Beside each trace lies its outcome: a line for each result, then the joined table at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkjoin.stages.join_rows import How
from tests.support.places import ROOT

TRACES = ROOT / "tests" / "traces"


@dataclass(frozen=True, slots=True)
class TraceChange:
    """One change; ``value`` is JSON text, None for a tombstone."""

    index: int
    left: bool
    key: str
    foreign_key: str | None
    value: str | None
    ts: int


@dataclass(frozen=True, slots=True)
class Trace:
    how: How
    events: tuple[TraceChange, ...]

    def batches(self, size: int) -> Iterator[tuple[TraceChange, ...]]:
        for start in range(0, len(self.events), size):
            yield self.events[start : start + size]


def trace_files() -> list[Path]:
    return sorted(TRACES.glob("*.in.jsonl"))


def read_trace(path: Path) -> Trace:
    header, *changes = _objects(path)
    events = [_event(index, change, header["extractor"]) for index, change in enumerate(changes)]
    return Trace(header["join"], tuple(events))


def expected(path: Path) -> list[dict[str, Any]]:
    """The outcome that a trace should have."""
    return _objects(path.with_name(path.name.replace(".in.", ".expect.")))


def outcome(results: Iterable[tuple[int, str, Any, int]]) -> list[dict[str, Any]]:
    """The outcome of results: the last event of the batch, key, joined value or None, timestamp."""
    lines: list[dict[str, Any]] = []
    final: dict[str, Any] = {}
    for after, key, value, ts in results:
        line = {"after": after, "key": key, "value": value}
        if value is None:
            final.pop(key, None)
        else:
            final[key] = value
            line["ts"] = ts
        lines.append(line)
    return [*lines, {"final": final}]


def joined_value(left: str, right: str | None) -> dict[str, Any]:
    """The joined value, from the JSON texts of its rows."""
    return {"left": json.loads(left), "right": right and json.loads(right)}


def assert_agrees(outcome: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Assert that the final tables are the same, and results some of those wanted, in their order."""
    assert outcome[-1] == wanted[-1]
    results = _by_key(wanted[:-1])
    for key, values in _by_key(outcome[:-1]).items():
        rest = iter(results.get(key, []))
        assert all(value in rest for value in values), (key, values)


def _by_key(results: list[dict[str, Any]]) -> dict[str, list[tuple[Any, int | None]]]:
    """Each key's values and timestamps, without the events that they come after."""
    values: dict[str, list[tuple[Any, int | None]]] = {}
    for result in results:
        values.setdefault(result["key"], []).append((result["value"], result.get("ts")))
    return values


def _objects(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def _event(index: int, change: dict[str, Any], extractor: str) -> TraceChange:
    left, key, value = change["side"] == "left", change["key"], change["value"]
    foreign_key = _foreign_key(extractor, key, value) if left and value is not None else None
    text = None if value is None else json.dumps(value, ensure_ascii=False)
    return TraceChange(index, left, key, foreign_key, text, change["ts"])


def _foreign_key(extractor: str, key: str, value: Any) -> str | None:
    if extractor == "key-prefix":
        prefix, colon, _rest = key.partition(":")
        return prefix if colon else None
    return value.get("fk") if isinstance(value, dict) else None
