"""A job as a TOML file: tables, joins, where results go.  Parsed strictly, then built with the library's own calls."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.join import Deployment, fk_join
from fkjoin.kafka import Bytes, Debezium, Format, Json, String
from fkjoin.kafka.sink import start
from fkjoin.kafka.source import OnError
from fkjoin.stages import How
from fkjoin.table import Table
from fkjoin.wire import Wire

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Value = str | int | float | bool


class JobError(FkJoinError, ValueError):
    """A job file is wrong; the message says where in it, and what may stand there."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


class FormatSpec(_Strict):
    """What the bytes of a key or value mean."""

    format: Literal["string", "bytes", "json", "debezium"]
    columns: str | None = Field(None, alias="schema")
    name: str | None = None

    def build(self, where: str, name: str) -> Format:
        if self.format == "string":
            return String(self.name or name)
        if self.format == "bytes":
            return Bytes(self.name or name)
        if self.columns is None:
            raise JobError(f'{where}: format "{self.format}" needs a schema, such as "id bigint, name string"')
        return Json(self.columns) if self.format == "json" else Debezium(self.columns)


class KafkaSpec(_Strict):
    """What all topics share."""

    bootstrap_servers: str
    options: dict[str, Value] = {}


class TableSpec(_Strict):
    """A table, from a topic or from change-log files."""

    topic: str | None = None
    path: str | None = None
    key: str | list[str] | FormatSpec
    value: str | FormatSpec | None = None
    version: str | list[str] | None = None
    deleted: str | None = None
    timestamp: str | None = None
    log: str | None = None
    columns: str | None = Field(None, alias="schema")
    format: Literal["json", "parquet"] | None = None
    on_error: OnError = "dead-letter"
    headers: bool = False
    options: dict[str, Value] = {}

    @model_validator(mode="after")
    def _one_source(self) -> TableSpec:
        if (self.topic is None) == (self.path is None):
            raise ValueError("give either topic or path")
        if self.topic is not None and self.value is None:
            raise ValueError('a topic needs value: "string", "bytes" or {format = …, schema = …}')
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


class SinkSpec(_Strict):
    """Where the changes of a join, or of a table, go."""

    table: str
    topic: str | None = None
    path: str | None = None
    format: str = "parquet"
    key: str | FormatSpec | None = None
    value: str | FormatSpec | None = None
    headers: str | None = None
    options: dict[str, Value] = {}

    @model_validator(mode="after")
    def _one_target(self) -> SinkSpec:
        if (self.topic is None) == (self.path is None):
            raise ValueError("give either topic or path")
        return self


class DeadLettersSpec(_Strict):
    """Where records that cannot be used go."""

    topic: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _one_target(self) -> DeadLettersSpec:
        if (self.topic is None) == (self.path is None):
            raise ValueError("give either topic or path")
        return self


class JobSpec(_Strict):
    """A whole job file."""

    name: str
    checkpoint: str
    trigger: str = "0 seconds"
    log: str | None = None
    spark: dict[str, Value] = {}
    kafka: KafkaSpec | None = None
    tables: dict[str, TableSpec]
    joins: dict[str, JoinSpec] = {}
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


@dataclass(frozen=True)
class Planned:
    """A query of the job that has yet to be started."""

    name: str
    checkpoint: str
    start: Any

    def __call__(self) -> StreamingQuery:
        query: StreamingQuery = self.start()
        return query


