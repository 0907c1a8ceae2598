"""The sections of a job file and their settings, each with what editors and the reference say of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from fkjoin.errors import masked
from fkjoin.files.source import FileFormat
from fkjoin.jobs import installed
from fkjoin.jobs.job_columns import KnownColumns, named, names_in, require_known
from fkjoin.jobs.job_kinds import ANY, JobError, Kind, PageSection, Section, SparkSection, Strict, Value, Values
from fkjoin.jobs.job_operators import (
    AggregateSection,
    ChildrenSection,
    EnrichmentSection,
    FlatMapSection,
    JoinSection,
    OperatorSection,
    TogetherSection,
    ViewSection,
    section_of,
    understood,
)
from fkjoin.jobs.purging import interval_s
from fkjoin.kafka import Bytes, Debezium, Format, Json, Registry, String
from fkjoin.kafka.connection import OnNewTopic
from fkjoin.lowering.operators import OPERATORS
from fkjoin.sinks import RETRY_S
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.trigger import arguments_of
from fkjoin.spark.unavailable import PLACEHOLDER

_NEEDS_COLUMNS = {"columns": 'this format needs a schema, such as "id bigint, name string"'}
_OF_REGISTRY = "columns", "registry", "registry_settings", "write_schema", "subject", "units", "retry_s"
"""Settings of formats with a registry."""

TriggerText = Annotated[str, understood("trigger", arguments_of)]
PurgeText = Annotated[str, understood("purge", interval_s)]


class FormatSection(Section):
    """The format of a key or value."""

    kinds = (
        Kind("a format of another package", {"kind": ANY}, ("settings",)),
        Kind('format "string"', {"format": "string"}, ("name",)),
        Kind('format "bytes"', {"format": "bytes"}, ("name",)),
        Kind(
            'format "debezium"',
            {"format": "debezium"},
            ("columns", "units", "placeholder", "unavailable", "source", "registry", "registry_settings", "retry_s"),
            _NEEDS_COLUMNS,
        ),
        Kind("a format with a registry", {"registry": ANY}, _OF_REGISTRY, _NEEDS_COLUMNS),
        Kind('format "json" without a registry', {"format": "json"}, ("columns", "text", "units"), _NEEDS_COLUMNS),
        *(
            Kind(
                words, {"format": of}, _OF_REGISTRY, {"registry": f"{words} needs registry, the address of the schema registry"}
            )
            for of, words in (("avro", 'format "avro"'), ("protobuf", 'format "protobuf"'))
        ),
    )
    this_is = "this is"
    places = ("format", "kind")

    format: Literal["string", "bytes", "json", "debezium", "avro", "protobuf"] | None = None
    """The form of the bytes."""
    kind: str | None = None
    """The name of a format that another package has, its entry point of `fkjoin.formats`."""
    settings: dict[str, Values] = Field({}, repr=False)
    """Arguments of a format of another package."""
    columns: str | None = Field(None, alias="schema")
    """The columns, such as `"id bigint, name string"`."""
    name: str | None = None
    """The name of the one column that text or bytes have."""
    text: str | None = None
    """A further column with the object's whole text."""
    registry: str | None = Field(None, repr=False)
    """The address of the schema registry; of Debezium's events, that of their Avro schemas."""
    registry_settings: dict[str, Value] = Field({}, repr=False)
    """Settings of the registry's client."""
    write_schema: str | None = None
    """The schema to write by."""
    subject: str | None = None
    """The registry's subject to write under."""
    retry_s: float = Field(RETRY_S, ge=0, allow_inf_nan=False)
    """Seconds for which a registry that does not answer is asked again."""
    units: dict[str, str] = Field({})
    """Units of numbers in columns of times, such as `{since = "micros"}`."""
    placeholder: str = PLACEHOLDER
    """The value by which Debezium says that an event lacks a value."""
    unavailable: Literal["problem", "keep"] = "problem"
    """Handling of an event that lacks a value: `problem` makes it a dead letter, `keep` keeps the table's value."""
    source: str | None = None
    """Columns of the event's `source` that `version` and `timestamp` may name."""

    def build(self, name: str) -> Format:
        if self.kind is not None:
            return installed.format_of(self.kind, self.settings, name)
        if self.format == "string":
            return String(self.name or name)
        if self.format == "bytes":
            return Bytes(self.name or name)
        assert self.columns is not None
        if self.format == "debezium":
            how: Any = {"units": self.units, "placeholder": self.placeholder, "unavailable": self.unavailable}
            if self.source is not None:
                how["source"] = self.source
            if self.registry is not None:
                how["inner"] = self._registry("avro")
            return Debezium(self.columns, **how)
        if self.registry is None:
            return Json(self.columns, self.text, self.units)
        assert self.format is not None
        writing = {"write_schema": self.write_schema, "subject": self.subject}
        return self._registry(self.format, schema=self.columns, units=self.units, **writing)

    def _registry(self, kind: Any, **more: Any) -> Registry:
        assert self.registry is not None
        return Registry(kind, url=self.registry, settings=self.registry_settings, retry_s=self.retry_s, **more)

    def names(self, name: str) -> list[str] | None:
        """The names of its columns; None where they cannot be told."""
        if self.format in ("string", "bytes"):
            return [self.name or name]
        columns = None if self.columns is None else names_in(self.columns)
        return columns if columns is None or self.text is None else [*columns, self.text]


