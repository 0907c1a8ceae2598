"""A job file's tables and joins, built with the library's own calls, and the queries that make a job of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from fkjoin import sinks
from fkjoin.analysis.delta_feed import columns_of
from fkjoin.analysis.planned import Settings, called
from fkjoin.analysis.sources import read_files
from fkjoin.analysis.written import schema_of
from fkjoin.checkpoint.begun import Begun, LearnedColumns
from fkjoin.checkpoint.files import has_begun
from fkjoin.errors import TopologyError
from fkjoin.files.kept_schemas import keep
from fkjoin.files.source import format_of, open_files
from fkjoin.jobs.job_kinds import JobError, Value, located
from fkjoin.jobs.job_order import in_order
from fkjoin.jobs.job_sections import DeadLettersSection, FormatSection, JobSection, SinkSection, TableSection
from fkjoin.jobs.job_sinks import PlannedQuery, SinkQuery, arguments_at, sink_of, sink_queries
from fkjoin.jobs.places import require_letters
from fkjoin.kafka.admin import require_topic
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.new_topics import require_known_topics
from fkjoin.kafka.options import client_options, source_options
from fkjoin.kafka.writing import start
from fkjoin.lowering.as_begun import topics_of, with_read_snapshots
from fkjoin.plan.describe.render import drawn
from fkjoin.plan.describe.steps import SinkStep, Step, job_steps
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import Physical, by_spark, running_in
from fkjoin.sinks import batches
from fkjoin.sinks.ledger import Ledger, require_together
from fkjoin.sinks.spark_files import require_written, start_by_spark
from fkjoin.spark.dead_letters import as_records
from fkjoin.spark.query_start import starting
from fkjoin.spark.trigger import arguments_of
from fkjoin.table import Table


class Job:
    """A job's tables, built; nothing runs yet."""

    @starting()
    def __init__(self, spec: JobSection, spark: SparkSession) -> None:
        self.spec, self._spark = spec, spark
        order = in_order(spec)
        queries = [*(f"sink-{name}" for name in spec.sinks), *(f"sinks-{sink.table}" for sink in spec.sinks.values())]
        self.begun = Begun.read(spark, self._checkpoint)
        if not any(has_begun(spark, f"{self._checkpoint}/{query}") for query in queries):
            self.begun.columns.clear()
        self.tables: dict[str, Any] = {name: self._source(spark, name, table) for name, table in spec.tables.items()}
        for kind, name in order:
            section = spec.operators[kind, name]
            with located(f"{kind}.{name}", section):
                self.tables[name] = section.build(self, kind, name)
        for sink in spec.sinks.values():
            self.tables[sink.table]._when(spec.trigger)
        self._sinks = {name: self._sink(name, sink) for name, sink in spec.sinks.items()}
        for name, sink in spec.sinks.items():
            self._require_topic(f"sinks.{name}", sink, sink.options)
        if spec.dead_letters is not None:
            self._require_topic("dead_letters", spec.dead_letters, {})

    def _require_topic(self, where: str, target: SinkSection | DeadLettersSection, own: Mapping[str, Value]) -> None:
        if target.topic is not None:
            servers, options = self._kafka
            with located(where, target):
                require_topic(target.topic, servers, source_options({**options, **own}))

    @property
    def _checkpoint(self) -> str:
        return self.spec.checkpoint.rstrip("/")

    def describe(self, form: str = "text") -> str:
        """The topology of all sinks: ``text``, ``json``, ``mermaid`` or ``svg``."""
        return drawn(self.steps(), form)

    def steps(self) -> list[Step]:
        """The topology of all sinks, to be drawn."""
        queries = self._sink_queries(run=False)
        rules = {name: rule for query in queries for name, rule in query.rules.items()}
        tables = {name: self.tables[sink.table]._plan for name, sink in self.spec.sinks.items()}
        stages = []
        for query in queries:
            stages += tables[query.sinks[0]].running(f"sink {' and '.join(query.sinks)}")
        for name, letters in self._letters.items():
            stages += running_in(letters, f"dead letters of {name}")
        made = {name: sink.place for name, sink in self._sinks.items() if sink is not None and self.spec.sinks[name].kind}
        places = {name: made.get(name, sink.place) for name, sink in self.spec.sinks.items()}
        ends = [SinkStep(name, tables[name].node, place, rules.get(name)) for name, place in places.items()]
        return job_steps(ends, stages)

    @property
    def letters(self) -> str | None:
        """The place of records that cannot be used."""
        place = self.spec.dead_letters
        return None if place is None else f"topic {place.topic}" if place.path is None else place.path

    def queries(self) -> list[PlannedQuery]:
        """Every query of the job, upstream ones first: stages, sinks, dead letters."""
        trigger = arguments_of(self.spec.trigger)
        planned: dict[str, PlannedQuery] = {}

        def plan(name: str, target: str, start: Callable[[str], StreamingQuery]) -> None:
            checkpoint = f"{self._checkpoint}/{name}"
            planned.setdefault(name, PlannedQuery(name, checkpoint, target, functools.partial(start, checkpoint)))

        for stage in self.stages:
            plan(stage.name, "its internal topics", functools.partial(stage.start, trigger=trigger))
        for query in self._sink_queries(run=True):
            places = ((self._sinks[name] or self.spec.sinks[name]).place for name in query.sinks)
            plan(query.name, " and ".join(places), functools.partial(self._start, query, trigger))
        for name in self._letters:
            plan(f"dead-letters-{name}", str(self.letters), functools.partial(self._dead_letters, name, trigger))
        return list(planned.values())

    @property
    def stages(self) -> list[StageQuery]:
        """The queries of staged operators that sinks need, each once."""
        return list({one.name: one for sink in self.spec.sinks.values() for one in self.tables[sink.table].stages}.values())

    @property
    def _letters(self) -> dict[str, Physical]:
        """The dead letters that queries of their own write, by the tables of sinks."""
        names = dict.fromkeys(sink.table for sink in self.spec.sinks.values()) if self.spec.dead_letters is not None else ()
        plans = {name: self.tables[name]._plan.letters for name in names}
        return {name: letters for name, letters in plans.items() if letters is not None}

    @starting()
    def check(self) -> None:
        """Raise what would stop the start of a query, as far as that can be told; nothing is made or changed."""
        require_letters(self._spark, self.spec, self._letters)
        for stage in self.stages:
            stage.check(f"{self._checkpoint}/{stage.name}")
        for query in self._sink_queries(run=True):
            checkpoint, table = f"{self._checkpoint}/{query.name}", self.tables[self.spec.sinks[query.sinks[0]].table]
            with_read_snapshots(table._planned, checkpoint)
            begun, stateful = Begun.of(self._spark, checkpoint), not isinstance(table._planned.node, Source)
            topics = topics_of(table._planned)
            require_known_topics(begun, checkpoint, topics, stateful=stateful)
            batches.require_whole_topics(table._plan, checkpoint)
            of_query = {name: self._sinks[name] for name in query.sinks}
            with located(", ".join(f"sinks.{one}" for one in query.sinks), self.spec.sinks[query.sinks[0]]):
                require_together(self._spark, checkpoint, self._remembering(query))
                batches.require_as_begun(table._plan, begun, self._remembering(query), checkpoint)
            for name, sink in of_query.items():
                with located(f"sinks.{name}", self.spec.sinks[name]):
                    if isinstance(sink, batches.Checks):
                        sink.check(table._plan)
                    elif (path := self.spec.sinks[name].path) is not None:
                        given = self.spec.sinks[name].format, self.spec.sinks[name].options
                        require_written(table._plan.changes, *given, path=path, checkpoint=checkpoint)

    @starting()
    def require_together(self) -> None:
        """``FkJoinError`` if a target of any query is not where its checkpoint is, before the first of them starts."""
        require_letters(self._spark, self.spec, self._letters)
        for query in self._sink_queries(run=True):
            with located(", ".join(f"sinks.{one}" for one in query.sinks), self.spec.sinks[query.sinks[0]]):
                require_together(self._spark, f"{self._checkpoint}/{query.name}", self._remembering(query))

    def _remembering(self, query: SinkQuery) -> dict[str, sinks.Sink]:
        """The sinks of a query, by what is added to its id where they remember its batches."""
        made = [sink for name in query.sinks if (sink := self._sinks[name]) is not None]
        return {f" {sink.place}" if query.shared else "": sink for sink in made}

    @starting()
    def restore(self) -> list[str]:
        """Make targets what the checkpoints' states are, see ``Table.restore``; the places that were not."""
        require_letters(self._spark, self.spec, self._letters)
        places: list[str] = []
        for query in self._sink_queries(run=True):
            checkpoint, table = f"{self._checkpoint}/{query.name}", self.tables[self.spec.sinks[query.sinks[0]].table]
            targets = [sink for name in query.sinks if (sink := self._sinks[name]) is not None]
            if has_begun(self._spark, checkpoint) and any(isinstance(sink, Ledger) for sink in targets):
                with located(", ".join(f"sinks.{name}" for name in query.sinks), self.spec.sinks[query.sinks[0]]):
                    places += table.restore(*targets, checkpoint=checkpoint)
        return places

    def _source(self, spark: SparkSession, name: str, spec: TableSection) -> Table:
        where = f"tables.{name}"
        with located(where, spec):
            if spec.topic is not None:
                servers, options = self._kafka
                about = arguments_at(where, spec, "version", "deleted", "timestamp", "headers")
                about |= spec.arguments("on_error", "on_new_topic", "roots", "positions")
                about |= {"name": name, "options": {**options, **spec.options}}
                table = Table.from_kafka(spark, spec.topic, servers, **about)
            else:
                table = self._files(spark, name, spec)
            if spec.snapshot is not None:
                table = table.with_snapshot(spec.snapshot)
            return table.materialize(name) if spec.materialize else table

    def _files(self, spark: SparkSession, name: str, spec: TableSection) -> Table:
        """The table of files; without a schema, with the columns that the job was begun with."""
        if isinstance(spec.key, FormatSection):
            raise JobError("key: files have columns; name those that are the key")
        assert spec.path is not None
        columns = self.begun.columns.setdefault(name, LearnedColumns())
        kept = columns.schema
        about: Any = {"name": name, "on_error": spec.on_error, "options": spec.options}
        if spec.format == "fkjoin":
            table = Table.from_fkjoin(spark, spec.path, schema=kept, **about)
        elif spec.format == "delta":
            assert spec.key is not None
            of_table: Any = {"key": spec.key, "timestamp": spec.timestamp, "schema": spec.columns or kept}
            table = Table.from_delta(spark, spec.path, **of_table, **about)
        else:
            form = spec.format or format_of(spec.path) or columns.format
            assert form is not None
            about |= spec.arguments("path", "key", "version", "deleted", "timestamp", "log")
            about |= {"schema": spec.columns or kept, "format": form}
            table = Table._of(called(read_files, spark=spark, settings=Settings.of(spark), **about))
            columns.format = form
        if spec.columns is None:
            source = table._planned.bound
            learned = _learned(spark, spec) if source.learned is None else (source.learned, source.folders)
            if learned is not None:
                keep(self.begun.columns, name, *learned)
        return table

    @property
    def _kafka(self) -> tuple[str, dict[str, Value]]:
        """The brokers and settings of topics; ``in_order`` refuses a file with a topic and without them."""
        assert self.spec.kafka is not None
        return self.spec.kafka.bootstrap_servers, self.spec.kafka.options

    def _sink(self, name: str, spec: SinkSection) -> sinks.Sink | None:
        """None where Spark's own sink writes."""
        with located(f"sinks.{name}", spec):
            if spec.topic is not None:
                servers, settings = self._kafka
                about = arguments_at(f"sinks.{name}", spec, "headers", "positions")
                options = {**client_options(settings), **spec.options}
                return sinks.Kafka(spec.topic, servers, options=options, **about)
            return sink_of(spec)

    def _sink_queries(self, *, run: bool) -> list[SinkQuery]:
        given = {name: (spec.table, self._sinks[name]) for name, spec in self.spec.sinks.items()}
        return sink_queries(self._spark, self._checkpoint, given, run=run)

    def _start(self, query: SinkQuery, trigger: Mapping[str, Any], checkpoint: str) -> StreamingQuery:
        common: Any = {"checkpoint": checkpoint, "trigger": trigger}
        name = query.sinks[0]
        spec, sink = self.spec.sinks[name], self._sinks[name]
        table = self.tables[spec.table]
        with located(", ".join(f"sinks.{one}" for one in query.sinks), self.spec.sinks[query.sinks[0]]):
            if query.shared:
                places = (found for one in query.sinks if (found := self._sinks[one]) is not None)
                return table.to(*places, **common)
            if isinstance(sink, sinks.Kafka):
                return table.to_kafka(**sink.arguments, **common, query_name=name)
            if sink is not None:
                return batches.start(self._spark, table._as_begun, sink, **common, query_name=name)
            assert spec.path is not None
            begun_as, begun = table._as_begun(checkpoint)
            common |= {"begun": begun, "query_name": name, "path": spec.path}
            batches.make_topics(begun_as, checkpoint)
            plan = begun_as.changes_plan
            return start_by_spark(self._spark, plan, spec.format, spec.options, **common)

    def _dead_letters(self, name: str, trigger: Mapping[str, Any], checkpoint: str) -> StreamingQuery:
        spec, query = self.spec.dead_letters, f"dead-letters-{name}"
        assert spec is not None
        begun_as, begun = self.tables[name]._as_begun(checkpoint)
        common: Any = {"checkpoint": checkpoint, "begun": begun, "trigger": trigger}
        letters = begun_as.letters
        assert letters is not None
        if (folder := spec.folder(name)) is not None:
            return start_by_spark(self._spark, letters, "json", {}, path=folder, **common, query_name=query)
        servers, options = self._kafka
        records = by_spark(as_records, letters)
        return start(self._spark, records, spec.topic, servers, options=client_options(options), **common, name=query)


def _learned(spark: SparkSession, spec: TableSection) -> tuple[StructType, tuple[str, ...]] | None:
    """The columns that the files have now, and those of folders; None where there are no files any more."""
    assert spec.path is not None
    with contextlib.suppress(TopologyError):
        if spec.format == "fkjoin":
            return schema_of(spark, spec.path), ()
        if spec.format == "delta":
            return columns_of(spark, spec.path), ()
        files = open_files(spark, spec.path, spec.key, schema=None, format=spec.format, options=spec.options)
        return files.schema, files.folders
    return None
