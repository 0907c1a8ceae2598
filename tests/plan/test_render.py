"""Topologies as text, JSON, Mermaid and picture, from data, also with an operator of another's.

Texts of all operators, with the rules and without: tests/plan/test_golden_plans.py; here are those of staged deployments.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import pytest

from fkjoin.errors import InvariantError, TopologyError
from fkjoin.plan.base import Node, NodeText, StageText, unkept
from fkjoin.plan.describe.picture import svg
from fkjoin.plan.describe.render import draw, drawn
from fkjoin.plan.describe.steps import SinkStep, job_steps
from fkjoin.plan.nodes import Aggregate, Children, Join, Merge, Source, View, join_below, origins, read_from, summed_up
from fkjoin.plan.optimizer import answers_keep_what_is_read, view_reads_answers
from fkjoin.plan.physical import Running
from tests.support.distinct import Distinct
from tests.support.drawn import drawn_whole, whole

ORDERS = Source("orders", ("id",), ("lsn",), "op = 'd'", None, ("id", "customer"), "stream of id, customer, lsn, op")
CUSTOMERS = Source("customers", ("customer",), ("offset",), None, "at", ("region",), "kafka topic customers")
LARGE = View("large", ORDERS, (("filter", "amount > 10"), ("map_values", "customer")))
JOINED = Join("joined", LARGE, CUSTOMERS, "inner", "customer", None, ("registration", "response"))
TOTALS = Aggregate("totals", JOINED, ("region",), ("right.region",), ("left.n",), (("n", "sum(left.n)"),), "on-change", "again")
BOOK = Children("book", ORDERS, CUSTOMERS, "customer", "orders", materialized="the-book")

STAGED = """\
fk_join joined  (inner, staged)
  Sub-topology: 3  subscription  repartition by foreign key through topic registration; store joined-subscription
  Sub-topology: 4  resolve       repartition by id through topic response; store joined-resolve
