"""Trace files: a header line that says how to join, then one change a line, in the order of one log.

``{"join": "inner"|"left", "extractor": "field"|"key-prefix"}``, then ``{"side", "key", "value", "ts"}``; a null value is
a tombstone.  ``field``: the foreign key is the left value's member ``fk`` (absent or null: none); ``key-prefix``: the
left key up to its first ``:`` (no ``:``: none).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fkjoin.errors import TraceError
from fkjoin.stages import How


@dataclass(frozen=True, slots=True)
class TraceChange:
    """One change; ``value`` is JSON text, None for a tombstone."""

    index: int
    left: bool
    key: str | None
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


def read_trace(path: Path) -> Trace:
    """Parse a trace file; ``TraceError`` names the line that is wrong."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty: its first line must be a header such as " + _EXAMPLE)
    header = _object(path, 1, lines[0])
    how, extractor = header.get("join"), header.get("extractor")
    if how not in ("inner", "left") or extractor not in _EXTRACTORS:
        raise TraceError(f"{path}:1: the header must be like {_EXAMPLE}, it is {lines[0][:200]}")
    extract = _EXTRACTORS[extractor]
    events = tuple(_event(path, number, line, extract) for number, line in enumerate(lines[1:], 2))
    return Trace(cast(How, how), events)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_EXAMPLE = '{"join": "inner", "extractor": "field"}'


def _event(path: Path, number: int, line: str, extract: Callable[[str, Any], str | None]) -> TraceChange:
    data = _object(path, number, line)
    side, key, value, ts = (data.get(name) for name in ("side", "key", "value", "ts"))
    if side not in ("left", "right"):
        raise TraceError(f'{path}:{number}: "side" must be "left" or "right", it is {dumps(side)}')
    if key is not None and not isinstance(key, str):
        raise TraceError(f'{path}:{number}: "key" must be a string, it is {dumps(key)}')
    if not isinstance(ts, int) or isinstance(ts, bool) or not -(1 << 63) < ts < 1 << 63:
        raise TraceError(f'{path}:{number}: "ts" must be a whole number of 64 bits, it is {dumps(ts)}')
    left = side == "left"
    foreign_key = extract(key, value) if left and key is not None and value is not None else None
    if foreign_key is not None and not isinstance(foreign_key, str):
        raise TraceError(f'{path}:{number}: the foreign key "fk" must be a string or null, it is {dumps(foreign_key)}')
    return TraceChange(number - 2, left, key, foreign_key, None if value is None else dumps(value), ts)


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise TraceError(f"{path}:{number}: must be a JSON object, it is {line[:200]}")
    return data


def _field(_: str, value: Any) -> Any:
    return value.get("fk") if isinstance(value, dict) else None


def _key_prefix(key: str, _: Any) -> str | None:
    prefix, colon, _rest = key.partition(":")
    return prefix if colon else None


_EXTRACTORS: dict[str, Callable[[str, Any], Any]] = {"field": _field, "key-prefix": _key_prefix}
