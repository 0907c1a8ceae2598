"""Roots: the records of topics that a row was made of, as far as the plan says."""

from __future__ import annotations

from fkjoin.plan.events import Enrich
from fkjoin.plan.nodes import Aggregate, Children, Cogroup, FlatMap, Merge, Node, in_order, periodic, sources


def summed_up(node: Node) -> bool:
    """Tell whether ``node`` is made of aggregates, of rows of one table or another, of rows under new keys, or of events."""
    return any(isinstance(step, Aggregate | Cogroup | Merge | Children | FlatMap | Enrich) for step in in_order(node))


def origins(merge: Merge) -> tuple[int, ...]:
    """Count the roots of each merged table's rows.

    There are none where a table's rows have none, or where results are held back: what waits is kept without origins.
    """
    rooted = not any(map(summed_up, merge.tables)) and all(source.topic is not None for source in sources(merge))
    return tuple(table.parts for table in merge.tables) if rooted and not periodic(merge) else ()
