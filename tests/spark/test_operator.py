"""The stateful operator without Spark: what it yields, with states that are dictionaries."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from fkjoin.codec.messages import SUMS
from fkjoin.errors import FormatError
from fkjoin.spark import specs
from fkjoin.spark.buckets import bucket_ids
from fkjoin.spark.operator import StageProcessor
from fkjoin.spark.specs import Messages, StageSpec, StateSpec, WorkerStage
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.state import MemoryStore
from tests.support.engine import Handle, LocalEngine
from tests.support.oracle import Change
from tests.support.specs import KINDS, PLAIN


def frames_of(spec: StageSpec) -> list[pd.DataFrame]:
    """The frames that an operator yields in a batch without changes."""
    processor = StageProcessor(WorkerStage(spec))
    processor.init(Handle())  # type: ignore[arg-type]
    hello = {"bucket": [0], "payload": [b""], "counter": [None], "count": [0], "batch_ms": [1000]}
    return list(processor.handleInputRows((0,), iter([pd.DataFrame(hello)]), None))


@pytest.mark.parametrize("spec", [spec for spec, *_ in PLAIN])
def test_a_batch_without_changes_yields_no_empty_frame(tmp_path: Path, spec: StageSpec) -> None:
    """Spark cannot tell the types of a frame without rows, which zero counters would make.

    A frame costs a millisecond, and a small batch has no more than one for a bucket.
    """
    (rows,) = frames_of(replace(spec, state=StateSpec("join", 1, 1000, str(tmp_path), "{}")))
    assert [payload for payload in rows["payload"] if payload is not None] == [b""]
    counted = {name for name in rows["counter"] if isinstance(name, str)}  # pandas 3 has nan for none
    assert counted <= {*counters.SIZES, f"{spec.stage}-ms"}


def test_each_stage_says_which_skips_are_its_own(tmp_path: Path) -> None:
    """KIP-557 counts them by node of the topology."""
    engine = LocalEngine(tmp_path, "left")
    engine.batch([Change(True, b"k", b"v", 1, b"a"), Change(False, b"a", b"A", 1), Change(True, b"l", b"v", 1)])
    engine.batch([Change(True, b"k", b"v", 2, b"a"), Change(True, b"l", b"v", 2), Change(False, b"a", b"A", 2)])
    engine.batch([Change(True, b"l", b"v", 3, b"b")])
    skips = {name: number for name, number in engine.count.items() if name.endswith(counters.SKIPS)}
    assert skips == {"rekey-skips": 2, "subscription-skips": 1, "resolve-skips": 1}
    assert engine.count[counters.IDEMPOTENT] == 4


@pytest.mark.parametrize("validate", [False, True])
def test_the_next_operator_wakes_up_and_all_its_buckets_if_they_are_to_be_checked(tmp_path: Path, validate: bool) -> None:
    """A rekey that reads answers gets no packed rows to wake it, yet each of its buckets has to say what it knows."""
    state = StateSpec("join", 4, 1000, str(tmp_path), "{}", validate)
    (rows,) = frames_of(specs.SubscriptionSpec(state, in_order=True))
    woken = rows["bucket"][rows["payload"].notna()].tolist()
    assert woken == (list(bucket_ids(4)) if validate else [0])


@pytest.mark.newest
def test_a_query_starts_without_what_only_the_work_needs() -> None:
    """Spark opens each operator in a process of its own, before the first batch, and asks for its states alone."""
    script = """if True:
        import pickle, sys, types
        states = types.SimpleNamespace(getValueState=lambda *_: None, getMapState=lambda *_: None)
        for processor in pickle.load(sys.stdin.buffer):
            processor.init(states)
        print({"pandas", "pyarrow", "numpy", "rocksdict", "fkjoin.spark.specs"} & set(sys.modules))
    """
    processors = cloudpickle.dumps([StageProcessor(WorkerStage(spec)) for spec, *_ in PLAIN])  # type: ignore[no-untyped-call]
    found = subprocess.run([sys.executable, "-c", script], input=processors, capture_output=True, check=True)
    assert found.stdout.strip() == b"set()"


def test_every_kind_of_stage_has_a_spec() -> None:
    kinds = {*specs.STAGES.values(), specs.MultiSubscriptionSpec}
    assert [kind.stage for kind in specs.STAGES.values()] == list(specs.STAGES)
    assert {kind.__name__ for kind in kinds} <= set(specs.__all__)
    assert {type(spec) for spec, *_ in PLAIN} == kinds


@pytest.mark.parametrize(("spec", "takes", "tags"), PLAIN)
def test_a_stage_takes_messages_of_its_kinds_alone_and_travels_small(
    spec: StageSpec, takes: tuple[pa.Schema, ...], tags: bytes
) -> None:
    """The spec goes to each task of each batch."""
    pickled = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
    assert pickle.loads(pickled) == spec
    assert len(pickled) < 1_100
    for schema in KINDS:
        messages = Messages([schema.empty_table()], 0)
        if schema in takes:
            assert sum(map(len, spec.run(messages, MemoryStore(), Counters()))) == 0
            assert all(table.schema == SUMS for table in messages.tables), "they are for the check after the batch"
        else:
            with pytest.raises(
                FormatError, match=f"^store orders-{spec.stage}: a {spec.stage} stage takes .*, but received .*: a worker"
            ):
                spec.run(messages, MemoryStore(), Counters())
    assert spec.highwater_tags == tags
