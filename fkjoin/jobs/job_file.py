"""A job as a TOML file: tables, joins, where results go; parsed strictly."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from fkjoin.analysis.checks import Deployment
from fkjoin.errors import nearest
from fkjoin.files.source import FileFormat
from fkjoin.jobs.job_kinds import ANY, JobError, Kind, PageSpec, Section, SparkSpec, Strict, Value
from fkjoin.jobs.job_operators import EmitSpec, FlatMapSpec, understood
from fkjoin.jobs.job_order import in_order
from fkjoin.kafka import Bytes, Debezium, Format, Json, Registry, String
from fkjoin.kafka.connection import OnNewTopic
from fkjoin.kafka.wire import Wire
from fkjoin.sinks import RETRY_S
from fkjoin.spark.change_events import PLACEHOLDER
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.trigger import arguments_of
from fkjoin.stages import How

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


def _needs_columns(of: str) -> dict[str, str]:
    return {"columns": f'format "{of}" needs a schema, such as "id bigint, name string"'}


TriggerSpec = Annotated[str, understood("trigger", arguments_of)]


class FormatSpec(Section):
    """The format of a key or value."""

    kinds = (
        Kind('format "string"', {"format": "string"}, ("name",)),
        Kind('format "bytes"', {"format": "bytes"}, ("name",)),
        Kind(
            'format "debezium"',
            {"format": "debezium"},
            ("columns", "units", "placeholder", "unavailable", "source"),
            _needs_columns("debezium"),
        ),
        Kind(
            "a format with a registry",
            {"registry": ANY},
            ("columns", "registry", "registry_settings", "write_schema", "subject"),
            _needs_columns("json"),
        ),
        Kind('format "json" without a registry', {"format": "json"}, ("columns", "text", "units"), _needs_columns("json")),
        Kind(
            'format "avro"',
            {"format": "avro"},
            ("columns", "registry", "registry_settings", "write_schema", "subject"),
            {"registry": 'format "avro" needs registry, the address of the schema registry'},
        ),
    )
    this_is = "this is"

    format: Literal["string", "bytes", "json", "debezium", "avro"]
    columns: str | None = Field(None, alias="schema")
    name: str | None = None
    text: str | None = None
    registry: str | None = None
    registry_settings: dict[str, Value] = Field({}, repr=False)
    write_schema: str | None = None
    subject: str | None = None
    units: dict[str, str] = Field({})
    placeholder: str = PLACEHOLDER
    unavailable: Literal["problem", "keep"] = "problem"
    source: str | None = None

    def build(self, name: str) -> Format:
        if self.format == "string":
            return String(self.name or name)
        if self.format == "bytes":
            return Bytes(self.name or name)
        assert self.columns is not None
        if self.format == "debezium":
            how: Any = {"units": self.units, "placeholder": self.placeholder, "unavailable": self.unavailable}
            if self.source is not None:
                how["source"] = self.source
            return Debezium(self.columns, **how)
        if self.registry is None:
            return Json(self.columns, self.text, self.units)
        settings = tuple(self.registry_settings.items())
        return Registry(self.format, self.columns, self.registry, settings, self.write_schema, self.subject)


class KafkaSpec(Strict):
    """Settings that all topics share."""

    bootstrap_servers: str
    options: dict[str, Value] = Field({}, repr=False)


class TableSpec(Section):
    """A table, from a topic or from change-log files."""

    kinds = (
        Kind(
            "a topic",
            {"topic": ANY},
            ("value", "version", "deleted", "timestamp", "on_new_topic", "headers", "roots"),
            {"value": 'a topic needs value: "string", "bytes" or {format = …, schema = …}', "key": "key must be given"},
        ),
        Kind('files of format "fkjoin"', {"path": ANY, "format": "fkjoin"}, ("format",)),
        Kind(
            "files",
            {"path": ANY},
            ("version", "deleted", "timestamp", "log", "columns", "format"),
            {"key": "key must be given", "version": "files need version: the column that orders the changes of a key"},
        ),
    )
    this_is = "this table is read from"
    places = ("topic", "path")

    topic: str | None = None
    path: str | None = None
    key: str | list[str] | FormatSpec | None = None
    value: str | FormatSpec | None = None
    version: str | list[str] | None = None
    deleted: str | None = None
    timestamp: str | None = None
    log: str | None = None
    columns: str | None = Field(None, alias="schema")
    format: FileFormat | Literal["fkjoin"] | None = None
    on_error: OnError = "dead-letter"
    on_new_topic: OnNewTopic | None = None
    headers: bool = False
    roots: int | None = Field(None, ge=1)
    materialize: bool = False
    options: dict[str, Value] = Field({}, repr=False)


class JoinSpec(Strict):
    """A foreign-key join of two tables or joins."""

    left: str
    right: str
    extractor: str | list[str]
    how: How = "inner"
    joiner: str | list[str] | None = None
    deployment: Deployment = "fused"
    wire: Wire = "headers"
    emit: EmitSpec = "on-change"
    materialize: bool = False


class AggregateSpec(Strict):
    """A table's rows by group; ``columns`` are such as ``orders = "count()"`` or ``revenue = "sum(left.amount)"``."""

    of: str
    group_by: str | list[str]
    columns: dict[str, str] = Field(min_length=1)
    emit: EmitSpec = "on-change"
    deployment: Deployment = "fused"
    upgrade_from: str | None = None


class TogetherSpec(Strict):
    """Several tables as one: merged, or, of aggregates by the same key, side by side."""

    of: list[str] = Field(min_length=2)
    emit: EmitSpec = "on-change"


