"""Topologies as text, JSON and Mermaid: snapshots, from frozen data alone."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fkjoin.errors import InvariantError, TopologyError
from fkjoin.plan.base import manifest
from fkjoin.plan.describe.picture import svg
from fkjoin.plan.describe.render import draw, drawn
from fkjoin.plan.describe.steps import SinkStep, job_steps
from fkjoin.plan.nodes import Aggregate, Children, FlatMap, Join, Source, View
from fkjoin.plan.physical import Running
from fkjoin.plan.rules import JOIN_READS_ANSWERS, JOINS_SHARE_STAGES, Verdict
from tests.support.drawn import drawn_whole, whole

ORDERS = Source("orders", ("id",), ("lsn",), "op = 'd'", None, ("id", "customer"), "stream of id, customer, lsn, op")
CUSTOMERS = Source("customers", ("customer",), ("offset",), None, "at", ("region",), "kafka topic customers")
LARGE = View("large", ORDERS, (("filter", "amount > 10"), ("map_values", "customer")))
JOINED = Join("joined", LARGE, CUSTOMERS, "inner", "customer", None, ("registration", "response"))
TOTALS = Aggregate("totals", JOINED, ("region",), ("right.region",), ("left.n",), (("n", "sum(left.n)"),), "on-change", "again")
BOOK = Children("book", ORDERS, CUSTOMERS, "customer", "orders", materialized="the-book")

TEXT = """\
source orders
  Sub-topology: 0
  from       stream of id, customer, lsn, op
  key        id
  version    lsn
  deleted    op = 'd'
  timestamp  none
  columns    id, customer
view large  (on-change)
  of           orders
  filter       amount > 10
  map_values   customer
source customers
  Sub-topology: 1
  from       kafka topic customers
  key        customer
  version    offset
  deleted    never
  timestamp  at
  columns    region
fk_join joined  (inner, staged)
  left         large
  right        customers
  foreign key  customer = customers(customer)
  joiner       both rows
  Sub-topology: 2  rekey         repartition by id; store joined-rekey
  Sub-topology: 3  subscription  repartition by foreign key through topic registration; store joined-subscription
  Sub-topology: 4  resolve       repartition by id through topic response; store joined-resolve
aggregate totals  (on-change, staged)
  of           joined
  group by     right.region
  value        left.n
  n            sum(left.n)
  Sub-topology: 5  regroup       repartition by id; store totals-regroup
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


def test_text() -> None:
    assert drawn_whole(TOTALS) == TEXT
    assert drawn(job_steps([SinkStep("out", BOOK, "topic-1")], whole(BOOK))).split("\n")[-9:] == [
        "with_children book  (on-change)",
        "  right        customers",
        "  left         orders",
        "  foreign key  customer = customers(customer)",
        "  column       orders: the left rows by their key",
        "  Sub-topology: 2  rekey         repartition by id; store book-rekey",
        "  Sub-topology: 3  children      repartition by foreign key; store book-children, materialized as the-book",
        "sink out  topic-1",
        "  of           book",
    ]


def test_json_says_the_same() -> None:
    steps = json.loads(drawn_whole(TOTALS, "json"))
    assert [(step["kind"], step["name"], [name for _, name in step["reads"]]) for step in steps] == [
        ("source", "orders", []),
        ("view", "large", ["orders"]),
        ("source", "customers", []),
        ("fk_join", "joined", ["large", "customers"]),
        ("aggregate", "totals", ["joined"]),
    ]
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


FIRED = Verdict(JOIN_READS_ANSWERS)


def test_stages_that_do_not_run_are_not_drawn_and_those_that_run_twice_say_for_what() -> None:
    plain = Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None)
    merged = Aggregate("totals", plain, ("region",), ("right.region",), (), (("n", "count()"),), "on-change", rules=(FIRED,))
    text = draw(merged, whole(merged, without=("joined-resolve",)))
    assert "store joined-resolve" not in text.replace("in place of joined-resolve", "")
    assert "store totals-regroup, in place of joined-resolve" in text
    assert "  rule         join-reads-answers fired\n" in text
    twice = [*whole(merged), Running("joined", "rekey", "totals", "joined")]
    assert "  Sub-topology: 2 to 3  rekey         repartition by id; store joined-rekey, 2 times, for it and totals\n" in draw(
        merged, twice
    )


