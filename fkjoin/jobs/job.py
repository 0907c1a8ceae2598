"""A job file's tables and joins, built with the library's own calls, and the job's queries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from fkjoin import sinks
from fkjoin.analysis.bound import Projection, Scope
from fkjoin.analysis.delta_feed import columns_of
from fkjoin.analysis.planned import Settings, called
from fkjoin.analysis.sources import read_files
from fkjoin.analysis.written import schema_of
from fkjoin.checkpoint.begun import Begun, LearnedColumns
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.files import has_begun
from fkjoin.errors import TopologyError
from fkjoin.files.kept_schemas import keep
from fkjoin.files.options import require_options
from fkjoin.files.source import format_of, open_files
from fkjoin.jobs.job_kinds import JobError, Value, located
from fkjoin.jobs.job_sections import (
    EventsSection,
    FormatSection,
    JobSection,
    SinkSection,
    TableSection,
)
from fkjoin.jobs.job_sinks import PlannedQuery, SinkQuery, arguments_at, sink_of, sink_queries
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import require_known_topics
from fkjoin.kafka.options import producer_options, source_options
from fkjoin.kafka.reading import records_of
from fkjoin.kafka.writing import start
from fkjoin.lowering.as_begun import topics_of, with_read_snapshots
from fkjoin.plan.base import unkept
from fkjoin.plan.describe.render import drawn
from fkjoin.plan.describe.steps import SinkStep, Step, job_steps
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import Physical, by_spark, running_in
from fkjoin.plan.rules import Verdict
from fkjoin.sinks import batches
from fkjoin.sinks.ledger import Ledger, require_spark_at, require_together
from fkjoin.sinks.spark_files import require_written, start_by_spark
from fkjoin.spark.dead_letters import as_records
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.query_start import starting
from fkjoin.spark.schemas import arrow_schema, struct_type
from fkjoin.spark.trigger import arguments_of
from fkjoin.table import Table


class Job:
    """A job's tables, built; nothing runs yet."""

    @starting()
    def __init__(self, spec: JobSection, spark: SparkSession) -> None:
        self.spec, self._spark = spec, spark
        order = spec.in_order()
        self.begun = Begun.of_job(spark, self._checkpoint)
        self.tables: dict[str, Any] = {}
        for name, table in spec.tables.items():
            self.tables[name] = self._source(name, table)
        for kind, name in order:
            section = spec.operators[kind, name]
            with located(f"{kind}.{name}", section):
                self.tables[name] = section.build(self._read, name, spec.name)
        for sink in spec.sinks.values():
            self.tables[sink.table]._when(spec.trigger)
        self._sinks = {name: self._sink(name, sink) for name, sink in spec.sinks.items()}
        for where, target in spec.targets.items():
            if target.topic is not None:
                servers, options = self._kafka
                own = target.options if isinstance(target, SinkSection) else {}
                with located(where, target):
                    require_topic(target.topic, servers, source_options({**options, **own}))

    def _read(self, name: str) -> Any:
        """The table, or the stream of events, of that name."""
        return self.tables[name] if name in self.tables else self.events(name)

    @property
    def _checkpoint(self) -> str:
        return self.spec.checkpoint.rstrip("/")

    @property
    def _kafka(self) -> tuple[str, dict[str, Value]]:
        """The brokers and settings of topics.

        ``in_order`` refuses a file with a topic and without them.
        """
        assert self.spec.kafka is not None
        return self.spec.kafka.bootstrap_servers, self.spec.kafka.options

    def describe(self, form: str = "text") -> str:
        """The topology of all sinks: ``text``, ``json``, ``mermaid`` or ``svg``."""
        return drawn(self.steps(), form)

    def steps(self) -> list[Step]:
        """The topology of all sinks, to be drawn."""
        stages = []
        rules: dict[str, Verdict] = {}
        for query in self._sink_queries(run=False):
            stages += self.tables[query.table]._plan.running(f"sink {' and '.join(query.sinks)}")
            rules |= query.rules
        for name, letters in self._letters.items():
            stages += running_in(letters, f"dead letters of {name}")
        ends = []
        for name, section in self.spec.sinks.items():
            sink = self._sinks[name]
            # The sink of another package says itself what it writes to.
            target = section.place if sink is None or section.kind is None else sink.place
            node = self.tables[section.table]._plan.node
            ends.append(SinkStep(name, node, target, rules.get(name)))
        return job_steps(ends, stages)

    @property
    def letters(self) -> str | None:
        """The place of records that cannot be used."""
        target = self.spec.dead_letters
        if target is None:
            return None
        return f"topic {target.topic}" if target.path is None else target.path

    def queries(self) -> list[PlannedQuery]:
        """Every query of the job, upstream ones first: stages, sinks, dead letters."""
        trigger = arguments_of(self.spec.trigger)
        planned = []
        for stage in self.stages:
            checkpoint = f"{self._checkpoint}/{stage.name}"
            begin = functools.partial(stage.start, checkpoint, trigger=trigger)
            planned.append(PlannedQuery(stage.name, checkpoint, "its internal topics", begin))
        for query in self._sink_queries(run=True):
            places = ((sink or self.spec.sinks[name]).place for name, sink in query.sinks.items())
            begin = functools.partial(self._start, query, trigger)
            planned.append(PlannedQuery(query.name, query.checkpoint, " and ".join(places), begin))
        for name in self._letters:
            letters, checkpoint = f"dead-letters-{name}", f"{self._checkpoint}/dead-letters-{name}"
            begin = functools.partial(self._dead_letters, name, trigger, checkpoint)
            planned.append(PlannedQuery(letters, checkpoint, str(self.letters), begin))
        return planned

    @property
    def stages(self) -> list[StageQuery]:
        """The queries of staged operators that sinks need, each once."""
        stages: dict[str, StageQuery] = {}
        for sink in self.spec.sinks.values():
            stages |= {stage.name: stage for stage in self.tables[sink.table].stages}
        return list(stages.values())

    @property
    def _letters(self) -> dict[str, Physical]:
        """The dead letters that queries of their own write, by the tables of sinks."""
        if self.spec.dead_letters is None:
            return {}
        names = dict.fromkeys(sink.table for sink in self.spec.sinks.values())
        plans = {name: self.tables[name]._plan.letters for name in names}
        return {name: letters for name, letters in plans.items() if letters is not None}

    @starting()
    def check(self) -> None:
        """Raise what would stop the start of a query, as far as that can be told.

        Nothing is made or changed.
        """
        self._require_letters()
        for stage in self.stages:
            stage.check(f"{self._checkpoint}/{stage.name}")
        for query in self._sink_queries(run=True):
            checkpoint, table = query.checkpoint, self.tables[query.table]
            with_read_snapshots(table._planned, checkpoint)
            begun = Begun.of(self._spark, checkpoint)
            stateful = not isinstance(table._planned.node, Source)
            require_known_topics(begun, checkpoint, topics_of(table._planned), stateful=stateful)
            batches.require_whole_topics(table._plan, checkpoint)
            with self._located(query):
                require_together(self._spark, checkpoint, query.remembering)
                batches.require_as_begun(table._plan, begun, query.remembering, checkpoint)
            for name, sink in query.sinks.items():
                section = self.spec.sinks[name]
                with located(f"sinks.{name}", section):
                    if isinstance(sink, batches.Checks):
                        sink.check(table._plan)
                    elif section.path is not None:
                        about: Any = {"path": section.path, "checkpoint": checkpoint}
                        require_written(
                            table._plan.changes, section.format, section.options, **about
                        )

    def _require_letters(self) -> None:
        """Raise ``FkJoinError`` if the queries of dead letters do not fit their checkpoints."""
        target = self.spec.dead_letters
        for name, plan in self._letters.items():
            checkpoint = f"{self._checkpoint}/dead-letters-{name}"
            require_begun_with(Begun.of(self._spark, checkpoint), self._spark, checkpoint, plan)
            if target is not None and (folder := target.folder(name)) is not None:
                require_spark_at(self._spark, checkpoint, folder)

    @starting()
    def require_together(self) -> None:
        """Raise ``FkJoinError`` if a target of any query is not where its checkpoint is.

        To be called before the first query starts.
        """
        self._require_letters()
        for query in self._sink_queries(run=True):
            with self._located(query):
                require_together(self._spark, query.checkpoint, query.remembering)

    @starting()
    def restore(self) -> list[str]:
        """Make targets what the checkpoints' states are, see ``Table.restore``.

        Returns the places that were not.
        """
        self._require_letters()
        places: list[str] = []
        for query in self._sink_queries(run=True):
            remembers = any(isinstance(sink, Ledger) for sink in query.own_sinks)
            if remembers and has_begun(self._spark, query.checkpoint):
                with self._located(query):
                    table = self.tables[query.table]
                    places += table.restore(*query.own_sinks, checkpoint=query.checkpoint)
        return places

    def _source(self, name: str, spec: TableSection) -> Table:
        where = f"tables.{name}"
        with located(where, spec):
            if spec.topic is not None:
                servers, options = self._kafka
                about = arguments_at(where, spec, Table.from_kafka)
                about |= {"name": name, "options": {**options, **spec.options}}
                table = Table.from_kafka(self._spark, bootstrap_servers=servers, **about)
            else:
                table = self._files(name, spec)
            if spec.snapshot is not None:
                table = table.with_snapshot(spec.snapshot)
            return table.materialize(name) if spec.materialize else table

    def _files(self, name: str, spec: TableSection) -> Table:
        """The table of files; without a schema, with the columns that the job was begun with."""
        if isinstance(spec.key, FormatSection):
            raise JobError("key: files have columns; give the names of those that are the key")
        columns = self.begun.columns.setdefault(name, LearnedColumns())
        (call,) = spec.of_kind.calls
        about: Any = {**spec.arguments(call.function), "spark": self._spark}
        about |= {"name": name, "schema": spec.columns or columns.schema}
        if call.function == Table.from_files:
            columns.format = spec.format or format_of(spec.path) or columns.format
            about |= {"format": columns.format, "settings": Settings.of(self._spark)}
            about |= {"begun_folders": columns.folders if spec.columns is None else ()}
            table = Table._of(called(read_files, **about))
        else:
            table = call.function(**about)
        if spec.columns is None:
            source = table._planned.bound
            learned: tuple[StructType, tuple[str, ...]] | None = source.learned, source.folders
            if source.learned is None:
                learned = _learned(self._spark, spec)
            if learned is not None:
                keep(self.begun.columns, name, *learned)
        return table

    def events(self, name: str) -> DataFrame:
        """The stream of a section of events; ``JobError`` names the section."""
        spec = self.spec.events[name]
        with located(f"events.{name}", spec):
            if spec.topic is None:
                frame = _event_files(self._spark, spec)
            else:
                servers, shared = self._kafka
                options = source_options({**shared, **spec.options})
                require_topic(spec.topic, servers, options)
                records = records_of(self._spark, spec.topic, servers, options)
                frame = on_spark(self._spark, records)
            if spec.select is None:
                return frame
            schema = arrow_schema("events", frame.schema)
            scope = Scope(frame, tuple(frame.columns), f"events {name}", schema)
            bound = Projection.of("select", spec.select, scope).bound
            return frame.select(*(column.column for column in bound))

    def _sink(self, name: str, spec: SinkSection) -> sinks.Sink | None:
        """None where Spark's own sink writes."""
        with located(f"sinks.{name}", spec):
            if spec.topic is None:
                return sink_of(spec)
            servers, settings = self._kafka
            about = arguments_at(f"sinks.{name}", spec, Table.to_kafka)
            about["options"] = {**producer_options(settings), **spec.options}
            return sinks.Kafka(bootstrap_servers=servers, **about)

    def _sink_queries(self, *, run: bool) -> list[SinkQuery]:
        ends = {name: (spec.table, self._sinks[name]) for name, spec in self.spec.sinks.items()}
        return sink_queries(self._spark, self._checkpoint, ends, run=run)

    def _located(self, query: SinkQuery) -> AbstractContextManager[None]:
        """Put the sinks of a query in front of what goes wrong inside."""
        where = ", ".join(f"sinks.{name}" for name in query.sinks)
        return located(where, self.spec.sinks[next(iter(query.sinks))])

    def _start(self, query: SinkQuery, trigger: Mapping[str, Any]) -> StreamingQuery:
        common: Any = {"checkpoint": query.checkpoint, "trigger": trigger}
        table = self.tables[query.table]
        with self._located(query):
            if query.shared:
                return table.to(*query.own_sinks, **common)
            ((name, sink),) = query.sinks.items()
            common["query_name"] = name
            if isinstance(sink, sinks.Kafka):
                return table.to_kafka(**sink.arguments, **common)
            if sink is not None:
                return batches.start(self._spark, table._as_begun, sink, **common)
            spec = self.spec.sinks[name]
            plan, common["begun"] = table._as_begun(query.checkpoint)
            batches.make_topics(plan, query.checkpoint)
            about = plan.changes_with(), spec.format, spec.options
            common["tables"] = unkept(plan.planned.node)
            return start_by_spark(self._spark, *about, path=spec.path, **common)

    def _dead_letters(
        self, name: str, trigger: Mapping[str, Any], checkpoint: str
    ) -> StreamingQuery:
        spec, query = self.spec.dead_letters, f"dead-letters-{name}"
        assert spec is not None
        plan, begun = self.tables[name]._as_begun(checkpoint)
        common: Any = {"checkpoint": checkpoint, "begun": begun, "trigger": trigger}
        if (folder := spec.folder(name)) is not None:
            common |= {"path": folder, "query_name": query}
            return start_by_spark(self._spark, plan.letters, "json", {}, **common)
        servers, options = self._kafka
        common |= {"options": producer_options(options), "name": query}
        return start(self._spark, by_spark(as_records, plan.letters), spec.topic, servers, **common)


def _learned(spark: SparkSession, spec: TableSection) -> tuple[StructType, tuple[str, ...]] | None:
    """The columns that the files and folders have now; None without files any more."""
    with contextlib.suppress(TopologyError):
        if spec.format == "fkjoin":
            return schema_of(spark, spec.path), ()
        if spec.format == "delta":
            return columns_of(spark, spec.path), ()
        about: Any = {"schema": None, "format": spec.format, "options": spec.options}
        files = open_files(spark, spec.path, spec.key, **about)
        return files.schema, files.folders
    return None


def _event_files(spark: SparkSession, spec: EventsSection) -> DataFrame:
    """The stream of the lines of files."""
    assert spec.path is not None
    assert spec.columns is not None
    require_options(spec.options)
    header = {"header": "true"} if spec.format == "csv" else {}
    options: dict[str, Any] = {**header, **spec.options}
    reader = spark.readStream.format(spec.format).schema(struct_type(spec.columns, "schema"))
    try:
        frame = reader.options(**options).load(spec.path)
        frame.columns  # noqa: B018  (a client of Spark Connect asks its server now)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise TopologyError(
            f"path: {spec.path} does not exist; create the folder first, it may be empty"
        ) from error
    return frame
