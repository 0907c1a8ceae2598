"""The kinds of stages: what an operator of each kind has to know, and what it does with a bucket's messages."""

from fkjoin.spark.specs.joins import ChildrenSpec, PairSpec, RekeySpec, ResolveSpec, SubscriptionSpec
from fkjoin.spark.specs.multi_joins import GatherSpec, MultiSubscriptionSpec, ScatterSpec
from fkjoin.spark.specs.spec import Messages, StageSpec, StateSpec
from fkjoin.spark.specs.tables import AggregateSpec, EnrichSpec, MergeSpec, OwnersSpec, PaceSpec, RegroupSpec, SpreadSpec

__all__ = [
    "AggregateSpec",
    "ChildrenSpec",
    "EnrichSpec",
    "GatherSpec",
    "MergeSpec",
    "Messages",
    "MultiSubscriptionSpec",
    "OwnersSpec",
    "PaceSpec",
    "PairSpec",
    "RegroupSpec",
    "RekeySpec",
    "ResolveSpec",
    "ScatterSpec",
    "SpreadSpec",
    "StageSpec",
    "StateSpec",
    "SubscriptionSpec",
]