def _names(where: str, form: Any, name: str) -> list[str] | None:
    """The names of the columns of a record's key or value."""
    if isinstance(form, FormatSection):
        return form.names(name)
    if isinstance(form, str) and form not in ("string", "bytes"):
        forms = '"string", "bytes" or {format = …, schema = …}'
        raise JobError(f"{where}.{name}: {form!r} is no format: write {forms}")
    return [name]


class KafkaSection(Strict):
    """Settings that all topics share."""

    bootstrap_servers: str
    """Brokers, as `host:port,host:port`."""
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's Kafka source and sink for all topics, such as `kafka.security.protocol`."""


class TableSection(Section):
    """A table, from a topic, from change-log files, or from a Delta table."""

    kinds = (
        Kind(
            "a topic",
            {"topic": ANY},
            ("key", "value", "version", "deleted", "timestamp", "on_new_topic", "headers", "roots", "positions", "snapshot"),
            {"value": 'a topic needs value: "string", "bytes" or {format = …, schema = …}', "key": "key must be given"},
        ),
        Kind('files of format "fkjoin"', {"path": ANY, "format": "fkjoin"}, ("format",)),
        Kind(
            "a Delta table",
            {"path": ANY, "format": "delta"},
            ("key", "timestamp", "columns", "format"),
            {"key": "key must be given: the columns of which no two rows of the Delta table have the same values"},
        ),
        Kind(
            "files",
            {"path": ANY},
            ("key", "version", "deleted", "timestamp", "log", "columns", "format", "snapshot"),
            {"key": "key must be given", "version": "files need version: the column that orders the changes of a key"},
        ),
    )
    this_is = "this table is read from"
    places = ("topic", "path")

    topic: str | None = None
    """The topic that has the changes."""
    path: str | None = None
    """The folder of files that have the changes, or of a Delta table."""
    key: str | list[str] | FormatSection | None = None
    """The format of a topic's keys, or the columns of the key in files and in a Delta table."""
    value: str | FormatSection | None = None
    """The format of the records' values."""
    version: str | list[str] | None = None
    """Whole-number expressions that order the changes of a key; a topic needs none."""
    deleted: str | None = None
    """A condition that is true for changes that delete their key."""
    timestamp: str | None = None
    """The time of a change."""
    log: str | None = None
    """The name of the log that several tables are cut from, if its versions order changes across them too."""
    columns: str | None = Field(None, alias="schema")
    """The columns of files or of a Delta table; without it fkjoin learns them at the first start."""
    format: FileFormat | Literal["fkjoin", "delta"] | None = None
    """The format of files; `fkjoin` reads what a Parquet sink of fkjoin wrote, `delta` a Delta table and its changes."""
    on_error: OnError = "dead-letter"
    """Handling of changes that do not parse or evaluate: `fail` stops the query, `dead-letter` sets them aside."""
    on_new_topic: OnNewTopic | None = None
    """Action of a start on a topic that was deleted and created again."""
    headers: bool = False
    """Have the records' headers in a column `headers`."""
    roots: int | None = Field(None, ge=1)
    """The number of root topics in the header `fkjoin-positions` of the records."""
    positions: bool = False
    """Have where each row's record was read, in a column `_position`."""
    snapshot: str | None = None
    """A folder of Parquet files whose rows are older than all changes."""
    materialize: bool = False
    """Keep the rows in state under the table's name."""
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's source."""

    def known_columns(self, name: str) -> KnownColumns:
        """The columns of the table; unknown without a schema.

        Raises ``JobError`` for the name of a column that no row can have.
        """
        where = f"tables.{name}"
        if self.topic is not None:
            key, value = _names(where, self.key, "key"), _names(where, self.value, "value")
            if key is None or value is None:
                return None
            return named([*key, *value, "headers", "_position"])
        names = None if self.columns is None else names_in(self.columns)
        if names is None:
            return None
        columns = named([*names, "_metadata"])
        for setting in ("key", "version", "timestamp", "deleted"):
            require_known(f"{where}.{setting}", getattr(self, setting), columns, name)
        return columns