class Job:
    """A job's tables, built; nothing runs yet."""

    def __init__(self, spec: JobSpec, spark: SparkSession) -> None:
        self.spec = spec
        self.tables: dict[str, Table] = {name: self._source(spark, name, table) for name, table in spec.tables.items()}
        for name in self._join_order():
            join = spec.joins[name]
            left, right = self.tables[join.left], self.tables[join.right]
            with _located(f"joins.{name}"):
                self.tables[name] = fk_join(
                    left,
                    right,
                    join.extractor,
                    join.how,
                    join.joiner,
                    name,
                    deployment=join.deployment,
                    application=spec.name,
                    wire=join.wire,
                )
        for name, sink in spec.sinks.items():
            self._known(f"sinks.{name}.table", sink.table)

    def describe(self) -> str:
        """The topologies of all sinks, as text."""
        return "\n".join(
            f"{self.tables[s.table].describe()}\nsink {n}  {s.topic or s.path}" for n, s in self.spec.sinks.items()
        )

    def queries(self) -> list[Planned]:
        """Every query of the job, upstream ones first: stages, sinks, dead letters."""
        trigger = _trigger(self.spec.trigger)
        planned: dict[str, Planned] = {}

        def plan(name: str, start: Any) -> None:
            checkpoint = f"{self.spec.checkpoint.rstrip('/')}/{name}"
            planned.setdefault(name, Planned(name, checkpoint, lambda: start(checkpoint)))

        for sink in self.spec.sinks.values():
            for stage in self.tables[sink.table].stages:
                plan(stage.name, lambda checkpoint, stage=stage: stage.start(checkpoint, trigger=trigger))
        for name, sink in self.spec.sinks.items():
            plan(f"sink-{name}", lambda checkpoint, name=name, sink=sink: self._sink(name, sink, checkpoint, trigger))
        if self.spec.dead_letters is not None:
            for name in dict.fromkeys(sink.table for sink in self.spec.sinks.values()):
                letters = self.tables[name].dead_letters
                if letters is not None:
                    plan(f"dead-letters-{name}", lambda ck, n=name, f=letters: self._dead_letters(n, f, ck, trigger))
        return list(planned.values())

    def _source(self, spark: SparkSession, name: str, spec: TableSpec) -> Table:
        where = f"tables.{name}"
        with _located(where):
            if spec.topic is not None:
                servers, options = self._kafka(where)
                assert spec.value is not None
                return Table.from_kafka(
                    spark,
                    spec.topic,
                    servers,
                    key=_format(f"{where}.key", spec.key, "key"),
                    value=_format(f"{where}.value", spec.value, "value"),
                    name=name,
                    on_error=spec.on_error,
                    headers=spec.headers,
                    options={**options, **spec.options},
                )
            if isinstance(spec.key, FormatSpec):
                raise JobError("key: files have columns; name those that are the key")
            assert spec.path is not None
            assert spec.version is not None
            return Table.from_files(
                spark,
                spec.path,
                key=spec.key,
                version=spec.version,
                deleted=spec.deleted,
                timestamp=spec.timestamp,
                name=name,
                log=spec.log,
                schema=spec.columns,
                format=spec.format,
                options=spec.options,
            )

    def _join_order(self) -> list[str]:
        """The joins, each after those that it reads."""
        joins, order = self.spec.joins, list[str]()
        known = [*self.tables, *joins]
        for name, join in joins.items():
            if name in self.tables:
                raise JobError(f"joins.{name}: a table has this name already; choose another")
            for side, table in (("left", join.left), ("right", join.right)):
                if table not in known:
                    raise JobError(f"joins.{name}.{side}: {_no_table(table, known)}")
        while len(order) < len(joins):
            there = {*self.tables, *order}
            ready = [name for name, join in joins.items() if name not in order and {join.left, join.right} <= there]
            if not ready:
                raise JobError(f"joins: these read each other in a circle: {', '.join(joins.keys() - set(order))}")
            order += ready
        return order

    def _known(self, where: str, table: str) -> None:
        if table not in self.tables:
            raise JobError(f"{where}: {_no_table(table, list(self.tables))}")

    def _kafka(self, where: str) -> tuple[str, dict[str, Value]]:
        if self.spec.kafka is None:
            raise JobError(f'{where}: topics need a section [kafka] with bootstrap_servers = "host:port"')
        return self.spec.kafka.bootstrap_servers, self.spec.kafka.options

    def _sink(self, name: str, spec: SinkSpec, checkpoint: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        table = self.tables[spec.table]
        with _located(f"sinks.{name}"):
            if spec.topic is not None:
                servers, options = self._kafka("topic")
                return table.to_kafka(
                    spec.topic,
                    servers,
                    checkpoint=checkpoint,
                    key=None if spec.key is None else _format("key", spec.key, "key"),
                    value=spec.value.build("value", "value") if isinstance(spec.value, FormatSpec) else spec.value,
                    headers=spec.headers,
                    trigger=trigger,
                    options={**{n: v for n, v in options.items() if n.startswith("kafka.")}, **spec.options},
                )
            writer = table.changes.writeStream.format(spec.format).options(**{n: str(v) for n, v in spec.options.items()})
            return writer.queryName(name).option("checkpointLocation", checkpoint).trigger(**trigger).start(spec.path)

    def _dead_letters(self, name: str, letters: DataFrame, checkpoint: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        spec = self.spec.dead_letters
        assert spec is not None
        query = f"dead-letters-{name}"
        if spec.path is not None:
            writer = letters.writeStream.format("json").queryName(query).option("checkpointLocation", checkpoint)
            return writer.trigger(**trigger).start(spec.path)
        servers, options = self._kafka("dead_letters.topic")
        about = ["topic", "partition", "offset", "reason"]
        headers = ", ".join(f"named_struct('key', 'fkjoin.{n}', 'value', cast(cast({n} as string) as binary))" for n in about)
        kept = "coalesce(headers, cast(array() as array<struct<key: string, value: binary>>))"
        frame = letters.selectExpr("key", "value", f"concat({kept}, array({headers})) as headers")
        return start(
            frame, spec.topic, servers, checkpoint, {n: v for n, v in options.items() if n[:6] == "kafka."}, trigger, query
        )


class _located:  # noqa: N801  (reads as a statement)
    """Puts the place in the job file in front of what goes wrong inside."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, TopologyError | JobError):
            raise JobError(f"{self._where}.{error}") from error


def _format(where: str, given: str | list[str] | FormatSpec, name: str) -> Format | str:
    if isinstance(given, FormatSpec):
        return given.build(where, name)
    if isinstance(given, str):
        return given
    raise JobError(f'{where}: a topic\'s key has a format: "string", "bytes" or {{format = …, schema = …}}')


def _trigger(text: str) -> dict[str, Any]:
    return {"availableNow": True} if text == "available-now" else {"processingTime": text}


def _no_table(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
    return f"there is no table or join {name!r}; {hint}"


def _explained(error: Any) -> str:
    """A pydantic error as a line: where, what, and the nearest setting for an unknown one."""
    place = [str(part) for part in error["loc"] if str(part) not in ("FormatSpec", "str", "list[str]")]
    where = ".".join(place)
    if error["type"] == "extra_forbidden":
        known = _settings(place[:-1])
        close = difflib.get_close_matches(place[-1], known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
        return f"{where}: there is no such setting; {hint}"
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
