"""The outcome of a trace by a streaming query: a file, and so a micro-batch, for each cut of the trace."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, fk_join
from tests.support.replay.traces import Trace, joined_value, outcome

_SCHEMA = "index bigint, left boolean, key string, foreign_key string, value string, ts bigint"


def replay_on_spark(spark: SparkSession, trace: Trace, events_per_batch: int, folder: Path) -> list[dict[str, Any]]:
    """Replay it in an empty folder.

    A batch has the last result of each key alone, and the keys come in no particular order.
    """
    cuts = list(trace.batches(events_per_batch))
    log = folder / "log"
    log.mkdir(parents=True)
    for number, cut in enumerate(cuts):
        part = log / f"{number:08}.json"
        lines = [json.dumps(asdict(event)) + "\n" for event in cut]
        part.write_text("".join(lines), encoding="utf-8")
        os.utime(part, (number, number))
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(log))
    left, right = _side(stream, "left"), _side(stream, "right")
    joined = fk_join(left, right, "foreign_key", how=trace.how, name="replay")
    target = folder / "joined"
    joined.to_parquet(target, checkpoint=folder / "ck", trigger="available-now").awaitTermination()
    number = F.split("batch", "-")[0].cast("int")
    rows = spark.read.parquet(str(target)).withColumn("number", number).orderBy("number").collect()
    return outcome((cuts[row["number"]][-1].index, *_result(row)) for row in rows)


def _side(stream: DataFrame, side: str) -> Table:
    chosen = stream.where("left" if side == "left" else "not left").drop("left")
    return Table.from_stream(
        chosen,
        key="key",
        version="index",
        deleted="value is null",
        timestamp="ts",
        name=side,
        log="trace",
    )


def _result(row: Row) -> tuple[str, Any, int]:
    if row["_operation"] == "delete":
        return row["key"], None, row["_timestamp"]
    right = row["right"]
    value = joined_value(row["left"]["value"], right and right["value"])
    return row["key"], value, row["_timestamp"]
