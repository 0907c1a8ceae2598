"""A topology as an SVG picture: sources on the left, sinks on the right, and on the arrows what flows."""

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
    "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#111827}.title{font-weight:600}.about{fill:#6b7280}"
    ".box{fill:#f9fafb;stroke:#6b7280}.flow{fill:none;stroke:#6b7280;stroke-width:1.3;marker-end:url(#end)}"
    ".on-flow{paint-order:stroke;stroke:#fff;stroke-width:4px}.rate{font-weight:600;fill:#1d4ed8}"
)


@dataclass(frozen=True)
class _Box:
    """The place of a step, and the lines in it."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]


def svg(steps: Sequence[Step], rates: Mapping[tuple[str, str], str] | None = None, *, by_hand: bool = False) -> str:
    """The picture.

    ``rates``: what to write on arrows, by step and what the table is to it: ``("fk_join joined", "left")``.  ``by_hand``: steps
    are buttons, with their kind and name as ``data-step``.
    """
    boxes = _placed(steps)
    width = max((box.x + box.width for box in boxes), default=0) + _PAD
    height = max((box.y + box.height for box in boxes), default=0) + _PAD
    made = {step.name: box for step, box in zip(steps, boxes, strict=True) if step.kind != "sink"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="{"group" if by_hand else "img"}"><style>{STYLE}</style><defs>'
        '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="point" d="M0 0L8 4L0 8z" fill="#6b7280"/></marker></defs>'
    ]
    labels: list[str] = []
    for step, box in zip(steps, boxes, strict=True):
        for place, (role, name) in enumerate(step.reads, 1):
            y = box.y + box.height * place / (len(step.reads) + 1)
            parts.append(_flow(made[name], box.x, y))
            rate = (rates or {}).get((f"{step.kind} {step.name}", role))
            labels.append(_text(box.x - 12, y - 5, role, "about on-flow", end=True))
            if rate is not None:
                labels.append(_text(box.x - 12, y + 13, rate, "rate on-flow", end=True))
    for step, box in zip(steps, boxes, strict=True):
        if by_hand:
            label = html.escape(f"{step.kind} {step.name}")
            parts.append(f'<g class="step" data-step="{label}" tabindex="0" role="button" aria-label="{label}: its numbers">')
        parts.append(_rectangle(box, box.height, 'class="box"'))
        parts.append(_rectangle(box, _LINE + 6, _head(step.kind)))
        for number, line in enumerate(box.lines):
            y = box.y + _LINE * (number + 1) - 1 + (5 if number else 0)
            parts.append(_text(box.x + _PAD, y, line, "title" if not number else "about"))
        parts += ["</g>"] * by_hand
    return "".join([*parts, *labels, "</svg>"])


def _head(kind: str) -> str:
    return f'class="head {kind if kind in _TITLES else "operator"}" fill="{_TITLES.get(kind, _OPERATOR)}" stroke="#6b7280"'


def _placed(steps: Sequence[Step]) -> list[_Box]:
    """Each step in a column right of all that it reads, one below the other."""
    column: dict[str, int] = {}
    for step in steps:
        column[f"{step.kind} {step.name}"] = 1 + max((_column(column, name) for _, name in step.reads), default=-1)
    columns = [column[f"{step.kind} {step.name}"] for step in steps]
    lines = [_lines(step) for step in steps]
    widths = [max(map(len, of)) * _CHAR + 2 * _PAD for of in lines]
    starts, x = {}, float(_PAD)
    for number in sorted(set(columns)):
        starts[number] = x
        x += max(width for width, at in zip(widths, columns, strict=True) if at == number) + _GAP_X
    heights = [_LINE * len(of) + 12 for of in lines]
    totals = {
        number: sum(height + _GAP_Y for height, at in zip(heights, columns, strict=True) if at == number) for number in starts
    }
    below = {number: _PAD + (max(totals.values()) - total) / 2 for number, total in totals.items()}
    boxes = []
    for at, width, height, of in zip(columns, widths, heights, lines, strict=True):
        boxes.append(_Box(starts[at], below[at], width, height, of))
        below[at] += height + _GAP_Y
    return boxes


def _column(column: Mapping[str, int], name: str) -> int:
    """Find the column of the table with that name, which may not be a sink."""
    return max(at for label, at in column.items() if label.partition(" ")[2] == name and not label.startswith("sink "))


def _lines(step: Step) -> tuple[str, ...]:
    about = [f"({step.about})"] if step.about and step.kind != "sink" else [step.about] if step.about else []
    facts = [f"{label}: {_short(what)}" for label, what in step.facts]
    stages = [
        f"▸ {subtopology(*stage.subtopologies)}, {stage.name} by {_short(stage.repartition_by)}"
        + (f", {_short(stage.times)}" if stage.times else "")
        for stage in step.stages
    ]
    begun = [subtopology(step.subtopology)] * (step.kind == "source")
    return (f"{step.kind} {step.name}", *begun, *map(_short, about), *facts, *stages)


def _short(text: str) -> str:
    return text if len(text) <= 36 else f"{text[:35]}…"


def _rectangle(box: _Box, height: float, style: str) -> str:
    return f'<rect {style} x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{height:.0f}" rx="5"/>'


def _flow(source: _Box, x: float, y: float) -> str:
    """An arrow from a box to where another begins."""
    from_x, from_y = source.x + source.width, source.y + source.height / 2
    bend = max(40.0, (x - from_x) / 2)
    way = f"M{from_x:.0f} {from_y:.0f}C{from_x + bend:.0f} {from_y:.0f} {x - bend:.0f} {y:.0f} {x:.0f} {y:.0f}"
    return f'<path class="flow" d="{way}"/>'


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}"{anchor}>{html.escape(text)}</text>'
