"""Drawings of plans, without Spark."""

from __future__ import annotations

from fkjoin.plan.base import Node, in_order, periodic
from fkjoin.plan.describe.render import draw
from fkjoin.plan.nodes import Aggregate, Children, Cogroup, FlatMap, Join, KeyJoin, Merge, View, shares_stages
from fkjoin.plan.physical import Running

STAGES: dict[type[Node], tuple[str, ...]] = {
    Join: ("rekey", "subscription", "resolve"),
    KeyJoin: ("pair", "resolve"),
    Aggregate: ("regroup", "aggregate"),
    Cogroup: ("aggregate",),
    Merge: ("merge",),
    View: ("resolve",),
    Children: ("rekey", "children"),
    FlatMap: ("spread", "owners"),
}
"""All stages that nodes of a kind can have."""


def stages(node: Node) -> tuple[str, ...]:
    """The stages that a node can have."""
    names = ("scatter", "subscription", "gather") if shares_stages(node) else STAGES.get(type(node), ())
    return (*names, "pace") if periodic(node) else names


def whole(*ends: Node) -> list[Running]:
    """All stages that nodes can have."""
    nodes = [node for node in in_order(*ends) if node in ends or not node.stateless]
    return [Running(node.name, stage, "it", node.name) for node in nodes for stage in stages(node)]


def drawn_whole(node: Node, form: str = "text") -> str:
    """The topology that ends in a node, with all stages that it can have."""
    return draw(node, whole(node), form)
