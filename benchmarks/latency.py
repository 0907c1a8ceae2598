"""Latency from topic to topic at a steady rate: from ``produce()`` of a change to the first output that carries it.

    python -m benchmarks.latency --peers FOLDER [--rate 1000] [--rows 20000] [--warm 15] [--seconds 30] [--rounds 3]

FOLDER has the harness of Kafka Streams and its jars (see ``benchmarks.streams``).  In turn, fkjoin and Kafka Streams with its
default settings, but without a cache, join the topics customers and orders into the topic joined, ``--rows`` rows on each side.
The engine ``floor`` is the join's plan on Spark, whose operators only hand the records on: what it takes is Spark's own.
``fkjoin/1`` has one partition and one bucket in place of two of each, so one operator of Spark; ``fkjoin/1x3`` has them in
three operators, and ``floor/1`` is what those take.
Then changes come at ``--rate`` a second, nine of ten to orders.  Two kinds do not count: those of the first ``--warm`` seconds,
and those of customers that no order points at, which have no output.  Each value has a number of its own, by which the output
is told.  Prints a JSON line per run, in milliseconds, with the median of each half minute: it falls while the JVM compiles its
code.  Then come minimum, median and maximum per engine.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import fkjoin
from benchmarks.small import passing
from benchmarks.streams import BOOTSTRAP, Harness
from benchmarks.topics import JOINED
from fkjoin import Table, fk_join
from fkjoin.kafka import Json
from fkjoin.kafka.reading import records_of
from fkjoin.plan.rules import STAGES_SHARE_AN_OPERATOR
from fkjoin.spark.buckets import ENVELOPE
from fkjoin.spark.on_spark import on_spark

_NUMBER = re.compile(rb'"n":(\d+)')
_TICK_S = 0.005
BUCKETS = 2
_ENGINES = "fkjoin", "fkjoin/1", "fkjoin/1x3", "floor", "floor/1", "kafka streams"


def serve(bootstrap: str, folder: Path, jars: str, engine: str) -> None:
    """Join the topics until standard input ends, or hand them on."""
    spark = fkjoin.session(
        "latency",
        master="local[2]",
        settings={"spark.jars": jars},
        ui_enabled="false",
        driver_memory="1g",
        sql_shuffle_partitions=1 if "/1" in engine else BUCKETS,
        fkjoin_optimizer_excludedRules=STAGES_SHARE_AN_OPERATOR if engine == "fkjoin/1x3" else "",
        fkjoin_index_dir=folder / "index",
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (_joined if engine.startswith("fkjoin") else _handed_on)(spark, bootstrap, folder / "checkpoint")
    sys.stdin.read()
    batches = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
    query.stop()
    middle = {name: statistics.median(one.get(name, 0) for one in batches) for one in batches for name in one}
    print(json.dumps({"batch_ms": middle}), flush=True)


def _joined(spark: SparkSession, bootstrap: str, checkpoint: Path) -> StreamingQuery:
    orders = Table.from_kafka(spark, "orders", bootstrap, key="string", value=Json("fk string", text="value"))
    customers = Table.from_kafka(spark, "customers", bootstrap, key="string", value="string")
    joined = fk_join(orders, customers, "fk", name="bench")
    return joined.to_kafka("joined", bootstrap, checkpoint=checkpoint, value=JOINED)


def _handed_on(spark: SparkSession, bootstrap: str, checkpoint: Path) -> StreamingQuery:
    def read(topic: str) -> DataFrame:
        records = records_of(spark, topic, bootstrap, {"startingOffsets": "earliest"})
        return on_spark(spark, records).select("value").mapInArrow(_packed, ENVELOPE)

    answers = passing(passing(passing(read("orders")).unionByName(read("customers"))))
    records = answers.mapInArrow(_unpacked, "value binary").writeStream.format("kafka")
    return (
        records.option("kafka.bootstrap.servers", bootstrap).option("topic", "joined").start(checkpointLocation=str(checkpoint))
    )


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch.column(0).to_pylist()
        lines = [b"\n".join(values[bucket::BUCKETS]) for bucket in range(BUCKETS)]
        numbers = pa.array(range(BUCKETS), pa.int32())
        counts = pa.array([0] * BUCKETS, pa.int64())
        yield pa.record_batch(
            [numbers, pa.array(lines, pa.binary()), pa.nulls(BUCKETS, pa.string()), counts],
            ["bucket", "payload", "counter", "count"],
        )


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = [line for lines in batch.column("payload").to_pylist() for line in lines.split(b"\n") if line]
        yield pa.record_batch([pa.array(lines, pa.binary())], ["value"])


class Traffic:
    """Changes that are produced, and the outputs that carry them."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows, self._random, self._next = rows, random.Random(seed), 0
        self._producer = Producer({"bootstrap.servers": BOOTSTRAP, "partitioner": "murmur2_random", "linger.ms": 1})
        self.produced: list[float] = []
        """By a change's number, when it was produced."""
        self.seen: dict[int, float] = {}
        """By a change's number, when the first output that carries it was read."""
        self.silent: set[int] = set()
        """Numbers of changes that have no output: no order points at their customer."""
        self._customers: dict[int, int] = {}
        """By an order's row, the customer it points at."""
        self._orders: Counter[int] = Counter()
        """By a customer's row, how many orders point at it."""
        self._ended = threading.Event()

    def load(self) -> None:
        """Produce all rows once."""
        for row in range(self._rows):
            self._produce("customers", row)
        for row in range(self._rows):
            self._produce("orders", row)
        self._producer.flush(60)

    def steadily(self, rate: int, seconds: float) -> None:
        """Produce changes at ``rate`` a second."""
        begin, done = time.perf_counter(), 0
        while (passed := time.perf_counter() - begin) < seconds:
            for _ in range(int(passed * rate) - done):
                self._produce("customers" if done % 10 == 9 else "orders", self._random.randrange(self._rows))
                done += 1
            self._producer.poll(0)
            time.sleep(_TICK_S)
        self._producer.flush(60)

    def _produce(self, topic: str, row: int) -> None:
        value: dict[str, Any] = {"n": self._next, "note": "x" * 70}
        if topic == "orders":
            customer = self._random.randrange(self._rows)
            value["fk"] = f"c{customer}"
            if row in self._customers:
                self._orders[self._customers[row]] -= 1
            self._customers[row] = customer
            self._orders[customer] += 1
        elif not self._orders[row]:
            self.silent.add(self._next)
        self.produced.append(time.perf_counter())
        self._next += 1
        while True:
            try:
                text = json.dumps(value, separators=(",", ":"))
                return self._producer.produce(topic, key=f"{topic[0]}{row}", value=text)
            except BufferError:
                self._producer.poll(0.05)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the outputs meanwhile."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        yield
        self._ended.set()
        thread.join()

    def _watch(self) -> None:
        settings = {"bootstrap.servers": BOOTSTRAP, "group.id": "latency", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | {"enable.auto.commit": False})
        consumer.subscribe(["joined"])
        while not self._ended.is_set():
            records = consumer.consume(1000, 0.02)
            now = time.perf_counter()
            for record in records:
                for number in _NUMBER.findall(record.value() or b""):
                    self.seen.setdefault(int(number), now)
        consumer.close()

    def wait_for(self, numbers: Sequence[int], within_s: float = 120) -> None:
        """Wait until outputs carry all of these changes that can be seen: one that is replaced at once need not be."""
        last, quiet = -1, time.perf_counter()
        end = quiet + within_s
        while time.perf_counter() < end:
            there = sum(number in self.seen for number in numbers)
            if there != last:
                last, quiet = there, time.perf_counter()
            elif last and time.perf_counter() - quiet > 3:
                return
            time.sleep(0.2)
        raise SystemExit(f"of {len(numbers)} changes {last} were seen within {within_s} s")


