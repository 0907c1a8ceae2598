"""The sections of a job file that read and write, and the sections of the job itself."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from fkjoin.errors import FkJoinError, masked, nearest
from fkjoin.files.source import FileFormat
from fkjoin.jobs import installed, job_operators
from fkjoin.jobs.job_kinds import (
    ANY,
    FaceCall,
    JobError,
    Kind,
    Section,
    Texts,
    Value,
    Values,
    of_calls,
    understood,
)
from fkjoin.jobs.purging import interval_s
from fkjoin.kafka import Bytes, Debezium, Format, Json, Registry, String
from fkjoin.lowering.operators import OPERATORS
from fkjoin.metrics.server import ClientAccess
from fkjoin.spark.trigger import arguments_of
from fkjoin.table import Table

TriggerText = Annotated[str, understood("trigger", arguments_of)]
PurgeText = Annotated[str, understood("purge", interval_s)]


def _format_name(text: str) -> str:
    if text not in ("string", "bytes"):
        forms = '"string", "bytes" or {format = …, schema = …}'
        raise ValueError(f"{text!r} is not a format: write {forms}")
    return text


_FormatName = Annotated[str, AfterValidator(_format_name)]

_SCHEMA = {"schema": 'this format needs a schema, such as "id bigint, name string"'}
_REGISTRY = FaceCall(Registry, {"kind": None, "url": "registry", "settings": "registry_settings"})


def _needs_registry(form: str) -> Kind:
    """The kind of a format that is read by a registry only, where the file names none."""
    needs = {"registry": f'format "{form}" needs registry, the address of the schema registry'}
    return Kind(f'format "{form}"', {"format": form}, (_REGISTRY,), needs=needs)


@of_calls
class FormatSection(Section):
    """The format of a key or value."""

    kinds = (
        Kind("a format of another package", {"kind": ANY}, more=("settings",)),
        Kind('format "string"', {"format": "string"}, (FaceCall(String, {"name": "name"}),)),
        Kind('format "bytes"', {"format": "bytes"}, (FaceCall(Bytes, {"name": "name"}),)),
        Kind(
            'format "debezium"',
            {"format": "debezium"},
            (FaceCall(Debezium, {"inner": None}),),
            ("registry", "registry_settings", "retry_s"),
            _SCHEMA,
        ),
        Kind("a format with a registry", {"registry": ANY}, (_REGISTRY,), needs=_SCHEMA),
        Kind(
            'format "json" without a registry', {"format": "json"}, (FaceCall(Json),), needs=_SCHEMA
        ),
        _needs_registry("avro"),
        _needs_registry("protobuf"),
    )
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
    registry: str | None = Field(None, repr=False)
    """The address of the schema registry; for Debezium, of the registry of its Avro schemas."""

    def build(self, name: str) -> Format:
        """The format; ``name``: the name of its column, where it has one only."""
        if self.kind is not None:
            return installed.format_of(self.kind, self.settings)
        if self.format in ("string", "bytes"):
            return (String if self.format == "string" else Bytes)(self.name or name)
        if self.format == "debezium":
            return Debezium(**self.arguments(Debezium), inner=self._inner())
        if self.registry is None:
            return Json(**self.arguments(Json))
        form: Any = self.format
        return Registry(form, **self.arguments(Registry))

    def _inner(self) -> Registry | None:
        """The registry of Debezium's events in Avro."""
        if self.registry is None:
            return None
        settings = self.registry_settings
        return Registry("avro", url=self.registry, settings=settings, retry_s=self.retry_s)


class KafkaSection(Section):
    """Settings that all topics share."""

    bootstrap_servers: str
    """Brokers, as `host:port,host:port`."""
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's Kafka source and sink for all topics, like `kafka.security.protocol`."""


@of_calls
class TableSection(Section):
    """A table, from a topic, from change-log files, or from a Delta table."""

    kinds = (
        Kind(
            "a topic",
            {"topic": ANY},
            (FaceCall(Table.from_kafka),),
            ("snapshot",),
            {
                "value": 'a topic needs value: "string", "bytes" or {format = …, schema = …}',
                "key": "key must be given",
            },
        ),
        Kind(
            'files of format "fkjoin"',
            {"path": ANY, "format": "fkjoin"},
            (FaceCall(Table.from_fkjoin, {"schema": None}),),
        ),
        Kind(
            "a Delta table",
            {"path": ANY, "format": "delta"},
            (FaceCall(Table.from_delta),),
            needs={
                "key": (
                    "key must be given: the columns of which no two rows of the Delta table have "
                    "the same values"
                )
            },
        ),
        Kind(
            "files",
            {"path": ANY},
            (FaceCall(Table.from_files),),
            ("snapshot",),
            {
                "key": "key must be given",
                "version": "files need version: the column that orders the changes of a key",
            },
        ),
    )
    this_is = "this table is read from"
    places = ("topic", "path")

    key: Texts | FormatSection | None = None
    """The format of a topic's keys, or the columns of the key in files and in a Delta table."""
    value: _FormatName | FormatSection | None = None
    """The format of the records' values."""
    columns: str | None = Field(None, alias="schema")
    """The columns of files or a Delta table; without it fkjoin learns them at the first start."""
    format: FileFormat | Literal["fkjoin", "delta"] | None = None
    """The format of files.

    `fkjoin` reads what a Parquet sink of fkjoin wrote, `delta` a Delta table and its changes.
    """
    snapshot: str | None = None
    """A folder of Parquet files whose rows are older than all changes."""
    materialize: bool = False
    """Keep the rows in state under the table's name."""


