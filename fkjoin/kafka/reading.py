"""A topic's records as a stream, from Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from fkjoin.kafka.options import with_fetching
from fkjoin.sessions.settings import PARTITIONS, prepare

_TASKS = {"minpartitions", "maxrecordsperpartition"}
"""Options, in lower case, by which a user sets the number of tasks."""


def records_of(spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str]) -> DataFrame:
    """Return the records of a topic, with headers, read by no more tasks than a stage has partitions.

    Spark starts a task, and a Python worker, for each partition of the topic that has new records.  For the few records of a
    small batch, that takes longer than the records do (docs/adr/0067).  Options that set the number of tasks keep their effect.
    """
    prepare(spark)
    reader = spark.readStream.format("kafka").options(**with_fetching(options)).option("includeHeaders", "true")
    records = reader.option("kafka.bootstrap.servers", bootstrap_servers).option("subscribe", topic).load()
    if _TASKS & {name.lower() for name in options}:
        return records
    return records.coalesce(int(spark.conf.get(PARTITIONS) or 0))
