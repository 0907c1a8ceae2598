"""A job as a TOML file: tables, joins, where results go; parsed strictly."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fkjoin.dead_letters import OnError
from fkjoin.emission import Emission, Emit
from fkjoin.errors import FkJoinError, nearest
from fkjoin.files import FileFormat
from fkjoin.kafka import Bytes, Debezium, Format, Json, Registry, String
from fkjoin.kafka.source import OnNewTopic
from fkjoin.sinks import RETRY_S
from fkjoin.spark.change_events import PLACEHOLDER
from fkjoin.stages import How
from fkjoin.stateful import Deployment
from fkjoin.wire import Wire

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Value = str | int | float | bool


def _understood(emit: str) -> str:
    try:
        Emission.of(emit)
    except FkJoinError as error:
        raise ValueError(str(error).removeprefix("emit: ")) from error
    return emit


EmitSpec = Annotated[Emit, AfterValidator(_understood)]


class JobError(FkJoinError, ValueError):
    """A job file is wrong; the message says where in it, and what may stand there."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


class _Place(_Strict):
    """A topic or a path."""

    topic: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _either(self) -> _Place:
        if (self.topic is None) == (self.path is None):
            raise ValueError("give either topic or path")
        return self


class FormatSpec(_Strict):
    """What the bytes of a key or value mean."""

    format: Literal["string", "bytes", "json", "debezium", "avro"]
    columns: str | None = Field(None, alias="schema")
    name: str | None = None
    text: str | None = None
    registry: str | None = None
    registry_settings: dict[str, Value] = Field({}, repr=False)
    write_schema: str | None = None
    subject: str | None = None
    units: dict[str, str] = {}
    placeholder: str = PLACEHOLDER
    unavailable: Literal["problem", "keep"] = "problem"
    source: str | None = None

    def build(self, where: str, name: str) -> Format:
        if self.text is not None and (self.format != "json" or self.registry is not None):
            raise JobError(f'{where}: text keeps the whole text of format "json" without a registry; leave it out')
        if self.units and (self.format not in ("json", "debezium") or self.registry is not None):
            raise JobError(f'{where}: units are for formats "json" and "debezium" without a registry; leave them out')
        if self.source is not None and self.format != "debezium":
            raise JobError(f'{where}: source names columns of events of format "debezium"; leave it out')
        if self.format == "string":
            return String(self.name or name)
        if self.format == "bytes":
            return Bytes(self.name or name)
        if self.columns is None:
            raise JobError(f'{where}: format "{self.format}" needs a schema, such as "id bigint, name string"')
        if self.format == "debezium":
            how: Any = {"units": self.units, "placeholder": self.placeholder, "unavailable": self.unavailable}
            if self.source is not None:
                how["source"] = self.source
            return Debezium(self.columns, **how)
        if self.registry is None:
            if self.format == "avro":
                raise JobError(f'{where}: format "avro" needs registry, the address of the schema registry')
            return Json(self.columns, self.text, self.units)
        settings = tuple(self.registry_settings.items())
        return Registry(self.format, self.columns, self.registry, settings, self.write_schema, self.subject)


class KafkaSpec(_Strict):
    """What all topics share."""

    bootstrap_servers: str
    options: dict[str, Value] = Field({}, repr=False)


class TableSpec(_Place):
    """A table, from a topic or from change-log files."""

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
    options: dict[str, Value] = Field({}, repr=False)

    @model_validator(mode="after")
    def _described(self) -> TableSpec:
        of_files, of_topics = ("columns", "format", "log"), ("value", "on_new_topic", "headers", "roots")
        for name in of_files if self.topic is not None else of_topics:
            if name in self.model_fields_set:
                shown = type(self).model_fields[name].alias or name
                what, other = ("files", "a topic") if self.topic is not None else ("a topic", "files")
                raise ValueError(f"{shown}: it is a setting of {what}, and this table is read from {other}; leave it out")
        if self.topic is not None and self.value is None:
            raise ValueError('a topic needs value: "string", "bytes" or {format = …, schema = …}')
        if self.format == "fkjoin" and self.path is not None:
            said = {"version": self.version, "deleted": self.deleted, "timestamp": self.timestamp, "schema": self.columns}
            if needless := [name for name, given in {**said, "log": self.log}.items() if given is not None]:
                raise ValueError(f'{needless[0]}: files of format "fkjoin" say it themselves; leave it out')
            return self
        if self.key is None:
            raise ValueError("key must be given")
        if self.path is not None and self.version is None:
            raise ValueError("files need version: the column that orders the changes of a key")
        return self


