"""Topologies drawn: as text, as JSON, as Mermaid and as a picture, all from one list of steps."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, get_args

from fkjoin.errors import TopologyError
from fkjoin.plan.base import Node
from fkjoin.plan.describe.picture import svg
from fkjoin.plan.describe.steps import Running, Step, steps_of, subtopology

Form = Literal["text", "json", "mermaid", "svg"]

_SHAPES = {"sink": ("[\\", "\\]"), "source": ("[/", "/]")}
"""Mermaid's brackets around steps without stages."""


def draw(node: Node, running: Sequence[Running], form: str = "text") -> str:
    """The topology that ends in ``node``, sources first, with the stages that are ``running``.

    Raises ``TopologyError`` if ``form`` is not a ``Form``.
    """
    return drawn(steps_of([node], running), form)


def drawn(steps: Sequence[Step], form: str = "text") -> str:
    """The steps in the form that is wanted; ``TopologyError`` if it is not a ``Form``."""
    if form not in get_args(Form):
        raise TopologyError(f'format: {form!r} is not one of "text", "json", "mermaid", "svg"')
    if form == "json":
        return json.dumps([asdict(step) for step in steps], ensure_ascii=False, indent=1)
    if form == "text":
        return "\n".join(map(_text, steps))
    return _mermaid(steps) if form == "mermaid" else svg(steps)


def _text(step: Step) -> str:
    width = 11 if step.kind == "source" else 13
    about = f"({step.about})" if step.about and step.kind != "sink" else step.about
    lines = [f"{step.kind} {step.name}  {about}".rstrip()]
    if step.kind == "source":
        lines.append(f"  {subtopology(step.subtopology)}")
    lines += [f"  {label:<{width}}{text}" for label, text in (*step.reads, *step.facts)]
    for stage in step.stages:
        title = f"{subtopology(*stage.subtopologies)}  {stage.name:<14}"
        through = f" through topic {stage.topic}" if stage.topic else ""
        where = ", ".join((f"store {stage.store}", *stage.notes, *filter(None, [stage.times])))
        lines.append(f"  {title}{stage.input}{through}; {where}")
    return "\n".join(lines)


def _mermaid(steps: Sequence[Step]) -> str:
    """A flowchart: sources and operators with their stages, stores beside them, topics between."""
    lines, ids = ["flowchart LR"], [f"n{number}" for number in range(len(steps))]
    last = {}
    for step, here in zip(steps, ids, strict=True):
        about = f" ({step.about})" if step.about else ""
        begun = f", {subtopology(step.subtopology)}" if step.kind == "source" else ""
        title = _label(f"{step.kind} {step.name}{about}{begun}")
        if step.kind != "sink":
            last[step.name] = f"{here}s{len(step.stages) - 1}" if step.stages else here
        if not step.stages:
            opening, closing = _SHAPES.get(step.kind, ("[", "]"))
            lines.append(f"  {here}{opening}{title}{closing}")
            continue
        lines.append(f"  subgraph {here}[{title}]")
        for index, stage in enumerate(step.stages):
            label = _label(f"{subtopology(*stage.subtopologies)}, {stage.name}")
            lines.append(f"    {here}s{index}[{label}] --- {here}d{index}[({_label(stage.store)})]")
        for index, stage in enumerate(step.stages[1:], 1):
            by = stage.topic or stage.repartition_by or stage.input
            lines.append(f"    {here}s{index - 1} -- {_label(by)} --> {here}s{index}")
        lines.append("  end")
    for step, here in zip(steps, ids, strict=True):
        for role, name in step.reads:
            into = here
            if step.stages:
                into += "s1" if role == "right" else "s0"
            lines.append(f"  {last[name]} -- {_label(role)} --> {into}")
    return "\n".join(lines)


def _label(text: str) -> str:
    """Quoted, with what Mermaid would take for its own as entities."""
    escaped = html.escape(text, quote=True).replace("&#x27;", "'").replace("&quot;", "#quot;")
    return f'"{escaped}"'
