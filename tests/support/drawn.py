"""Drawings of plans, without Spark."""

from __future__ import annotations

from fkjoin.plan.describe.render import draw
from fkjoin.plan.describe.steps import _step
from fkjoin.plan.nodes import Node, View, in_order
from fkjoin.plan.stages import Running


def whole(*ends: Node, without: tuple[str, ...] = ()) -> list[Running]:
    """All stages that nodes can have, but for those with these stores."""
    nodes = [node for node in in_order(*ends) if node in ends or not isinstance(node, View) or node.materialized]
    stores = [(node.name, stage.store) for node in nodes for stage in _step(node).stages]
    return [Running(name, store.removeprefix(f"{name}-"), "it", name) for name, store in stores if store not in without]


def drawn_whole(node: Node, form: str = "text") -> str:
    """The topology that ends in a node, with all stages that it can have."""
    return draw(node, whole(node), form)
