"""Stages as a stateful Spark operator over buckets.

Rows of the stream are *envelopes*: a bucket's id with a payload of packed messages, or with a
counter and its value.  A payload of no bytes only opens the store, so that each batch notices a
checkpoint made with other settings.

Whenever a query starts, Spark imports this module once per operator, in a process that only asks
for the operator's states.  What the work itself needs is imported with ``bucket_run`` and with what
the spec is made of, when there is work.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructType

if TYPE_CHECKING:
    import pandas as pd

    from fkjoin.spark.specs import WorkerStage

_NUMBER, _DATA = StructType().add("number", LongType()), StructType().add("data", BinaryType())
"""Not as text: each worker would ask the JVM what it means, in every batch."""


class StageProcessor(StatefulProcessor):
    """Run pure stages, one after the other, on all of a bucket's messages of a micro-batch."""

    def __init__(self, *stages: WorkerStage) -> None:
        self._pickled: bytes = cloudpickle.dumps(stages)  # type: ignore[no-untyped-call]
        """The stages' bytes: a task that only asks for the operator's states need not load them."""

    @cached_property
    def _stages(self) -> tuple[WorkerStage, ...]:
        stages: tuple[WorkerStage, ...] = pickle.loads(self._pickled)
        return stages

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", _DATA)
        self._segments = handle.getMapState("log", _NUMBER, _DATA)

    # Spark's name; rows come as pandas frames.
    def handleInputRows(  # type: ignore[override]  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        from fkjoin.spark.bucket_run import one_by_one
        from fkjoin.spark.change_log import SparkLog

        with SparkLog(self._meta, self._segments, len(self._stages)) as log:
            yield from one_by_one(self._stages, int(key[0]), log, rows)

    def close(self) -> None:
        pass