def measure(harness: Harness, engine: str, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """A run of one engine."""
    traffic = Traffic(given.rows, seed)
    harness.emptied()
    traffic.load()
    with ExitStack() as over:
        running = over.enter_context(harness.serving(engine, __name__ if __name__ != "__main__" else "benchmarks.latency"))
        over.enter_context(traffic.watched())
        traffic.wait_for(range(given.rows, 2 * given.rows))
        traffic.steadily(given.rate, given.warm)
        first = len(traffic.produced)
        traffic.steadily(given.rate, given.seconds)
        counted = [number for number in range(first, len(traffic.produced)) if number not in traffic.silent]
        traffic.wait_for(counted)
        said = running()
    took = {number: 1000 * (traffic.seen[number] - traffic.produced[number]) for number in counted if number in traffic.seen}
    waits = sorted(took.values())
    at = {f"p{part}": round(waits[min(len(waits) - 1, len(waits) * part // 100)]) for part in (50, 95, 99)}
    half_minutes = [counted[begin : begin + 30 * given.rate] for begin in range(0, len(counted), 30 * given.rate)]
    middle = [round(statistics.median(took[number] for number in some if number in took)) for some in half_minutes]
    bars = Counter(100 * int(wait // 100) for wait in waits)
    return {"engine": engine, "rate": given.rate, "changes": len(counted), "seen": len(waits), **at, **said} | {
        "p50_of_half_minutes": middle,
        "histogram_100_ms": dict(sorted(bars.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the harnesses' folder")
    parser.add_argument("--rate", type=int, default=1000, help="changes a second (default 1000)")
    parser.add_argument("--rows", type=int, default=20_000, help="on each side (default 20000)")
    parser.add_argument("--warm", type=float, default=15, help="seconds that do not count (default 15)")
    parser.add_argument("--seconds", type=float, default=30, help="that count (default 30)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--engines", nargs="+", choices=_ENGINES, default=["fkjoin", "kafka streams"])
    parser.add_argument("--serve", nargs=4, metavar=("BOOTSTRAP", "FOLDER", "JARS", "ENGINE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], Path(given.serve[1]), given.serve[2], given.serve[3])
        return
    if given.peers is None:
        parser.error("--peers: name the harnesses' folder")
    work = Path(tempfile.mkdtemp(prefix="fkjoin-bench-"))
    runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in given.engines}
    try:
        harness = Harness(given.peers, work, [])
        try:
            for number in range(given.rounds):
                for engine, found in runs.items():
                    found.append(measure(harness, engine, given, number))
                    print(json.dumps(found[-1]), flush=True)
        finally:
            harness.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for engine, found in runs.items():
        for part in ("p50", "p95", "p99"):
            values = [run[part] for run in found]
            print(f"{engine:13} {part} ms: min {min(values)}  median {statistics.median(values):.0f}  max {max(values)}")


if __name__ == "__main__":
    main()
