"""A source that has something new whenever an interval is over.

It wakes a query in which results wait, also without data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

_MS = "interval_ms"


def ticks(spark: SparkSession, interval_ms: int) -> DataFrame:
    """A streaming DataFrame of one column, ``tick``: the last end of an interval, if one was.

    It is in ms since the epoch.  The first batch has one, too.  Offsets are these ends, so that a
    batch that is repeated has the same, and a query may continue with another interval.  A clock
    that was set back by more than an interval ends one more, at once.
    """
    spark.dataSource.register(Clock)
    return spark.readStream.format(Clock.name()).option(_MS, str(interval_ms)).load()


class Clock(DataSource):
    """Spark's way to it."""

    @classmethod
    def name(cls) -> str:
        return "fkjoin-clock"

    def schema(self) -> str:
        return "tick bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ClockReader(int(self.options[_MS]))


class ClockReader(DataSourceStreamReader):
    """The clock, looked at whenever Spark asks whether there is anything new."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """The offset that a batch from ``start`` ends at; Spark before 4.2 gives no ``start``."""
        now, tick = int(time.time() * 1000), self._last if start is None else start["tick"]
        end = now - now % self._interval_ms
        # One that trembles ends an interval once; one that was set back must not hold results
        # back until it has caught up.
        self._last = end if end > tick or end < tick - self._interval_ms else tick
        return {"tick": self._last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._last = end["tick"]  # of a batch that a restart repeats, the first that is heard of
        return [InputPartition(end["tick"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)