aggregate totals  (on-change, staged)
  Sub-topology: 6  aggregate     repartition by group through topic again; store totals-aggregate"""
MERMAID = """\
flowchart LR
  n0[/"source orders, Sub-topology: 0"/]
  n1[/"source customers, Sub-topology: 1"/]
  subgraph n2["with_children book (on-change)"]
    n2s0["Sub-topology: 2, rekey"] --- n2d0[("book-rekey")]
    n2s1["Sub-topology: 3, children"] --- n2d1[("book-children")]
    n2s0 -- "foreign key" --> n2s1
  end
  n3[\\"sink out (say #quot;hi#quot; &lt;/&gt;)"\\]
  n1 -- "right" --> n2s1
  n0 -- "left" --> n2s0
  n2s1 -- "of" --> n3"""


def test_text_of_staged_operators() -> None:
    """All other lines: the golden plans."""
    lines = drawn_whole(TOTALS).splitlines()
    assert [line for line in lines if "staged" in line or "through topic" in line] == STAGED.splitlines()


def test_json_says_the_same() -> None:
    steps = json.loads(drawn_whole(TOTALS, "json"))
    assert [step["kind"] for step in steps] == ["source", "view", "source", "fk_join", "aggregate"]
    assert steps[3]["reads"] == [["left", "large"], ["right", "customers"]]
    assert steps[3]["stages"][1] == {
        "name": "subscription",
        "repartition_by": "foreign key",
        "store": "joined-subscription",
        "topic": "registration",
        "notes": [],
        "readers": ["it"],
        "counted_as": ["joined"],
        "subtopologies": [3],
    }
    assert [step["subtopology"] for step in steps] == [0, None, 1, None, None]


def test_mermaid() -> None:
    assert drawn(job_steps([SinkStep("out", BOOK, 'say "hi" </>')], whole(BOOK)), "mermaid") == MERMAID


def test_a_stage_that_no_step_has_is_not_left_out() -> None:
    with pytest.raises(InvariantError, match="the stages other-pair run, but belong to no step of the topology"):
        draw(TOTALS, [*whole(TOTALS), Running("other", "pair", "totals", "other")])


def test_the_picture_has_every_step_and_what_flows() -> None:
    steps = job_steps([SinkStep("out", TOTALS, "a <topic>"), SinkStep("book", BOOK, "b")], whole(TOTALS, BOOK))
    picture = ElementTree.fromstring(svg(steps, {("fk_join joined", "left"): "7/s"}))
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    for step in steps:
        assert f"{step.kind} {step.name}" in texts
    assert {"a <topic>", "7/s", "▸ Sub-topology: 3, subscription by foreign key", "Sub-topology: 1"} <= set(texts)
    flows = [path for path in picture.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == "flow"]
    assert len(flows) == sum(len(step.reads) for step in steps)
    boxes = [box for box in picture.iter("{http://www.w3.org/2000/svg}rect") if box.get("class") == "box"]
    places = [tuple(float(box.get(name, "")) for name in ("x", "y", "width", "height")) for box in boxes]
    for (x, y, width, height), (other_x, other_y, *_) in itertools.permutations(places, 2):
        assert not (x <= other_x < x + width and y <= other_y < y + height), "boxes overlap"


def test_the_steps_of_a_picture_can_be_buttons() -> None:
    steps = job_steps([SinkStep("out <1>", TOTALS, "a topic")], whole(TOTALS))
    picture = ElementTree.fromstring(svg(steps, by_hand=True))
    boxes = [group for group in picture.iter("{http://www.w3.org/2000/svg}g") if group.get("role") == "button"]
    assert [box.get("data-step") for box in boxes] == [f"{step.kind} {step.name}" for step in steps]
    assert {box.get("tabindex") for box in boxes} == {"0"}
    assert boxes[-1].get("aria-label") == "sink out <1>: its numbers"
    assert 'role="button"' not in svg(steps)


def test_another_format_is_refused() -> None:
    with pytest.raises(TopologyError, match='format: \'png\' is not one of "text", "json", "mermaid", "svg"'):
        draw(ORDERS, [], "png")


def test_a_topic_is_ordered_by_the_numbers_that_its_versions_have() -> None:
    """Its facts, which checkpoints keep, have the names of before."""
    place = ("topic", "partition", "offset")
    plain, chosen = (
        Source("orders", ("id",), version, "null value", "timestamp", ("n",), "kafka topic orders", topic="orders")
        for version in (place, ("source.lsn", *place))
    )
    assert "version    timestamp, partition, offset" in draw(plain, [])
    assert "version    source.lsn, timestamp, partition, offset" in draw(chosen, [])
    assert plain.facts["version"] == place
    stream = Source("orders", ("id",), place, None, None, ("n",), "stream")
    assert "version    topic, partition, offset" in draw(stream, [])


@dataclass(frozen=True, slots=True)
class Latest(Distinct):
    """An operator that says all that there is to say of it."""

    def text(self) -> NodeText:
        stages = {"values": StageText(["value"], "a-topic", "newest first", "newest")}
        return NodeText("latest", [("by", "lsn")], stages, "newest", [("rows", self.table)])


RECORDS = Source("orders", ("id",), ("lsn",), None, None, ("id", "shop"), "kafka", topic="orders")
SHOPS = Source("shops", ("shop",), ("lsn",), None, None, ("shop",), "kafka", topic="shops")
LARGE_RECORDS = View("large", RECORDS, (("filter", "n > 1"),))
DISTINCT = Distinct("seen", LARGE_RECORDS, ("shop",))
WITH_SHOPS = Join("joined", DISTINCT, SHOPS, "inner", "shop", None)
VALUES = Running("seen", "values", "it", "seen")


def text_of(node: Node, *running: Running) -> str:
    """The lines of ``describe()`` from those of the operator on."""
    text = draw(node, running)
    return text[text.index(f"\n{node.text().kind} {node.name}") + 1 :]


def test_a_store_is_bound_to_what_rows_are_made_of_down_to_the_next_store() -> None:
    records = {"key": ("id",), "version": ("lsn",), "deleted": None, "timestamp": None, "snapshot": False}
    assert unkept(LARGE_RECORDS) == {"large": {"of": ["orders"], "steps": (("filter", "n > 1"),)}, "orders": records}
    assert unkept(DISTINCT, SHOPS) == {"seen": {}, "shops": {**records, "key": ("shop",)}}
    assert unkept(replace(LARGE_RECORDS, materialized="kept")).keys() == {"large"}


def test_it_is_described_by_the_stages_that_run() -> None:
    held = replace(DISTINCT, emit="periodic 5 s", materialized="kept")
    pace = Running("seen", "pace", "it", "seen")
    assert text_of(DISTINCT).split("\n") == ["distinct seen  (on-change)", "  of           large"]
    assert text_of(held, VALUES, pace).split("\n")[2:] == [
        "  Sub-topology: 1  values        repartition by shop; store seen-values, materialized as kept",
        "  Sub-topology: 2  pace          repartition by shop; store seen-pace",
    ]


def test_it_says_how_it_and_its_stages_are_to_be_read() -> None:
    latest = Latest("seen", LARGE_RECORDS, ("shop",), materialized="kept")
    assert text_of(latest, VALUES).split("\n") == [
        "latest seen  (newest)",
        "  rows         large",
        "  by           lsn",
        "  Sub-topology: 1  newest        repartition by value through topic a-topic; "
        "store seen-values, newest first, materialized as kept",
    ]


def test_its_rows_have_lost_their_roots_unless_it_says_that_they_have_not() -> None:
    assert [summed_up(node) for node in (LARGE_RECORDS, DISTINCT, WITH_SHOPS)] == [False, True, True]
    assert origins(Merge("all", (RECORDS, LARGE_RECORDS), "on-change")) == (1, 1)
    assert origins(Merge("all", (RECORDS, DISTINCT), "on-change")) == ()


def test_the_optimizer_leaves_it_alone() -> None:
    assert read_from(DISTINCT) is None
    assert join_below(DISTINCT) is None
    assert answers_keep_what_is_read(WITH_SHOPS, {}) == WITH_SHOPS
    view = View("shown", DISTINCT, (("filter", "n > 1"),))
    assert view_reads_answers(view, {}) == view
