"""A trace through the Spark engine: one file, and so one micro-batch, for each cut of the trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict

from pyspark.sql import DataFrame, Row

from fkjoin.join import fk_join
from fkjoin.replay.in_memory import final_line, joined_text, result_lines
from fkjoin.replay.traces import Trace
from fkjoin.sessions.own_folder import held_folder
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, SHORT_LIVED, session
from fkjoin.table import Table

_SCHEMA = "index bigint, left boolean, key string, foreign_key string, value string, ts bigint"


def replay_on_spark(trace: Trace, events_per_batch: int = 1, buckets: int = 2) -> Iterator[str]:
    """Run the trace through a streaming query of its own; yields lines as ``replay_in_memory`` does.

    Within a batch only the last result of a key is sent, and the keys come in no particular order.
    """
    spark = session("fkjoin replay", sql_shuffle_partitions=min(2, buckets), driver_extraJavaOptions=SHORT_LIVED)
    spark.conf.set(BUCKETS, str(buckets))
    cuts = list(trace.batches(events_per_batch))
    with held_folder() as folder:
        spark.conf.set(INDEX_DIR, str(folder / "index"))
        log = folder / "log"
        log.mkdir()
        for number, batch in enumerate(cuts):
            part = log / f"{number:08}.json"
            part.write_text("".join(json.dumps(asdict(event)) + "\n" for event in batch), encoding="utf-8")
            os.utime(part, (number, number))
        stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(log))
        collected: dict[int, list[Row]] = {}

        def collect(frame: DataFrame, batch_id: int) -> None:
            collected[batch_id] = frame.collect()

        query = (
            fk_join(_side(stream, True), _side(stream, False), "foreign_key", how=trace.how, name="replay")
            .changes.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    final: dict[str, str] = {}
    for number, batch in enumerate(cuts):
        results = (_output(row) for row in collected.get(number, []))
        yield from result_lines(batch[-1].index, results, final)
    yield final_line(final)


def _side(stream: DataFrame, left: bool) -> Table:
    chosen = stream.where("left" if left else "not left").drop("left")
    return Table.from_stream(
        chosen,
        key="key",
        version="index",
        deleted="value is null",
        timestamp="ts",
        name="left" if left else "right",
        log="trace",
    )


def _output(row: Row) -> tuple[str, str | None, int]:
    if row["_operation"] == "delete":
        return row["key"], None, row["_timestamp"]
    right = row["right"]
    return row["key"], joined_text(row["left"]["value"], right and right["value"]), row["_timestamp"]