class EventsSection(Section):
    """A stream of events, from a topic or from files: rows that are sent once."""

    kinds = (
        Kind("a topic", {"topic": ANY}),
        Kind("files", {"path": ANY}, ("format", "columns"), {"columns": 'files of events need a schema, such as "id string"'}),
    )
    this_is = "these events are read from"
    places = ("topic", "path")

    topic: str | None = None
    """The topic that has the events."""
    path: str | None = None
    """The folder of files that have the events."""
    format: FileFormat = "json"
    """The format of files."""
    columns: str | None = Field(None, alias="schema")
    """The columns of files."""
    select: str | list[str] | None = None
    """The columns of an event, expressions over those of files, or of a topic's record: `key`, `value`, `timestamp`, ...."""
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's source."""


class SinkSection(Section):
    """A target for the changes of a table: a topic, a path, or a table of PostgreSQL or of a catalog."""

    kinds = (
        Kind("a topic", {"topic": ANY}, ("key", "value", "headers", "positions", "options")),
        Kind(
            "a table of PostgreSQL",
            {"postgres": ANY},
            ("into", "on_error", "retry_s"),
            {"into": 'postgres, the address of a database, and into, the table in it, go together: into = "shop.orders"'},
        ),
        Kind("Parquet files", {"path": ANY, "format": "parquet"}, ("format", "options", "retry_s")),
        Kind("an Iceberg table", {"iceberg": ANY}, ("catalog", "options", "evolve", "retry_s")),
        Kind(
            "a Delta table",
            {"path": ANY, "format": "delta"},
            ("format", "options", "evolve", "retry_s", "partition_by", "optimize_every", "vacuum_every"),
        ),
        Kind("files of Spark's own sink", {"path": ANY}, ("format", "options")),
        Kind("a sink of another package", {"kind": ANY}, ("settings",)),
    )
    this_is = "this sink writes to"
    places = ("topic", "path", "postgres", "iceberg", "kind")

    table: str
    """The table, join or other operator whose changes are written, or the enrichment whose events are."""
    topic: str | None = None
    """The topic to write records to."""
    path: str | None = None
    """The folder of files or of a Delta table."""
    postgres: str | None = Field(None, repr=False)
    """The address of a database, such as `host=db dbname=shop user=job`."""
    into: str | None = None
    """The table in the database."""
    iceberg: str | None = None
    """A table of Iceberg with its namespace, such as `shop.orders`."""
    catalog: str = "default"
    """The name of Iceberg's catalog, by which pyiceberg finds properties in its configuration."""
    kind: str | None = None
    """The name of a sink that another package has, its entry point of `fkjoin.sinks`."""
    settings: dict[str, Values] = Field({}, repr=False)
    """Arguments of a sink of another package."""
    format: str = "parquet"
    """`parquet`, `delta`, or a format of Spark's own sinks."""
    key: str | FormatSection | None = None
    """The format of the records' keys."""
    value: str | FormatSection | None = None
    """The format of the records' values, or an expression that makes them."""
    headers: str | None = None
    """An expression that makes the headers."""
    positions: bool = False
    """Write where in its source each row was read, as headers."""
    on_error: OnError = "fail"
    """Handling of rows that the table cannot have: `fail` stops the query, `dead-letter` sets them aside."""
    retry_s: float = Field(RETRY_S, ge=0, allow_inf_nan=False)
    """Seconds for which a write is repeated during an outage."""
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's sink, or of the storage of Parquet files or a Delta table; properties of Iceberg's catalog."""
    evolve: bool = False
    """Add columns that the table lacks, when the job starts; in Iceberg also widen types."""
    partition_by: str | list[str] = Field([])
    """Columns by whose values a new table has its files in folders."""
    optimize_every: int | None = Field(None, ge=1)
    """After so many batches, compact small files (OPTIMIZE)."""
    vacuum_every: int | None = Field(None, ge=1)
    """After so many batches, delete files that no version of the last week has (VACUUM)."""

    @property
    def place(self) -> str:
        """The place that it writes to, without addresses that may hold secrets."""
        if self.iceberg is not None:
            return f"iceberg {self.catalog}.{self.iceberg}"
        return masked(str(self.topic or self.path or self.kind or f"postgres {self.into}"))


class DeadLettersSection(Section):
    """A target for records that cannot be used."""

    kinds = (Kind("a topic", {"topic": ANY}), Kind("files", {"path": ANY}))
    this_is, places = "they go to", ("topic", "path")

    topic: str | None = None
    """A topic, which must be there."""
    path: str | None = None
    """A folder, with a folder of JSON files for each table that a sink writes."""

    def folder(self, table: str) -> str | None:
        """The folder that the query of a table's dead letters alone writes; None for a topic."""
        return None if self.path is None else f"{self.path.rstrip('/')}/{table}"


