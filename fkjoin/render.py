"""Topologies drawn: as text, as JSON and as Mermaid, all from one list of steps."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from fkjoin.errors import TopologyError
from fkjoin.topology import Aggregate, Children, Derived, Join, Node, Source, in_order, periodic

Format = Literal["text", "json", "mermaid"]


@dataclass(frozen=True)
class Stage:
    """A stateful operator: what its input is repartitioned by, through which topic, and where its state is."""

    name: str
    repartition_by: str
    store: str
    topic: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A source, or what is made of other tables."""

    kind: str
    name: str
    about: str
    reads: tuple[tuple[str, str], ...]
    """What the tables that it reads are to it, and their names."""
    facts: tuple[tuple[str, str], ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Sink:
    """Where the changes of a table go."""

    name: str
    of: Node
    to: str


def draw(node: Node, form: str = "text") -> str:
    """The topology that ends in ``node``, sources first; ``TopologyError`` if ``form`` is no ``Format``."""
    return _drawn(_steps([node]), form)


def draw_job(sinks: Sequence[Sink], form: str = "text") -> str:
    """The topology that ends in the sinks; what several of them read stands there once."""
    ends = [Step("sink", sink.name, sink.to, (("of", sink.of.name),), (), ()) for sink in sinks]
    return _drawn([*_steps([sink.of for sink in sinks]), *ends], form)


def _drawn(steps: list[Step], form: str) -> str:
    if form not in get_args(Format):
        raise TopologyError(f'format: {form!r} is not one of "text", "json", "mermaid"')
    if form == "json":
        return json.dumps([asdict(step) for step in steps], ensure_ascii=False, indent=1)
    return _mermaid(steps) if form == "mermaid" else "\n".join(line for step in steps for line in _text(step))


def _steps(ends: Sequence[Node]) -> list[Step]:
    """Every step once, after what it reads."""
    nodes = list(in_order(*ends))
    found = []
    for one in nodes:
        step = _step(one)
        readers = [other for other in nodes if one in other.inputs]
        merged = bool(readers) and all(isinstance(other, Aggregate) and other.merged for other in readers)
        if merged and one not in ends:  # regroup is in the place of resolve
            step = replace(step, stages=step.stages[:-1])
        found.append(step)
    return found


def _step(node: Node) -> Step:
    step = _operator(node)
    if not periodic(node):
        return step
    return replace(step, stages=(*step.stages, Stage("pace", ", ".join(node.key), f"{node.name}-pace")))


def _operator(node: Node) -> Step:
    if isinstance(node, Source):
        facts = {
            "from": node.origin,
            "key": ", ".join(node.key),
            "version": ", ".join(node.version),
            "deleted": node.deleted or "never",
            "timestamp": node.timestamp or "none",
            "columns": ", ".join(node.columns),
        }
        return Step("source", node.name, "", (), tuple(facts.items()), ())
    if isinstance(node, Join):
        return _join(node)
    kept = (f"materialized as {node.materialized}",) if node.materialized else ()
    if isinstance(node, Derived):
        stage = Stage("for sinks", ", ".join(node.key), f"{node.name}-resolve", notes=kept)
        return Step("rows", node.name, node.emit, (("of", node.table.name),), node.steps, (stage,))
    if isinstance(node, Children):
        sides = ("right", node.right.name), ("left", node.left.name)
        named = ("foreign key", _foreign_key(node)), ("column", f"{node.column}: the left rows by their key")
        stages = (
            Stage("rekey", ", ".join(node.left.key), f"{node.name}-rekey"),
            Stage("children", "foreign key", f"{node.name}-children", notes=kept),
        )
        return Step("with_children", node.name, node.emit, sides, named, stages)
    instead = (f"in place of {node.table.name}-resolve",) if node.merged else ()
    summed = ("group by", ", ".join(node.grouped_by)), ("value", ", ".join(node.value) or "none"), *node.columns
    return Step(
        "aggregate",
        node.name,
        f"{node.emit}{', staged' if node.topic else ''}",
        (("of", node.table.name),),
        summed,
        (
            Stage("regroup", ", ".join(node.table.key), f"{node.name}-regroup", notes=instead),
            Stage("aggregate", "group", f"{node.name}-aggregate", node.topic, kept),
        ),
    )


def _join(join: Join) -> Step:
    key = ", ".join(join.key)
    to_foreign, back = join.topics or (None, None)
    kept = (f"materialized as {join.materialized}",) if join.materialized else ()
    return Step(
        "fk_join",
        join.name,
        ", ".join([join.how, *["staged"] * bool(join.topics), *[join.emit] * (join.emit != "on-change")]),
        (("left", join.left.name), ("right", join.right.name)),
        (("foreign key", _foreign_key(join)), ("joiner", join.joiner or "both rows")),
        (
            Stage("rekey", key, f"{join.name}-rekey"),
            Stage("subscription", "foreign key", f"{join.name}-subscription", to_foreign),
            Stage("resolve", key, f"{join.name}-resolve", back, kept),
        ),
    )


def _foreign_key(node: Join | Children) -> str:
    return f"{node.extractor} = {node.right.name}({', '.join(node.right.key)})"


def _text(step: Step) -> list[str]:
    width = 11 if step.kind == "source" else 13
    about = step.about if step.kind == "sink" else f"({step.about})" if step.about else ""
    lines = [f"{step.kind} {step.name}  {about}".rstrip()]
    lines += [f"  {label:<{width}}{what}" for label, what in (*step.reads, *step.facts)]
    for number, stage in enumerate(step.stages, 1):
        label = stage.name if step.kind == "rows" else f"{number} {stage.name}"
        through = f" through topic {stage.topic}" if stage.topic else ""
        where = ", ".join((f"store {stage.store}", *stage.notes))
        lines.append(f"  {label:<16}repartition by {stage.repartition_by}{through}; {where}")
    return lines


def _mermaid(drawn: list[Step]) -> str:
    """A flowchart: sources and operators with their stages, stores beside them, topics between them."""
    number = {step.name: f"n{place}" for place, step in enumerate(drawn) if step.kind != "sink"}
    lines, ids = ["flowchart LR"], [f"n{place}" for place in range(len(drawn))]
    for step, here in zip(drawn, ids, strict=True):
        title = _label(f"{step.kind} {step.name}" + (f" ({step.about})" if step.about else ""))
        if not step.stages:
            lines.append(f"  {here}[\\{title}\\]" if step.kind == "sink" else f"  {here}[/{title}/]")
            continue
        lines.append(f"  subgraph {here}[{title}]")
        for place, stage in enumerate(step.stages):
            lines.append(f"    {here}s{place}[{_label(stage.name)}] --- {here}d{place}[({_label(stage.store)})]")
        for place, stage in enumerate(step.stages[1:], 1):
            by = stage.topic or stage.repartition_by
            lines.append(f"    {here}s{place - 1} -- {_label(by)} --> {here}s{place}")
        lines.append("  end")
    stages = {step.name: len(step.stages) for step in drawn if step.kind != "sink"}
    last = {name: f"{here}s{stages[name] - 1}" if stages[name] else here for name, here in number.items()}
    for step, here in zip(drawn, ids, strict=True):
        for role, name in step.reads:
            into = f"{here}s{1 if role == 'right' else 0}" if step.stages else here
            lines.append(f"  {last[name]} -- {_label(role)} --> {into}")
    return "\n".join(lines)


def _label(text: str) -> str:
    """Quoted, with what Mermaid would take for its own as entities."""
    return '"' + html.escape(text, quote=True).replace("&#x27;", "'").replace("&quot;", "#quot;") + '"'