def test_a_stage_that_no_step_has_is_not_left_out() -> None:
    with pytest.raises(InvariantError, match="the stages other-pair run, and no step of the topology has them"):
        draw(TOTALS, [*whole(TOTALS), Running("other", "pair", "totals", "other")])


REGIONS = Source("regions", ("region",), ("lsn",), None, None, ("name",), "stream of region, name, lsn")
TWICE = """\
fk_join joined  (inner)
  left         orders
  right        customers
  foreign key  customer = customers(customer)
  joiner       both rows
  Sub-topology: 2  rekey         repartition by id; store joined-rekey
  Sub-topology: 3  subscription  repartition by foreign key; store joined-subscription
  Sub-topology: 4  resolve       repartition by id; store joined-resolve
view seen  (on-change)
  of           joined
  filter       left.n > 1
fk_join both  (left)
  left         seen
  right        regions
  foreign key  right.region = regions(region)
  joiner       both rows
  rule         join-reads-answers did not fire: no
  Sub-topology: 6  rekey         repartition by id; store both-rekey
  Sub-topology: 7  subscription  repartition by foreign key; store both-subscription
  Sub-topology: 8  resolve       repartition by id; store both-resolve"""


def test_a_join_of_a_join_before_and_after_the_rule() -> None:
    plain = Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None)
    seen = View("seen", plain, (("filter", "left.n > 1"),))

    def drawn_of(rule: Verdict) -> str:
        both = Join("both", seen, REGIONS, "left", "right.region", None, rules=(rule,))
        text = draw(both, whole(both, without=("seen-resolve", "joined-resolve" if rule.fired else "")))
        return text[: text.index("source regions")] + text[text.index("fk_join both") :]

    customers = draw(CUSTOMERS, []).replace("Sub-topology: 0", "Sub-topology: 1")
    before = f"{draw(ORDERS, [])}\n{customers}\n{TWICE}"
    assert drawn_of(Verdict(JOIN_READS_ANSWERS, "no")) == before
    after = before.replace("  Sub-topology: 4  resolve       repartition by id; store joined-resolve\n", "")
    for number in (6, 7, 8):
        after = after.replace(f"Sub-topology: {number}", f"Sub-topology: {number - 1}")
    after = after.replace("did not fire: no", "fired").replace("both-rekey", "both-rekey, in place of joined-resolve")
    assert drawn_of(FIRED) == after


SHARED = """\
fk_join joined  (inner)
  left         orders
  right        customers
  foreign key  customer = customers(customer)
  joiner       both rows
fk_join both  (left)
  left         joined
  right        regions
  foreign key  left.region = regions(region)
  joiner       both rows
  rule         joins-share-stages fired
  Sub-topology: 3  scatter       repartition by id; store both-scatter
  Sub-topology: 4  subscription  repartition by foreign key; store both-subscription, of customers, regions
  Sub-topology: 5  gather        repartition by id; store both-gather"""


def test_joins_that_are_one_before_and_after_the_rule() -> None:
    plain = Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None)

    def both(rule: Verdict) -> Join:
        return Join("both", plain, REGIONS, "left", "left.region", None, rules=(rule,))

    def joins(text: str) -> str:
        kept = text.replace("\nfk_join", "\n\nfk_join").replace("\nsource", "\n\nsource").split("\n\n")
        return "\n".join(part for part in kept if part.startswith("fk_join"))

    def stages(join: str, first: int) -> str:
        parts = enumerate((("rekey", "id"), ("subscription", "foreign key"), ("resolve", "id")), first)
        return "".join(
            f"  Sub-topology: {at}  {stage:14}repartition by {by}; store {join}-{stage}\n" for at, (stage, by) in parts
        )

    before = SHARED[: SHARED.index("  Sub-topology: 3")].replace("fired", "did not fire: no") + stages("both", 6)
    before = before.replace("both rows\nfk_join", f"both rows\n{stages('joined', 2)}fk_join")
    assert joins(drawn_whole(both(Verdict(JOINS_SHARE_STAGES, "no")))) + "\n" == before
    shared = both(Verdict(JOINS_SHARE_STAGES))
    without = tuple(f"joined-{stage}" for stage in ("rekey", "subscription", "resolve"))
    assert joins(draw(shared, whole(shared, without=without))) == SHARED


