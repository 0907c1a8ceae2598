"""A topic's records, from Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from fkjoin.kafka.options import with_fetching
from fkjoin.plan.physical import Read
from fkjoin.sessions.settings import PARTITIONS, prepare

_TASKS = {"minpartitions", "maxrecordsperpartition"}
"""Options, in lower case, by which a user sets the number of tasks."""


def records_of(
    spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str]
) -> Read:
    """Return a topic's records, with headers, read by no more tasks than a stage has partitions.

    Spark starts a task, and a Python worker, for each partition of the topic that has new records.
    For the few records of a small batch, that takes longer than the records do (docs/adr/0069).
    Options that set the number of tasks keep their effect.
    """
    prepare(spark)
    named = {
        **with_fetching(options),
        "includeHeaders": "true",
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
    }
    if _TASKS & {name.lower() for name in options}:
        return Read("kafka", named)
    return Read("kafka", named, tasks=int(spark.conf.get(PARTITIONS) or 0))
