"""One stage as a stateful Spark operator over buckets.

Rows of the stream are *envelopes*: a bucket's id with a payload of packed messages, or with a counter and its value.
A payload of no bytes only opens the store, so that a checkpoint made with other settings is noticed in every batch.

Spark imports this module once per operator, in a process that only asks for the operator's states, whenever a query starts:
what the work itself needs is imported with ``bucket_run``, when there is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructType

if TYPE_CHECKING:
    import pandas as pd

    from fkjoin.stages.join_rows import How

ENVELOPE = "bucket int, payload binary, counter string, count bigint"

_NUMBER, _DATA = StructType().add("number", LongType()), StructType().add("data", BinaryType())
"""Not as text: each worker would ask the JVM what it means, in every batch."""

TICK = "tick"
"""A counter that is none: it says that an interval is over, and that a bucket of ``pace`` sends what waits."""

StageName = Literal[
    "rekey", "subscription", "resolve", "regroup", "aggregate", "children", "merge", "pace", "scatter", "gather"
]


@dataclass(frozen=True)
class StageSpec:
    """What an operator needs to know; ``identity`` is what its checkpoint is bound to."""

    stage: StageName
    operator: str
    """The name of the join or aggregate that the stage is of."""
    buckets: int
    retention_ms: int
    index_dir: str
    identity: str
    validate: bool = False
    """Check the stores' invariants after each batch."""
    how: How = "inner"
    shared_log: bool = False
    right_parts: int = 1
    in_order: bool = True
    """Messages of a key arrive in the order of their versions, each once: true where no topic lies between the stages."""
    materialized: bool = False
    """resolve: keep the results."""
    complete: bytes = b""
    """resolve: a ``Complete``, pickled, if rows may lack values."""
    every: bool = False
    """Send results that are as they were, too."""
    as_read: bool = False
    """resolve, regroup: the rows come as a source has them; no operator before this one has dropped late ones."""
    made: tuple[bool, ...] = ()
    """rekey, scatter, subscription, children, merge: which of the tables they read an operator of the query makes: of the left
    one, of the right ones, of those that are merged."""
    fold: bytes = b""
    """aggregate: a ``Fold``, pickled: whoever only asks for the operator's states need not load what it is made of."""
    from_answers: bytes = b""
    """regroup, rekey, resolve: a ``Contribute``, ``Carry`` or ``Joined``, pickled, that makes of answers what they need."""
    number: int | None = None
    """regroup: which of a cogroup's tables the rows are of; None where its aggregate is of one table."""
    tables: int = 0
    """merge: how many there are."""
    family: bytes = b""
    """children: a ``Family``, pickled."""
    star: bytes = b""
    """scatter, subscription, gather: a ``Star``, pickled, if there are several right tables."""


class StageProcessor(StatefulProcessor):
    """Run a pure stage on all of a bucket's messages of a micro-batch."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", _DATA)
        self._segments = handle.getMapState("log", _NUMBER, _DATA)

    def handleInputRows(  # type: ignore[override]  # noqa: N802  (Spark's name; rows come as pandas frames)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        from fkjoin.spark.bucket_run import BucketRun
        from fkjoin.spark.change_log import SparkLog

        with SparkLog(self._meta, self._segments) as log:
            yield from BucketRun(self._spec, int(key[0]), log).process(rows)

    def close(self) -> None:
        pass