def test_a_rule_that_did_not_fire_says_why() -> None:
    held = View("view", JOINED, (("filter", "true"),), rules=(Verdict("a-rule", "the join is staged"),))
    assert "  rule         a-rule did not fire: the join is staged\n" in drawn_whole(held)


def test_a_table_that_is_held_back_has_a_stage_for_it() -> None:
    lines = drawn_whole(Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None, emit="periodic 5 s")).split("\n")
    assert "fk_join joined  (inner, periodic 5 s)" in lines
    assert lines[-1] == "  Sub-topology: 5  pace          repartition by id; store joined-pace"


def test_a_checkpoint_is_bound_to_periodic_emission_and_older_ones_need_not_say() -> None:
    plain, held = (
        Join("joined", ORDERS, CUSTOMERS, "inner", "customer", None, emit=emit) for emit in ("on-change", "periodic")
    )
    assert manifest(held)["join joined"] == {**manifest(plain)["join joined"], "periodic": True}


def test_a_checkpoint_is_bound_to_a_snapshot_and_not_to_its_place() -> None:
    begun, moved = (replace(ORDERS, snapshot=place) for place in ("lake/orders", "lake/moved"))
    assert manifest(begun) == manifest(moved)
    assert manifest(begun)["table orders"] == {**manifest(ORDERS)["table orders"], "snapshot": True}
    assert "  snapshot   lake/orders" in draw(begun, []).split("\n")


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


def test_rows_under_other_keys_and_what_binds_their_checkpoint() -> None:
    lines = FlatMap("lines", ORDERS, "items", ("id", "sku"), ("id", "lower(sku) as sku"))
    by_sku = FlatMap("by-sku", lines, None, ("sku",), ("sku",), materialized="kept")
    running = [Running(name, stage, "by-sku", name) for name in ("lines", "by-sku") for stage in ("spread", "owners")]
    assert draw(by_sku, running).split("\n")[8:] == [
        "flat_map lines  (on-change)",
        "  of           orders",
        "  rows         items",
        "  key          id, lower(sku) as sku",
        "  Sub-topology: 1  spread        repartition by id; store lines-spread",
        "  Sub-topology: 2  owners        repartition by id, sku; store lines-owners",
        "rekey by-sku  (on-change)",
        "  of           lines",
        "  key          sku",
        "  Sub-topology: 3  spread        repartition by id, sku; store by-sku-spread",
        "  Sub-topology: 4  owners        repartition by sku; store by-sku-owners, materialized as kept",
    ]
    bound = manifest(by_sku)
    assert bound["flat map lines"] == {"of": "orders", "rows": "items", "key": ["id", "lower(sku) as sku"]}
    assert bound["rekey by-sku"] == {"of": "lines", "rows": None, "key": ["sku"]}


def test_a_topic_is_ordered_by_the_numbers_that_its_versions_have() -> None:
    """Its manifest, which checkpoints keep, has the names of before."""
    place = ("topic", "partition", "offset")
    plain, chosen = (
        Source("orders", ("id",), version, "null value", "timestamp", ("n",), "kafka topic orders", topic="orders")
        for version in (place, ("source.lsn", *place))
    )
    assert "version    timestamp, partition, offset" in draw(plain, [])
    assert "version    source.lsn, timestamp, partition, offset" in draw(chosen, [])
    assert manifest(plain)["table orders"]["version"] == [*place]
    stream = Source("orders", ("id",), place, None, None, ("n",), "stream")
    assert "version    topic, partition, offset" in draw(stream, [])
