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


def draw(node: Node, running: Sequence[Running], form: str = "text") -> str:
    """The topology that ends in ``node``, sources first, with the stages that are ``running``.

    Raises ``TopologyError`` if ``form`` is no ``Form``.
    """
    return drawn(steps_of([node], running), form)


def drawn(steps: Sequence[Step], form: str = "text") -> str:
    """The steps in the form that is wanted; ``TopologyError`` if it is no ``Form``."""
    if form not in get_args(Form):
        raise TopologyError(f'format: {form!r} is not one of "text", "json", "mermaid", "svg"')
    if form == "json":
        return json.dumps([asdict(step) for step in steps], ensure_ascii=False, indent=1)
    if form == "text":
        return "\n".join(line for step in steps for line in _text(step))
    return _mermaid(steps) if form == "mermaid" else svg(steps)


def _text(step: Step) -> list[str]:
    width = 11 if step.kind == "source" else 13
    about = step.about if step.kind == "sink" else f"({step.about})" if step.about else ""
    lines = [f"{step.kind} {step.name}  {about}".rstrip()]
    lines += [f"  {subtopology(step.subtopology)}"] * (step.kind == "source")
    lines += [f"  {label:<{width}}{what}" for label, what in (*step.reads, *step.facts)]
    for stage in step.stages:
        through = f" through topic {stage.topic}" if stage.topic else ""
        where = ", ".join((f"store {stage.store}", *stage.notes, *filter(None, [stage.times])))
        title = subtopology(*stage.subtopologies)
        lines.append(f"  {title}  {stage.name:<14}repartition by {stage.repartition_by}{through}; {where}")
    return lines


def _mermaid(steps: Sequence[Step]) -> str:
    """A flowchart: sources and operators with their stages, stores beside them, topics between them."""
    number = {step.name: f"n{place}" for place, step in enumerate(steps) if step.kind != "sink"}
    lines, ids = ["flowchart LR"], [f"n{place}" for place in range(len(steps))]
    for step, here in zip(steps, ids, strict=True):
        begun = f", {subtopology(step.subtopology)}" if step.kind == "source" else ""
        title = _label(f"{step.kind} {step.name}" + (f" ({step.about})" if step.about else "") + begun)
        if not step.stages:
            opened, closed = {"sink": ("[\\", "\\]"), "source": ("[/", "/]")}.get(step.kind, ("[", "]"))
            lines.append(f"  {here}{opened}{title}{closed}")
            continue
        lines.append(f"  subgraph {here}[{title}]")
        for place, stage in enumerate(step.stages):
            label = _label(f"{subtopology(*stage.subtopologies)}, {stage.name}")
            lines.append(f"    {here}s{place}[{label}] --- {here}d{place}[({_label(stage.store)})]")
        for place, stage in enumerate(step.stages[1:], 1):
            by = stage.topic or stage.repartition_by
            lines.append(f"    {here}s{place - 1} -- {_label(by)} --> {here}s{place}")
        lines.append("  end")
    stages = {step.name: len(step.stages) for step in steps if step.kind != "sink"}
    last = {name: f"{here}s{stages[name] - 1}" if stages[name] else here for name, here in number.items()}
    for step, here in zip(steps, ids, strict=True):
        for role, name in step.reads:
            into = f"{here}s{1 if role == 'right' else 0}" if step.stages else here
            lines.append(f"  {last[name]} -- {_label(role)} --> {into}")
    return "\n".join(lines)


def _label(text: str) -> str:
    """Quoted, with what Mermaid would take for its own as entities."""
    return '"' + html.escape(text, quote=True).replace("&#x27;", "'").replace("&quot;", "#quot;") + '"'
