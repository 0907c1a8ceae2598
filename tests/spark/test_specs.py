"""Specs of the kinds of stages: each kind has its own, which is small, and says what it takes."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from fkjoin.codec.messages import SUBSCRIPTION, SUMS
from fkjoin.errors import FormatError
from fkjoin.spark import specs
from fkjoin.spark.specs import STAGES, Messages, MultiSubscriptionSpec, ResolveSpec, StageSpec
from fkjoin.stages import Counters
from fkjoin.state import MemoryStore
from tests.support.specs import KINDS, PLAIN, STATE


def test_every_kind_of_stage_has_a_spec() -> None:
    kinds = {*STAGES.values(), MultiSubscriptionSpec}
    assert {name: kind.stage for name, kind in STAGES.items()} == {name: name for name in STAGES}
    assert {kind.__name__ for kind in kinds} <= set(specs.__all__)
    assert {type(spec) for spec, *_ in PLAIN} == kinds


@pytest.mark.parametrize("spec", [spec for spec, *_ in PLAIN])
def test_a_spec_travels_small(spec: StageSpec) -> None:
    """The spec goes to each task of each batch."""
    pickled = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
    assert pickle.loads(pickled) == spec
    assert len(pickled) < 1_100


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
