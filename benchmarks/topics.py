"""The Kafka side of ``benchmarks.fk_join``: topics customers and orders → joined, values as text, as Kafka Streams would."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import fkjoin
from benchmarks.memory import Footprint
from fkjoin import Table, fk_join
from fkjoin.kafka import Format, Json
from fkjoin.sessions.settings import SHORT_LIVED

JOINED = "concat('{\"left\":', left.value, ',\"right\":', right.value, '}')"


def measure_topics(bootstrap: str, folder: Path, batch: int | None, jars: str, *, prime: bool) -> dict[str, Any]:
    """Read everything that is in the topics and not in the checkpoint under ``folder`` yet; the measurements.

    ``prime``: do so once untimed, print a line, wait for one on standard input, and time what has come since, in the same
    session.
    ``batch``: at most so many records in a micro-batch; None: all that there are, as Spark does where nothing is said.
    The time runs from the query's start, planning included and the session's start not, until the last output is written.
    """
    memory = Footprint()
    memory.start()
    spark = fkjoin.session(
        "benchmark",
        master="local[2]",
        settings={"spark.jars": jars} if jars else None,
        ui_enabled="false",
        driver_memory="512m",
        driver_extraJavaOptions=SHORT_LIVED,
        fkjoin_buckets=4,
        fkjoin_index_dir=folder / "index",
    )
    spark.sparkContext.setLogLevel("ERROR")

    def table(topic: str, value: Format | str) -> Table:
        options = {} if batch is None else {"maxOffsetsPerTrigger": batch}
        return Table.from_kafka(spark, topic, bootstrap, key="string", value=value, options=options)

    orders, customers = table("orders", Json("fk string", text="value")), table("customers", "string")
    joined = fk_join(orders, customers, "fk", name="bench")

    def run() -> tuple[float, list[Any]]:
        start = time.perf_counter()
        trigger = {"availableNow": True}
        query = joined.to_kafka("joined", bootstrap, checkpoint=folder / "checkpoint", value=JOINED, trigger=trigger)
        query.awaitTermination()
        return time.perf_counter() - start, [progress for progress in query.recentProgress if progress.numInputRows]

    if prime:
        seconds, _ = run()
        print(json.dumps({"primed_s": round(seconds, 2)}), flush=True)
        sys.stdin.readline()
    seconds, batches = run()
    inputs = sum(progress.numInputRows for progress in batches)
    return {
        "engine": "fkjoin",
        "version": fkjoin.__version__,
        "session": "warm" if prime else "cold",
        "inputs": inputs,
        "seconds": round(seconds, 2),
        "inputs_per_s": round(inputs / seconds),
        **memory.stop().named(),
        "batches": len(batches),
        "batch_s": [round(progress.durationMs["triggerExecution"] / 1000, 2) for progress in batches],
    }
