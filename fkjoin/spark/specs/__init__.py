"""The kinds of stages.

A kind is what an operator has to know of it, and what it does with a bucket's messages.
"""

from fkjoin.spark.specs.joins import (
    ChildrenSpec,
    GatherSpec,
    MultiSubscriptionSpec,
    PairSpec,
    RekeySpec,
    ResolveSpec,
    ScatterSpec,
    SubscriptionSpec,
)
from fkjoin.spark.specs.spec import Messages, StageSpec, StateSpec, WorkerStage
from fkjoin.spark.specs.tables import (
    AggregateSpec,
    CloseSpec,
    EnrichSpec,
    MergeSpec,
    OwnersSpec,
    PaceSpec,
    RegroupSpec,
    SpreadSpec,
)

__all__ = [
    "STAGES",
    "AggregateSpec",
    "ChildrenSpec",
    "CloseSpec",
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
    "WorkerStage",
]

_OF_TABLES = RegroupSpec, AggregateSpec, CloseSpec, SpreadSpec, OwnersSpec
_OF_JOINS = RekeySpec, ScatterSpec, SubscriptionSpec, ChildrenSpec, PairSpec
_LAST = ResolveSpec, MergeSpec, GatherSpec, EnrichSpec, PaceSpec

STAGES: dict[str, type[StageSpec]] = {
    kind.stage: kind for kind in (*_OF_TABLES, *_OF_JOINS, *_LAST)
}
"""The kinds of stages by name, in the order in which a key is looked up in an operator's stores.

A multi-way join's subscription is shown as in a join of two tables."""
