"""Specs of the kinds of stages: each kind has its own, which is small, and says what it takes."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from fkjoin.codec.messages import SUBSCRIPTION, SUMS
from fkjoin.errors import FormatError
from fkjoin.spark import specs
from fkjoin.spark.specs import (
    STAGES,
    AggregateSpec,
    ChildrenSpec,
    CloseSpec,
    EnrichSpec,
    GatherSpec,
    MergeSpec,
    Messages,
    MultiSubscriptionSpec,
    OwnersSpec,
    PaceSpec,
    PairSpec,
    RegroupSpec,
    RekeySpec,
    ResolveSpec,
    ScatterSpec,
    SpreadSpec,
    StageSpec,
    SubscriptionSpec,
)
from fkjoin.stages import Counters
from fkjoin.stages.complete import Complete
from fkjoin.state import MemoryStore
from tests.support.specs import CARRY, CLOSING, CONTRIBUTE, FAMILY, FOLD, JOINS, KINDS, MULTI_JOIN, PLAIN, STATE, TEXT

WHOLE = (
    (RekeySpec(STATE, in_order=True, right_parts=3, every=True, from_answers=CARRY), 660),
    (SubscriptionSpec(STATE, in_order=True, rights_in_order=True, shared_log=True, right_parts=3, every=True), 369),
    (
        ResolveSpec(
            STATE, how="left", materialized=True, complete=Complete(TEXT), in_order=True, every=True, from_answers=JOINS
        ),
        965,
    ),
    (ChildrenSpec(STATE, family=FAMILY, rights_in_order=True, every=True), 551),
    (PairSpec(STATE, how="outer", parts=(1, 1), in_order=(True, False), materialized=True, every=True, makes=JOINS), 965),
    (ScatterSpec(STATE, rights=2, in_order=True), 685),
    (MultiSubscriptionSpec(STATE, right_parts=(1, 1), rights_in_order=(True, False)), 691),
    (GatherSpec(STATE, multi_join=MULTI_JOIN), 685),
    (RegroupSpec(STATE, as_read=True, every=True, from_answers=CONTRIBUTE, number=1), 658),
    (AggregateSpec(STATE, fold=FOLD, in_order=True, every=True), 613),
    (CloseSpec(STATE, fold=FOLD, closing=CLOSING, letters=True), 900),
    (MergeSpec(STATE, in_order=(True, False), every=True), 363),
    (SpreadSpec(STATE, as_read=True, every=True), 363),
    (OwnersSpec(STATE, every=True), 359),
    (PaceSpec(STATE), 359),
    (EnrichSpec(STATE, how="left", in_order=True), 363),
)
"""A spec of each kind with all that it can have, and the bytes of a spec for all kinds that says the same."""


def test_every_kind_of_stage_has_a_spec() -> None:
    kinds = {*STAGES.values(), MultiSubscriptionSpec}
    assert {name: kind.stage for name, kind in STAGES.items()} == {name: name for name in STAGES}
    assert {kind.__name__ for kind in kinds} <= set(specs.__all__)
    assert {type(spec) for spec, _ in WHOLE} == {type(spec) for spec, *_ in PLAIN} == kinds


@pytest.mark.parametrize(("spec", "bytes_of_all_kinds"), WHOLE)
def test_a_spec_travels_small(spec: StageSpec, bytes_of_all_kinds: int) -> None:
    """The spec goes to each task of each batch."""
    pickled = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
    assert pickle.loads(pickled) == spec
    assert len(pickled) < 1.1 * bytes_of_all_kinds


@pytest.mark.parametrize(("spec", "takes", "tags"), PLAIN)
def test_a_stage_takes_messages_of_its_kinds_and_no_others(spec: StageSpec, takes: tuple[pa.Schema, ...], tags: bytes) -> None:
    for schema in KINDS:
        messages = Messages([schema.empty_table()], 0)
        if schema in takes:
            assert sum(map(len, spec.run(messages, MemoryStore(), Counters()))) == 0
            assert all(table.schema == SUMS for table in messages.tables), "they are for the check after the batch"
        else:
            with pytest.raises(
                FormatError, match=f"^store orders-{spec.stage}: a {spec.stage} stage takes .*, but .* came: a worker"
            ):
                spec.run(messages, MemoryStore(), Counters())
    assert spec.highwater_tags == tags


def test_the_error_names_the_messages_that_came_and_those_that_are_taken() -> None:
    spec, other = ResolveSpec(STATE), pa.table({"id": [1], "name": ["x"]})
    for table, came in ((SUBSCRIPTION.empty_table(), "subscriptions"), (other, "a table of id, name")):
        with pytest.raises(FormatError, match=f"a resolve stage takes answers and joined rows, but {came} came: a worker"):
            spec.run(Messages([table], 0), MemoryStore(), Counters())