class JobSection(Strict):
    """A whole job file."""

    name: str
    """The name of the job: of its application and its queries."""
    checkpoint: str
    """The folder of the checkpoints, a local one or one that Hadoop knows."""
    trigger: TriggerText = "0 seconds"
    """The time between the beginnings of batches, or `available-now` to read what is there and end."""
    purge: PurgeText = "10 minutes"
    """The time between two purges of the topics between stages, or `never`."""
    log: str | None = None
    """A file that gets a JSON line for each batch, or `-` for standard output."""
    spark: SparkSection = Field(default_factory=SparkSection, repr=False)
    """The session."""
    kafka: KafkaSection | None = None
    """The brokers."""
    tables: dict[str, TableSection]
    """Tables that are read, by name."""
    events: dict[str, EventsSection] = Field({})
    """Streams of events that are read, by name."""
    enrichments: dict[str, EnrichmentSection] = Field({})
    """Events with the columns of tables, by name."""
    joins: dict[str, JoinSection] = Field({})
    """Joins, by name."""
    children: dict[str, ChildrenSection] = Field({})
    """Tables with maps of the rows that point at theirs, by name."""
    aggregates: dict[str, AggregateSection] = Field({})
    """Aggregates, by name."""
    cogroups: dict[str, TogetherSection] = Field({})
    """Aggregates by one key, side by side, by name."""
    merges: dict[str, TogetherSection] = Field({})
    """Tables as one, by name."""
    views: dict[str, ViewSection] = Field({})
    """Filters and maps, by name."""
    flat_maps: dict[str, FlatMapSection] = Field({})
    """Rows that a table's rows make, by name."""
    sinks: dict[str, SinkSection]
    """Targets, by name."""
    dead_letters: DeadLettersSection | None = None
    """The target of dead letters; without it they are counted alone."""
    ui: PageSection = Field(default_factory=PageSection)
    """Access to the page of `--ui`."""

    @property
    def operators(self) -> dict[tuple[str, str], OperatorSection]:
        """All that is made of tables, by section and name."""
        operators: dict[tuple[str, str], OperatorSection] = {}
        for kind, sections in self:
            for name, section in sections.items() if isinstance(sections, dict) else ():
                if isinstance(section, OperatorSection):
                    operators[kind, name] = section
        return operators


def job_section() -> type[JobSection]:
    """The sections of a job file, also those of operators that have no model."""
    fields: dict[str, Any] = {}
    for operator in OPERATORS.values():
        if operator.section is not None and operator.section not in JobSection.model_fields:
            model: Any = section_of(operator)
            fields[operator.section] = dict[str, model], Field({})
    return create_model("JobSection", __base__=JobSection, **fields) if fields else JobSection
