"""A topology as an SVG picture: sources on the left, sinks on the right, rates on the arrows."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fkjoin.plan.describe.steps import Step, subtopology

_CHAR, _LINE, _PAD = 6.7, 16, 10
_GAP_X, _GAP_Y = 130, 26
_TITLES = {"source": "#dbeafe", "sink": "#dcfce7"}
_OPERATOR = "#fef3c7"

STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#111827}"
    ".title{font-weight:600}.about{fill:#6b7280}.box{fill:#f9fafb;stroke:#6b7280}"
    ".flow{fill:none;stroke:#6b7280;stroke-width:1.3;marker-end:url(#end)}"
    ".on-flow{paint-order:stroke;stroke:#fff;stroke-width:4px}.rate{font-weight:600;fill:#1d4ed8}"
)
_HEAD_OF_ARROWS = (
    '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="point" d="M0 0L8 4L0 8z" fill="#6b7280"/></marker>'
)


@dataclass(frozen=True)
class _Box:
    """The place of a step, and the lines in it."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]


def svg(
    steps: Sequence[Step],
    rates: Mapping[tuple[str, str], str] | None = None,
    *,
    by_hand: bool = False,
) -> str:
    """The picture.

    ``rates``: what to write on arrows, by step and what the table is to it: ``("fk_join joined",
    "left")``.  ``by_hand``: steps are buttons, with their kind and name as ``data-step``.
    """
    boxes = _placed(steps)
    width = max((box.x + box.width for box in boxes), default=0) + _PAD
    height = max((box.y + box.height for box in boxes), default=0) + _PAD
    tables = {step.name: box for step, box in zip(steps, boxes, strict=True) if step.kind != "sink"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="{"group" if by_hand else "img"}">'
        f"<style>{STYLE}</style><defs>{_HEAD_OF_ARROWS}</defs>"
    ]
    labels: list[str] = []
    for step, box in zip(steps, boxes, strict=True):
        for number, (role, name) in enumerate(step.reads, 1):
            y = box.y + box.height * number / (len(step.reads) + 1)
            parts.append(_flow(tables[name], box.x, y))
            rate = (rates or {}).get((f"{step.kind} {step.name}", role))
            labels.append(_text(box.x - 12, y - 5, role, "about on-flow", end=True))
            if rate is not None:
                labels.append(_text(box.x - 12, y + 13, rate, "rate on-flow", end=True))
    for step, box in zip(steps, boxes, strict=True):
        if by_hand:
            label = html.escape(f"{step.kind} {step.name}")
            button = f'tabindex="0" role="button" aria-label="{label}: its numbers"'
            parts.append(f'<g class="step" data-step="{label}" {button}>')
        parts.append(_rectangle(box, box.height, 'class="box"'))
        parts.append(_rectangle(box, _LINE + 6, _head(step.kind)))
        for number, line in enumerate(box.lines):
            y = box.y + _LINE * (number + 1) - 1 + (5 if number else 0)
            parts.append(_text(box.x + _PAD, y, line, "title" if not number else "about"))
        parts += ["</g>"] * by_hand
    return "".join([*parts, *labels, "</svg>"])


def _head(kind: str) -> str:
    style = kind if kind in _TITLES else "operator"
    return f'class="head {style}" fill="{_TITLES.get(kind, _OPERATOR)}" stroke="#6b7280"'


def _placed(steps: Sequence[Step]) -> list[_Box]:
    """Each step in a column right of all that it reads, one below the other."""
    numbers: dict[str, int] = {}
    for step in steps:
        before = [_column(numbers, name) for _, name in step.reads]
        numbers[f"{step.kind} {step.name}"] = 1 + max(before, default=-1)
    columns = [numbers[f"{step.kind} {step.name}"] for step in steps]
    texts = [_lines(step) for step in steps]
    widths: dict[int, float] = {}
    heights: dict[int, int] = {}
    sizes = []
    for column, lines in zip(columns, texts, strict=True):
        width, height = max(map(len, lines)) * _CHAR + 2 * _PAD, _LINE * len(lines) + 12
        widths[column] = max(widths.get(column, 0.0), width)
        heights[column] = heights.get(column, 0) + height + _GAP_Y
        sizes.append((width, height))
    starts, x = {}, float(_PAD)
    for column in sorted(widths):
        starts[column] = x
        x += widths[column] + _GAP_X
    tallest = max(heights.values(), default=0)
    below = {column: _PAD + (tallest - height) / 2 for column, height in heights.items()}
    boxes = []
    for column, lines, (width, height) in zip(columns, texts, sizes, strict=True):
        boxes.append(_Box(starts[column], below[column], width, height, lines))
        below[column] += height + _GAP_Y
    return boxes


def _column(numbers: Mapping[str, int], name: str) -> int:
    """Find the column of the table with that name, which may not be a sink."""
    tables = {label: number for label, number in numbers.items() if not label.startswith("sink ")}
    return max(number for label, number in tables.items() if label.partition(" ")[2] == name)


def _lines(step: Step) -> tuple[str, ...]:
    lines = [f"{step.kind} {step.name}"]
    if step.kind == "source":
        lines.append(subtopology(step.subtopology))
    if step.about:
        lines.append(_short(step.about if step.kind == "sink" else f"({step.about})"))
    lines += [f"{label}: {_short(text)}" for label, text in step.facts]
    for stage in step.stages:
        title = f"{subtopology(*stage.subtopologies)}, {stage.name}"
        times = f", {_short(stage.times)}" if stage.times else ""
        by = f"by {_short(stage.repartition_by)}" if stage.repartition_by else stage.input
        lines.append(f"▸ {title} {by}{times}")
    return tuple(lines)


def _short(text: str) -> str:
    return text if len(text) <= 36 else f"{text[:35]}…"


def _rectangle(box: _Box, height: float, style: str) -> str:
    size = f'width="{box.width:.0f}" height="{height:.0f}"'
    return f'<rect {style} x="{box.x:.0f}" y="{box.y:.0f}" {size} rx="5"/>'


def _flow(source: _Box, x: float, y: float) -> str:
    """An arrow from a box to where another begins."""
    from_x, from_y = source.x + source.width, source.y + source.height / 2
    bend = max(40.0, (x - from_x) / 2)
    curve = f"C{from_x + bend:.0f} {from_y:.0f} {x - bend:.0f} {y:.0f} {x:.0f} {y:.0f}"
    return f'<path class="flow" d="M{from_x:.0f} {from_y:.0f}{curve}"/>'


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}"{anchor}>{html.escape(text)}</text>'
