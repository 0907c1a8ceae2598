"""Facts of a table for its sinks: plain data.

A server of Spark Connect runs sinks without the client's frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.kafka.positions import numbers
from fkjoin.lowering.stage import frame_of
from fkjoin.spark.frame import CHAINS, DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, TS, VERSION
from fkjoin.spark.names import quoted
from fkjoin.spark.unpacking import UnpackResults


@dataclass(frozen=True)
class Results:
    """Facts that make changes of a table's frame."""

    key: tuple[str, ...]
    rest: tuple[str, ...]
    """The row's columns that are not the key's."""
    timestamps: str | None
    """See ``Planned``."""
    source: tuple[str, ...] | None
    """Fields of a source's version, none where chains of positions have it; None of a result."""
    versions: tuple[str, ...]
    """The names of a result's versions."""
    unpack: UnpackResults | None
    """Function that makes a frame of encoded results; None where they come as a frame."""
    appends: bool = False
    """They are events, which are appended."""

    def frame(self, batch: DataFrame) -> DataFrame:
        """The frame of a batch, which may be packed."""
        return batch if self.unpack is None else frame_of(batch, self.unpack)

    def changes(self, frame: DataFrame, *more: Column) -> DataFrame:
        """See ``Table.changes``; ``more``: columns made from the frame."""
        if self.appends:
            return frame.select(*(F.col(quoted(name)) for name in self.rest), *more)
        row = [F.col(quoted(ROW, name)).alias(name) for name in self.rest]
        key = [F.col(quoted(KEY, name)).alias(name) for name in self.key]
        if self.source is not None:
            operation = F.when(F.col(DELETED), F.lit("delete")).otherwise(F.lit("upsert"))
            if CHAINS in frame.columns:
                version = numbers(F.col(CHAINS))
            else:
                version = F.array(
                    *[F.col(f"{VERSION}.`{name}`").cast("bigint") for name in self.source]
                )
            about = [operation.alias("_operation"), version.alias("_version")]
        else:
            about = [F.col(OPERATION).alias("_operation")]
            about += [F.col(f"{NUMBERS}{name}").alias(f"_{name}") for name in self.versions]
        time = F.timestamp_micros(F.col(TS)) if self.timestamps != "bigint" else F.col(TS)
        return frame.where(F.col(PROBLEM).isNull()).select(
            *key, *row, *about, time.alias("_timestamp"), *more
        )
