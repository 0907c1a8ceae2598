"""A source that has something new whenever an interval is over: it wakes a query in which results wait, also without data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

_MS = "interval_ms"


def ticks(spark: SparkSession, interval_ms: int) -> DataFrame:
    """A streaming DataFrame of one column, ``tick``: in a batch, the last end of an interval, ms since the epoch, if one was.

    The first batch has one, too.  Offsets are these ends, so that a batch that is repeated has the same, and a query may go on
    with another interval.  A clock that was set back by more than an interval ends one more, at once.
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

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        now, tick = int(time.time() * 1000), start["tick"]
        end = now - now % self._interval_ms
        # One that trembles ends an interval once; one that was set back must not hold results back until it has caught up.
        return {"tick": end if end > tick or end < tick - self._interval_ms else tick}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["tick"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)
