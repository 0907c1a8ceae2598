"""An operator that the package does not know is planned as those that it has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from fkjoin.plan.base import Node, NodeText, StageText, in_order, manifest, periodic
from fkjoin.plan.describe.picture import svg
from fkjoin.plan.describe.render import draw, drawn
from fkjoin.plan.describe.steps import SinkStep, job_steps
from fkjoin.plan.nodes import Join, Merge, Source, View, join_below, origins, read_from, sources, summed_up
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

TEXT = """\
distinct seen  (on-change)
  of           large
  Sub-topology: 1  values        repartition by shop; store seen-values"""


def text_of(node: Node, *running: Running) -> str:
    """The lines of ``describe()`` from those of the operator on."""
    text = draw(node, running)
    return text[text.index(f"\n{node.text().kind} {node.name}") + 1 :]


def test_it_stands_after_what_it_reads() -> None:
    assert [node.name for node in in_order(JOINED)] == ["orders", "large", "seen", "shops", "joined"]
    assert sources(JOINED) == [ORDERS, SHOPS]
    assert (JOINED.key, JOINED.versions) == (("shop",), (("left_version", 1), ("right_version", 1)))
    assert read_from(DISTINCT) is None
    assert join_below(DISTINCT) is None


def test_a_checkpoint_is_bound_to_it() -> None:
    assert manifest(DISTINCT)["distinct seen"] == {"of": ["large"]}
    held = replace(DISTINCT, emit="periodic 5 s")
    assert (periodic(DISTINCT), periodic(held)) == (False, True)
    assert manifest(held)["distinct seen"] == {"of": ["large"], "periodic": True}
    latest = manifest(Latest("seen", LARGE, ("shop",)))
    assert latest["latest seen"] == {"of": "large", "by": ["shop"]}


def test_it_is_described_by_the_stages_that_run() -> None:
    assert text_of(DISTINCT, VALUES) == TEXT
    assert text_of(DISTINCT) == TEXT[: TEXT.rindex("\n")]
    held = replace(DISTINCT, emit="periodic 5 s", materialized="kept")
    pace = Running("seen", "pace", "it", "seen")
    assert text_of(held, VALUES, pace).split("\n")[-2:] == [
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
    steps = job_steps([SinkStep("out", DISTINCT, "a topic")], [VALUES])
    assert drawn(steps).endswith(f"{TEXT}\nsink out  a topic\n  of           seen")
    assert "▸ Sub-topology: 1, values by shop" in svg(steps, {("distinct seen", "of"): "7/s"})


def test_its_rows_have_lost_their_roots_unless_it_says_that_they_have_not() -> None:
    assert (summed_up(LARGE), summed_up(DISTINCT), summed_up(JOINED)) == (False, True, True)
    assert origins(Merge("all", (ORDERS, LARGE), "on-change")) == (1, 1)
    assert origins(Merge("all", (ORDERS, DISTINCT), "on-change")) == ()


def test_the_optimizer_leaves_it_alone() -> None:
    assert answers_keep_what_is_read(JOINED, {}) == JOINED
    view = View("shown", DISTINCT, (("filter", "n > 1"),))
    assert view_reads_answers(view, {}) == view
