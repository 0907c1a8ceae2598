"""An operator that the package does not know is planned as those that it has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from fkjoin.plan.base import Node, NodeText, StageText, manifest, periodic
from fkjoin.plan.describe.render import draw
from fkjoin.plan.nodes import Join, Merge, Source, View, join_below, origins, read_from, summed_up
from fkjoin.plan.optimizer import answers_keep_what_is_read, view_reads_answers
from fkjoin.plan.physical import Running


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """The values of columns that a table's rows have, each once."""

    table: Node
    key: tuple[str, ...] = field()
    emit: str = "on-change"

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class Latest(Distinct):
    """An operator that says all that there is to say of it."""

    def manifest(self) -> tuple[str, dict[str, object]]:
        return "latest", {"of": self.table.name, "by": list(self.key)}

    def text(self) -> NodeText:
        stages = {"values": StageText(["value"], "a-topic", "newest first", "newest")}
        return NodeText("latest", [("by", "lsn")], stages, "newest", [("rows", self.table)])


ORDERS = Source("orders", ("id",), ("lsn",), None, None, ("id", "shop"), "kafka", topic="orders")
SHOPS = Source("shops", ("shop",), ("lsn",), None, None, ("shop",), "kafka", topic="shops")
LARGE = View("large", ORDERS, (("filter", "n > 1"),))
DISTINCT = Distinct("seen", LARGE, ("shop",))
JOINED = Join("joined", DISTINCT, SHOPS, "inner", "shop", None)
VALUES = Running("seen", "values", "it", "seen")


def text_of(node: Node, *running: Running) -> str:
    """The lines of ``describe()`` from those of the operator on."""
    text = draw(node, running)
    return text[text.index(f"\n{node.text().kind} {node.name}") + 1 :]


def test_a_checkpoint_is_bound_to_it() -> None:
    assert manifest(DISTINCT)["distinct seen"] == {"of": ["large"]}
    held = replace(DISTINCT, emit="periodic 5 s")
    assert (periodic(DISTINCT), periodic(held)) == (False, True)
    assert manifest(held)["distinct seen"] == {"of": ["large"], "periodic": True}
    latest = manifest(Latest("seen", LARGE, ("shop",)))
    assert latest["latest seen"] == {"of": "large", "by": ["shop"]}


def test_it_is_described_by_the_stages_that_run() -> None:
    held = replace(DISTINCT, emit="periodic 5 s", materialized="kept")
    pace = Running("seen", "pace", "it", "seen")
    assert text_of(DISTINCT).split("\n") == ["distinct seen  (on-change)", "  of           large"]
    assert text_of(held, VALUES, pace).split("\n")[2:] == [
        "  Sub-topology: 1  values        repartition by shop; store seen-values, materialized as kept",
        "  Sub-topology: 2  pace          repartition by shop; store seen-pace",
    ]


def test_it_says_how_it_and_its_stages_are_to_be_read() -> None:
    assert text_of(Latest("seen", LARGE, ("shop",), materialized="kept"), VALUES).split("\n") == [
        "latest seen  (newest)",
        "  rows         large",
        "  by           lsn",
        "  Sub-topology: 1  newest        repartition by value through topic a-topic; "
        "store seen-values, newest first, materialized as kept",
    ]


def test_every_form_of_describe_has_it() -> None:
    step = json.loads(draw(DISTINCT, [VALUES], "json"))[-1]
    assert (step["kind"], step["reads"], step["subtopology"]) == ("distinct", [["of", "large"]], None)
    assert [(stage["name"], stage["subtopologies"]) for stage in step["stages"]] == [("values", [1])]
    mermaid = draw(DISTINCT, [VALUES], "mermaid").split("\n")
    assert '  subgraph n2["distinct seen (on-change)"]' in mermaid
    assert '    n2s0["Sub-topology: 1, values"] --- n2d0[("seen-values")]' in mermaid
    assert "▸ Sub-topology: 1, values by shop" in draw(DISTINCT, [VALUES], "svg")


def test_its_rows_have_lost_their_roots_unless_it_says_that_they_have_not() -> None:
    assert (summed_up(LARGE), summed_up(DISTINCT), summed_up(JOINED)) == (False, True, True)
    assert origins(Merge("all", (ORDERS, LARGE), "on-change")) == (1, 1)
    assert origins(Merge("all", (ORDERS, DISTINCT), "on-change")) == ()


def test_the_optimizer_leaves_it_alone() -> None:
    assert read_from(DISTINCT) is None
    assert join_below(DISTINCT) is None
    assert answers_keep_what_is_read(JOINED, {}) == JOINED
    view = View("shown", DISTINCT, (("filter", "n > 1"),))
    assert view_reads_answers(view, {}) == view