class EventsSection(Section):
    """A stream of events, from a topic or from files: rows that are sent once."""

    kinds = (
        Kind("a topic", {"topic": ANY}),
        Kind(
            "files",
            {"path": ANY},
            more=("format", "schema"),
            needs={"schema": 'files of events need a schema, such as "id string"'},
        ),
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
    select: Texts | None = None
    """The columns of an event, as expressions over the columns of files or of a topic's record.

    A record contains `key`, `value`, `timestamp`, ....
    """
    options: dict[str, Value] = Field({}, repr=False)
    """Options of Spark's source."""


@of_calls
class SinkSection(Section):
    """A target for a table's changes: a topic, a path, or a table of PostgreSQL or of a catalog."""

    kinds = (
        Kind("a topic", {"topic": ANY}, (FaceCall(Table.to_kafka),)),
        Kind(
            "a table of PostgreSQL",
            {"postgres": ANY},
            (FaceCall(Table.to_postgres, {"dsn": "postgres"}),),
            needs={
                "into": (
                    "postgres, the address of a database, and into, the table in it, go together: "
                    'into = "shop.orders"'
                )
            },
        ),
        Kind("Parquet files", {"path": ANY, "format": "parquet"}, (FaceCall(Table.to_parquet),)),
        Kind(
            "an Iceberg table",
            {"iceberg": ANY},
            (FaceCall(Table.to_iceberg, {"table": "iceberg"}),),
        ),
        Kind("a Delta table", {"path": ANY, "format": "delta"}, (FaceCall(Table.to_delta),)),
        Kind("files of Spark's own sink", {"path": ANY}, more=("format", "options")),
        Kind("a sink of another package", {"kind": ANY}, more=("settings",)),
    )
    this_is = "this sink writes to"
    places = ("topic", "path", "postgres", "iceberg", "kind")

    table: str
    """The table, join or operator whose changes are written, or the enrichment whose events are."""
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

    @property
    def place(self) -> str:
        """The place that it writes to, without addresses that may hold secrets."""
        if self.iceberg is not None:
            return f"iceberg {self.catalog}.{self.iceberg}"
        return masked(str(self.topic or self.path or self.kind or f"postgres {self.into}"))


class PageSection(Section):
    """The access to the page of ``fkjoin run --ui``.

    It has the names of its host, and the token that is asked for.
    """

    names: list[str] = Field(default=[])
    """Names of the host, besides `localhost` and its addresses."""
    token: str | None = Field(default=None, repr=False)
    """The token that the page asks for."""

    @model_validator(mode="after")
    def _usable(self) -> PageSection:
        try:
            ClientAccess(names=tuple(self.names), token=self.token)
        except FkJoinError as error:
            raise ValueError(str(error)) from error
        return self


class SparkSection(BaseModel):
    """The session: Spark's settings by full name, and whether it has Spark's Kafka connector."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    __pydantic_extra__: dict[str, Value] = Field(init=False)

    kafka: bool = False
    """Have Spark's Kafka connector, the newest published one that fits this Spark."""

    @property
    def settings(self) -> dict[str, Value]:
        """Settings of Spark."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="after")
    def _named(self) -> SparkSection:
        for name in self.settings:
            if not name.startswith("spark."):
                raise ValueError(
                    f'{name!r} is not a Spark setting: write "spark.…" = …, or kafka = true'
                )
        return self


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


class JobSection(Section):
    """A whole job file."""

    name: str
    """The name of the job: of its application and its queries."""
    checkpoint: str
    """The folder of the checkpoints, a local one or one that Hadoop knows."""
    trigger: TriggerText = "0 seconds"
    """The time between beginnings of batches, or `available-now` to read what is there and end."""
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
    enrichments: dict[str, job_operators.EnrichmentSection] = Field({})
    """Events with the columns of tables, by name."""
    joins: dict[str, job_operators.JoinSection] = Field({})
    """Joins, by name."""
    children: dict[str, job_operators.ChildrenSection] = Field({})
    """Tables with maps of the rows that point at theirs, by name."""
    aggregates: dict[str, job_operators.AggregateSection] = Field({})
    """Aggregates, by name."""
    cogroups: dict[str, job_operators.CogroupSection] = Field({})
    """Aggregates by one key, side by side, by name."""
    merges: dict[str, job_operators.MergeSection] = Field({})
    """Tables as one, by name."""
    views: dict[str, job_operators.ViewSection] = Field({})
    """Filters and maps, by name."""
    flat_maps: dict[str, job_operators.FlatMapSection] = Field({})
    """Rows that a table's rows make, by name."""
    sinks: dict[str, SinkSection]
    """Targets, by name."""
    dead_letters: DeadLettersSection | None = None
    """The target of dead letters; without it they are counted alone."""
    ui: PageSection = Field(default_factory=PageSection)
    """Access to the page of `--ui`."""

    @property
    def readers(self) -> dict[str, TableSection | EventsSection]:
        """The sections that read, by their names in the file."""
        readers: dict[str, Any] = {f"tables.{name}": table for name, table in self.tables.items()}
        return readers | {f"events.{name}": events for name, events in self.events.items()}

    @property
    def targets(self) -> dict[str, SinkSection | DeadLettersSection]:
        """The sections that are written to, by their names in the file."""
        targets: dict[str, Any] = {f"sinks.{name}": sink for name, sink in self.sinks.items()}
        if self.dead_letters is not None:
            targets["dead_letters"] = self.dead_letters
        return targets

    @property
    def topics(self) -> list[str]:
        """The names of the sections that read or write a topic."""
        ends: dict[str, Any] = {**self.readers, **self.targets}
        return [where for where, end in ends.items() if end.topic is not None]

    @property
    def operators(self) -> dict[tuple[str, str], job_operators.OperatorSection]:
        """All that is made of tables, by section and name."""
        operators: dict[tuple[str, str], job_operators.OperatorSection] = {}
        for kind, sections in self:
            for name, section in sections.items() if isinstance(sections, dict) else ():
                if isinstance(section, job_operators.OperatorSection):
                    operators[kind, name] = section
        return operators

    def in_order(self) -> list[tuple[str, str]]:
        """List what is made of other tables, each after those that it reads, by section and name.

        Raises ``JobError`` for a name that is unknown, or there twice, and for tables that read
        each other in a circle.  So it does for a topic without brokers, and for a sink in a folder
        that is taken.
        """
        operators = self.operators
        known = [*self.tables, *(name for _, name in operators)]
        names = [*known, *self.events]
        streams = [name for (_, name), section in operators.items() if section.stream is not None]
        tables, events = [name for name in known if name not in streams], [*self.events, *streams]
        for kind, name in [*(("events", name) for name in self.events), *operators]:
            if names.count(name) > 1:
                raise JobError(f"{kind}.{name}: a table has this name already; choose another")
        for (kind, name), section in operators.items():
            for setting, table in section.reads.items():
                where = f"{kind}.{name}.{setting}"
                if setting != section.stream:
                    _require_known(where, table, tables)
                elif table not in events:
                    near = nearest(table, events)
                    raise JobError(f"{where}: there are no events {table!r}; {near}")
        for name, sink in self.sinks.items():
            _require_known(f"sinks.{name}.table", sink.table, known)
        if self.topics and self.kafka is None:
            raise JobError(
                f"{self.topics[0]}: topics need a section [kafka] with bootstrap_servers = "
                '"host:port"'
            )
        self._require_own_folders()
        kinds = {name: kind for kind, name in operators}
        reads = {name: section.reads.values() for (_, name), section in operators.items()}
        try:
            order = list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            circle = sorted({f"{kinds[name]}.{name}" for name in error.args[1]})
            raise JobError(
                f"tables and operators read each other in a circle: {', '.join(circle)}"
            ) from error
        return [(kinds[name], name) for name in order if name in kinds]

    def _require_own_folders(self) -> None:
        """Refuse a folder of files that is also another sink's, or a table's.

        Its readers could not tell whose rows they are.
        """
        taken = {}
        for where, section in self.readers.items():
            if section.path and section.format != "fkjoin":
                taken[_folder(section.path)] = where
        if (letters := self.dead_letters) is not None and letters.path is not None:
            own = [str(letters.folder(sink.table)) for sink in self.sinks.values()]
            taken |= {_folder(folder): "dead_letters" for folder in (letters.path, *own)}
        for name, sink in self.sinks.items():
            if sink.path:
                where, folder = f"sinks.{name}", _folder(sink.path)
                # Sinks may share a Delta table.
                of_folder = taken.get if sink.format == "delta" else taken.setdefault
                if (other := of_folder(folder, where)) != where:
                    raise JobError(
                        f"{where}.path: this is the folder of {other}, too; give each a folder of "
                        "its own"
                    )


def _require_known(where: str, table: str, known: Sequence[str]) -> None:
    if table not in known:
        raise JobError(f"{where}: there is no table or join {table!r}; {nearest(table, known)}")


def _folder(path: str) -> str:
    return path.removeprefix("file://").removeprefix("file:").rstrip("/")


def job_section() -> type[JobSection]:
    """The sections of a job file, also of operators that have no model."""
    fields: dict[str, Any] = {}
    for operator in OPERATORS.values():
        if operator.section is not None and operator.section not in JobSection.model_fields:
            model: Any = job_operators.section_of(operator)
            fields[operator.section] = dict[str, model], Field({})
    return create_model("JobSection", __base__=JobSection, **fields) if fields else JobSection