class JoinSpec(_Strict):
    """A foreign-key join of two tables or joins."""

    left: str
    right: str
    extractor: str | list[str]
    how: How = "inner"
    joiner: str | list[str] | None = None
    deployment: Deployment = "fused"
    wire: Wire = "headers"
    emit: EmitSpec = "on-change"


class AggregateSpec(_Strict):
    """A table's rows by group; ``columns`` are such as ``orders = "count()"`` or ``revenue = "sum(left.amount)"``."""

    of: str
    group_by: str | list[str]
    columns: dict[str, str] = Field(min_length=1)
    emit: EmitSpec = "on-change"
    deployment: Deployment = "fused"
    upgrade_from: str | None = None


class TogetherSpec(_Strict):
    """Several tables as one: merged, or, of aggregates by the same key, side by side."""

    of: list[str] = Field(min_length=2)
    emit: EmitSpec = "on-change"


class ViewSpec(_Strict):
    """A table with some of its rows, or with other columns."""

    of: str
    filter: str | None = None
    columns: str | list[str] | None = None
    emit: EmitSpec = "on-change"

    @model_validator(mode="after")
    def _something(self) -> ViewSpec:
        if self.filter is None and self.columns is None:
            raise ValueError("give filter, columns, or both (the filter comes first)")
        return self


class SinkSpec(_Strict):
    """Where the changes of a table go, whatever it is made of: a topic, a path, or a table of PostgreSQL."""

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

    @model_validator(mode="after")
    def _somewhere(self) -> SinkSpec:
        if [self.topic, self.path, self.postgres].count(None) != 2:
            raise ValueError("give either topic, path or postgres")
        if (self.postgres is None) != (self.into is None):
            raise ValueError(
                'postgres, the address of a database, and into, the table in it, go together: into = "shop.orders"'
            )
        if "on_error" in self.model_fields_set and self.postgres is None:
            raise ValueError("on_error: it is a setting of sinks that write to PostgreSQL; leave it out")
        if "retry_s" in self.model_fields_set and self.postgres is None and (self.path is None or self.format != "delta"):
            raise ValueError("retry_s: it is a setting of sinks that write to PostgreSQL or Delta; leave it out")
        return self

    @property
    def place(self) -> str:
        """Where it writes to, without addresses that may hold secrets."""
        return str(self.topic or self.path or f"postgres {self.into}")


class DeadLettersSpec(_Place):
    """Where records that cannot be used go."""


class JobSpec(_Strict):
    """A whole job file."""

    name: str
    checkpoint: str
    trigger: str = "0 seconds"
    log: str | None = None
    spark: dict[str, Value] = Field({}, repr=False)
    kafka: KafkaSpec | None = None
    tables: dict[str, TableSpec]
    joins: dict[str, JoinSpec] = {}
    aggregates: dict[str, AggregateSpec] = {}
    cogroups: dict[str, TogetherSpec] = {}
    merges: dict[str, TogetherSpec] = {}
    views: dict[str, ViewSpec] = {}
    sinks: dict[str, SinkSpec]
    dead_letters: DeadLettersSpec | None = None


def read_job(path: Path) -> JobSpec:
    """Parse a job file; ``JobError`` names the setting that is wrong, and the nearest one that there is."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobError(f"{path}: cannot be read as TOML: {error}") from error
    try:
        return JobSpec.model_validate(_filled(data, str(path)))
    except ValidationError as error:
        # A setting that does not exist says more than the other readings of the same place.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise JobError(f"{path}: {_explained(first)}") from None


def _filled(value: Any, where: str) -> Any:
    """The data with ``${NAME}`` in texts replaced by the environment's variables."""
    if isinstance(value, dict):
        return {name: _filled(item, f"{where}: {name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, where) for item in value]

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise JobError(f"{where}: the environment has no variable {match[1]}")
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", variable, value) if isinstance(value, str) else value


def _explained(error: Any) -> str:
    """A pydantic error as a line: where, what, and the nearest setting for an unknown one."""
    place = [str(part) for part in error["loc"] if str(part) not in ("FormatSpec", "str", "list[str]")]
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
            if isinstance(inner, type) and issubclass(inner, _Strict):
                kind = inner
        model = kind
    return [field.alias or name for name, field in model.model_fields.items()]
