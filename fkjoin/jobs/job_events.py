"""A job file's events: streams that are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from fkjoin.analysis.bound import Scope
from fkjoin.analysis.projection import Projection
from fkjoin.errors import TopologyError
from fkjoin.files.options import require_options
from fkjoin.jobs.job_kinds import located
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.options import source_options
from fkjoin.kafka.reading import records_of
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.schemas import arrow_schema, struct_type

if TYPE_CHECKING:
    from fkjoin.jobs.job_sections import EventsSection, JobSection


def events_of(spec: JobSection, name: str, spark: SparkSession) -> DataFrame:
    """The stream of events that is read; ``JobError`` names its section."""
    of = spec.events[name]
    with located(f"events.{name}", of):
        frame = _files(spark, of) if of.topic is None else _topic(spark, spec, of)
        if of.select is None:
            return frame
        scope = Scope(frame, tuple(frame.columns), f"events {name}", arrow_schema("events", frame.schema))
        return frame.select(*(one.column for one in Projection.of("select", of.select, scope).bound))


def _files(spark: SparkSession, of: EventsSection) -> DataFrame:
    assert of.path is not None
    assert of.columns is not None
    require_options(of.options)
    header = {"header": "true"} if of.format == "csv" else {}
    options: dict[str, Any] = {**header, **of.options}
    schema = struct_type(of.columns, "schema")
    try:
        frame = spark.readStream.format(of.format).schema(schema).options(**options).load(of.path)
        frame.columns  # noqa: B018  (a client of Spark Connect asks its server now)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise TopologyError(f"path: {of.path} does not exist; create the folder first, it may be empty") from error
    return frame


def _topic(spark: SparkSession, spec: JobSection, of: EventsSection) -> DataFrame:
    assert spec.kafka is not None
    assert of.topic is not None
    servers, options = spec.kafka.bootstrap_servers, source_options({**spec.kafka.options, **of.options})
    require_topic(of.topic, servers, options)
    return on_spark(spark, records_of(spark, of.topic, servers, options))
