"""The facts of a plan that bind a job's checkpoint."""

from __future__ import annotations

from fkjoin.plan.events import Enrich, Events
from fkjoin.plan.nodes import (
    Aggregate,
    Children,
    Cogroup,
    FlatMap,
    Join,
    KeyJoin,
    Merge,
    Node,
    Source,
    in_order,
    periodic,
)


def manifest(node: Node) -> dict[str, dict[str, object]]:
    """Collect what binds a job's checkpoint: the facts of ``node`` and all below it that must stay, by kind and name."""
    found: dict[str, dict[str, object]] = {}
    for step in in_order(node):
        if isinstance(step, Source):
            facts: dict[str, object] = {"key": list(step.key), "version": list(step.version), "columns": list(step.columns)}
            found[f"table {step.name}"] = facts
            if step.snapshot is not None:  # with a source of its own
                facts["snapshot"] = True
        elif isinstance(step, Join):
            found[f"join {step.name}"] = {
                "left": step.left.name,
                "right": step.right.name,
                "how": step.how,
                "extractor": step.extractor,
                "joiner": step.joiner,
                "deployment": "fused" if step.topics is None else "staged",
            }
        elif isinstance(step, KeyJoin):
            facts = {"left": step.left.name, "right": step.right.name, "how": step.how, "joiner": step.joiner}
            found[f"join by key {step.name}"] = facts
        elif isinstance(step, Aggregate):
            columns = [f"{name} = {what}" for name, what in step.columns]
            facts = {"of": step.table.name, "group_by": list(step.grouped_by), "value": list(step.value), "columns": columns}
            facts["deployment"] = "fused" if step.topic is None else "staged"
            if step.having is not None:
                facts["having"] = step.having
            if step.closes is not None:  # with a stage of its own, and with a clock where sources may be idle
                facts["on-close"] = "clock" if step.closes[1] else True
            found[f"aggregate {step.name}"] = facts
        elif isinstance(step, Cogroup | Merge):
            kind = "cogroup" if isinstance(step, Cogroup) else "merge"
            found[f"{kind} {step.name}"] = {"of": [table.name for table in step.tables]}
        elif isinstance(step, FlatMap):
            kind = "rekey" if step.rows is None else "flat map"
            found[f"{kind} {step.name}"] = {"of": step.table.name, "rows": step.rows, "key": list(step.keyed_by)}
        elif isinstance(step, Enrich):
            found[f"enrich {step.name}"] = {"of": step.table.name, "events": step.events.name}
        elif isinstance(step, Events):
            found[f"events {step.name}"] = {}
        elif isinstance(step, Children):
            facts = {"left": step.left.name, "right": step.right.name, "extractor": step.extractor, "column": step.column}
            found[f"children {step.name}"] = facts
        else:
            found[f"view {step.name}"] = {"of": step.table.name, "steps": [list(item) for item in step.steps]}
        if periodic(step):  # with a source of its own, and a store
            found[list(found)[-1]]["periodic"] = True
    return found