class ViewSpec(Strict):
    """A table with some of its rows, or with other columns."""

    of: str
    filter: str | None = None
    columns: str | list[str] | None = None
    emit: EmitSpec = "on-change"
    materialize: bool = False

    @model_validator(mode="after")
    def _something(self) -> ViewSpec:
        if self.filter is None and self.columns is None:
            raise ValueError("give filter, columns, or both (the filter comes first)")
        return self


class SinkSpec(Section):
    """Where the changes of a table go, whatever it is made of: a topic, a path, or a table of PostgreSQL."""

    kinds = (
        Kind("a topic", {"topic": ANY}, ("key", "value", "headers", "positions", "options")),
        Kind(
            "a table of PostgreSQL",
            {"postgres": ANY},
            ("into", "on_error", "retry_s"),
            {"into": 'postgres, the address of a database, and into, the table in it, go together: into = "shop.orders"'},
        ),
        Kind("Parquet files", {"path": ANY, "format": "parquet"}, ("format",)),
        Kind("a Delta table", {"path": ANY, "format": "delta"}, ("format", "options", "retry_s")),
        Kind("files of Spark's own sink", {"path": ANY}, ("format", "options")),
    )
    this_is = "this sink writes to"
    places = ("topic", "path", "postgres")

    table: str
    topic: str | None = None
    path: str | None = None
    postgres: str | None = Field(None, repr=False)
    into: str | None = None
    format: str = "parquet"
    key: str | FormatSpec | None = None
    value: str | FormatSpec | None = None
    headers: str | None = None
    positions: bool = False
    on_error: OnError = "fail"
    retry_s: float = Field(RETRY_S, ge=0, allow_inf_nan=False)
    options: dict[str, Value] = Field({}, repr=False)

    @property
    def place(self) -> str:
        """Where it writes to, without addresses that may hold secrets."""
        return str(self.topic or self.path or f"postgres {self.into}")


class DeadLettersSpec(Section):
    """Where records that cannot be used go."""

    kinds = (Kind("a topic", {"topic": ANY}), Kind("files", {"path": ANY}))
    this_is = "they go to"
    places = ("topic", "path")

    topic: str | None = None
    path: str | None = None


class JobSpec(Strict):
    """A whole job file."""

    name: str
    checkpoint: str
    trigger: TriggerSpec = "0 seconds"
    log: str | None = None
    spark: SparkSpec = Field(default_factory=SparkSpec, repr=False)
    kafka: KafkaSpec | None = None
    tables: dict[str, TableSpec]
    joins: dict[str, JoinSpec] = Field({})
    aggregates: dict[str, AggregateSpec] = Field({})
    cogroups: dict[str, TogetherSpec] = Field({})
    merges: dict[str, TogetherSpec] = Field({})
    views: dict[str, ViewSpec] = Field({})
    flat_maps: dict[str, FlatMapSpec] = Field({})
    sinks: dict[str, SinkSpec]
    dead_letters: DeadLettersSpec | None = None
    ui: PageSpec = Field(default_factory=PageSpec)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors; it says of each kind of table, sink and format what it has."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema(by_alias=True)}


def read_job(path: Path) -> JobSpec:
    """Parse a job file; ``JobError`` names the setting that is wrong, and the nearest one that there is."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobError(f"{path}: cannot be read as TOML: {error}") from error
    try:
        spec = JobSpec.model_validate(_filled(data, str(path)))
        in_order(spec)
        return spec
    except JobError as error:
        raise JobError(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}") from None
    except ValidationError as error:
        # What is wrong within a section says more than the other readings of the same place.
        ranks = ("extra_forbidden", "value_error")
        first = min(error.errors(), key=lambda one: (one["type"] not in ranks[:1], one["type"] not in ranks, -len(one["loc"])))
        raise JobError(f"{path}: {_explained(first)}") from None


def _filled(value: Any, where: str) -> Any:
    """The data with ``${NAME}`` in texts replaced by the environment's variables, and ``${file:PATH}`` by a file's contents."""
    if isinstance(value, dict):
        return {name: _filled(item, f"{where}: {name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, where) for item in value]

    def found(match: re.Match[str]) -> str:
        if match[1]:
            return _contents(Path(match[1]), where)
        if match[2] not in os.environ:
            raise JobError(f"{where}: the environment has no variable {match[2]}")
        return os.environ[match[2]]

    return re.sub(r"\$\{(?:file:([^}]+)|(\w+))\}", found, value) if isinstance(value, str) else value


def _contents(path: Path, where: str) -> str:
    """The text of a file with a secret, without the end of its last line, which editors and Docker write."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise JobError(f"{where}: {path} cannot be read: {reason}") from None


def _explained(error: Any) -> str:
    """A pydantic error as a line: where, what, and the nearest setting for an unknown one."""
    place = [part for part in map(str, error["loc"]) if part not in ("str", "list[str]") and "FormatSpec" not in part]
    where = ".".join(place)
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such setting; {nearest(place[-1], _settings(place[:-1]))}"
    if error["type"] == "missing":
        return f"{where}: must be given"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}".removeprefix(": ")


def _settings(place: list[str]) -> list[str]:
    """The settings that may stand at a place of the file."""
    model: Any = JobSpec
    for part in place:
        fields = {field.alias or name: field.annotation for name, field in getattr(model, "model_fields", {}).items()}
        kind = fields.get(part, model)
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and issubclass(inner, Strict):
                kind = inner
        model = kind
    return [field.alias or name for name, field in model.model_fields.items()]
