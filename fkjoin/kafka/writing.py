"""Records as a query: Spark's Kafka sink, started."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.indexes import owner
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.options import sink_options
from fkjoin.plan.physical import Physical
from fkjoin.spark.on_spark import on_spark


def start(
    spark: SparkSession,
    plan: Physical,
    topic: str | None,
    bootstrap_servers: str,
    *,
    checkpoint: str,
    begun: Begun,
    options: Mapping[str, Any] | None,
    trigger: Mapping[str, Any] | None,
    name: str,
    tables: Mapping[str, Any] = MappingProxyType({}),
) -> StreamingQuery:
    """Start writing a plan's rows (key, value, perhaps headers) to the topic.

    Without a topic, they go to the topics that they name.  ``tables``: see ``require_begun_with``.
    """
    require_begun_with(begun, spark, checkpoint, plan, tables=tables)
    chosen = sink_options(options)
    if topic is not None:
        require_topic(topic, bootstrap_servers, chosen)
        chosen["topic"] = topic
    begun.write(spark, checkpoint)
    chosen |= {"kafka.bootstrap.servers": bootstrap_servers, "includeHeaders": "true"}
    chosen["checkpointLocation"] = checkpoint
    writer = on_spark(spark, plan).writeStream.format("kafka").options(**chosen)
    writer = writer.outputMode("append").queryName(name)
    with owner(spark, checkpoint):
        return (writer.trigger(**trigger) if trigger else writer).start()
