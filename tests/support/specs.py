"""A spec of each kind of stage."""

from __future__ import annotations

import pyarrow as pa

from fkjoin.codec.messages import ANSWER, CHANGE, ENRICHED, EVENT, GROUPED, JOINED, NUMBERED, PART, RESULT, SUBSCRIPTION, SUMS
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count
from fkjoin.spark import specs
from fkjoin.spark.specs import MultiSubscriptionSpec, StageSpec, StateSpec
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.children import Family
from fkjoin.stages.close import Closing
from fkjoin.stages.contribute import Carry, Contribute, Fields, Place
from fkjoin.stages.multi_join import MultiJoin, Nested, Right
from fkjoin.stages.time_windows import TimeWindows

KINDS = (CHANGE, SUBSCRIPTION, ANSWER, JOINED, NUMBERED, PART, GROUPED, RESULT, SUMS, EVENT, ENRICHED)

STATE = StateSpec("orders", 64, 604_800_000, "/tmp/index", "{}", True)
TEXT = pa.schema([("text", pa.string())])
FIELDS = Fields(TEXT, TEXT, TEXT, "inner")
PLACES: tuple[Place, ...] = (("left", ("text",)),)
MULTI_JOIN = MultiJoin(TEXT, TEXT, 1, tuple(Right(name, TEXT, TEXT, 1, "inner") for name in ("first", "second")), Nested(()))
CARRY, CONTRIBUTE = Carry(FIELDS, PLACES, PLACES, TEXT, TEXT), Contribute(FIELDS, PLACES, PLACES, TEXT, TEXT)
BOTH = pa.schema([(side, pa.struct(list(TEXT))) for side in ("left", "right")])
JOINS = Joined(AnswerRows(FIELDS, RowMaker(None)), BOTH)
CLOSING = Closing(TimeWindows(10, 5, pa.schema([("time", pa.timestamp("us", "UTC"))])), grace=2, sources=("rows",), idle_ms=3)
FOLD, FAMILY = Fold(TEXT, (Count("count"),)), Family(TEXT, TEXT, TEXT, TEXT)

PLAIN: tuple[tuple[StageSpec, tuple[pa.Schema, ...], bytes], ...] = (
    (specs.RekeySpec(STATE), (CHANGE,), b"d"),
    (specs.RekeySpec(STATE, in_order=True, from_answers=CARRY), (ANSWER,), b""),
    (specs.SubscriptionSpec(STATE), (SUBSCRIPTION, CHANGE, SUMS), b"drs"),
    (specs.SubscriptionSpec(STATE, in_order=True), (SUBSCRIPTION, CHANGE, SUMS), b"dr"),
    (specs.SubscriptionSpec(STATE, in_order=True, rights_in_order=True), (SUBSCRIPTION, CHANGE, SUMS), b"d"),
    (specs.ResolveSpec(STATE), (ANSWER, JOINED), b"d"),
    (specs.ResolveSpec(STATE, in_order=True, from_answers=JOINS), (ANSWER,), b""),
    (specs.ChildrenSpec(STATE, family=FAMILY), (SUBSCRIPTION, CHANGE, SUMS), b"dr"),
    (specs.ChildrenSpec(STATE, family=FAMILY, rights_in_order=True), (SUBSCRIPTION, CHANGE, SUMS), b"d"),
    (specs.ScatterSpec(STATE, rights=2), (CHANGE,), b"d"),
    (specs.ScatterSpec(STATE, rights=2, in_order=True), (CHANGE,), b""),
    (MultiSubscriptionSpec(STATE, right_parts=(1, 1), rights_in_order=(False, False)), (SUBSCRIPTION, CHANGE, SUMS), b"dr"),
    (MultiSubscriptionSpec(STATE, right_parts=(1, 1), rights_in_order=(True, False)), (SUBSCRIPTION, CHANGE, SUMS), b"d"),
    (specs.GatherSpec(STATE, multi_join=MULTI_JOIN), (PART,), b""),
    (specs.RegroupSpec(STATE), (JOINED,), b"d"),
    (specs.RegroupSpec(STATE, in_order=True, from_answers=CONTRIBUTE), (ANSWER,), b""),
    (specs.AggregateSpec(STATE, fold=FOLD), (GROUPED,), b"ds"),
    (specs.CloseSpec(STATE, fold=FOLD, closing=CLOSING), (GROUPED,), b""),
    (specs.MergeSpec(STATE, in_order=(True, False)), (NUMBERED,), b"ds"),
    (specs.PairSpec(STATE, how="outer", parts=(1, 1), in_order=(True, False)), (NUMBERED,), b"ds"),
    (specs.PairSpec(STATE, how="left", parts=(1, 2), in_order=(True, True), makes=JOINS), (NUMBERED,), b"ds"),
    (specs.SpreadSpec(STATE), (JOINED,), b"d"),
    (specs.SpreadSpec(STATE, in_order=True), (JOINED,), b""),
    (specs.OwnersSpec(STATE), (GROUPED,), b"ds"),
    (specs.PaceSpec(STATE), (RESULT,), b"ds"),
    (specs.EnrichSpec(STATE, how="left"), (JOINED, EVENT), b"d"),
    (specs.EnrichSpec(STATE, how="inner", in_order=True), (JOINED, EVENT), b""),
)
