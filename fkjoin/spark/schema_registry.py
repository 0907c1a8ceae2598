"""A registry of schemas, asked by confluent-kafka's client.

It is asked once for each schema, and again while it does not answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import pyarrow as pa

from fkjoin.codec.avro_schemas import Rewritten, rewritten
from fkjoin.codec.json_read import loaded
from fkjoin.errors import FkJoinError
from fkjoin.spark.outages import RETRY_S
from fkjoin.spark.python_columns import Fraction

Settings = tuple[tuple[str, Any], ...]

SERIALIZED = "serialized"
"""The form of a Protobuf schema in which a registry gives its descriptor."""

_NOT_THERE = (40401, 40402, 40403)
"""The registry's own codes for a subject, a version and a schema that it does not have."""
_PASSING = (408, 429, 500, 502, 503, 504)
"""HTTP's status codes of a registry that may answer later."""
_NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "authlib")
"""Packages whose errors are errors of a connection."""
_USER = re.compile(r"//[^/@,]*@")
_CLIENT = {"max.retries": 0, "timeout": 10}
"""The client's settings if they are left out.

Repetitions are made here, and no answer is waited for without end.
"""
OF_WRITERS = ("auto.register.schemas", "use.latest.version", "normalize.schemas")
"""Settings that are not the client's: how a schema to write by is found in the registry."""

_T = TypeVar("_T")


class SchemaProblemError(ValueError):
    """A schema that a record names and that cannot be had.

    The record is at fault, not the registry.
    """


@dataclass(frozen=True)
class SchemaRegistry:
    """Address of a registry, and the settings of its client and of those that write."""

    url: str = field(repr=False)
    settings: Settings = field(default=(), repr=False)
    retry_s: float = RETRY_S

    @property
    def place(self) -> str:
        """The address in messages, without a user and a password."""
        return f"schema registry {self.without_user(self.url)}"

    @staticmethod
    def without_user(text: str) -> str:
        """Return a text whose addresses have no user and no password."""
        return _USER.sub("//", text)

    def client(self, form: str | None = None) -> Any:
        """Return the process's client for schemas in a form: a client keeps one form of each."""
        return _client(self.url, self.settings, form)

    def forget(self) -> None:
        """Let go of the process's clients, which keep all that registries have told them."""
        _client.cache_clear()

    def asked(self, work: Callable[[], _T], form: str | None = None) -> _T:
        """Return the answer to a question.

        The question is repeated for ``retry_s`` while the registry does not answer.
        ``SchemaProblemError`` if the registry says that there is no such schema.  ``FkJoinError``
        of everything else: an outage must not make dead letters of good records.
        """
        from fkjoin.spark.repetition import repeated

        try:
            return repeated(self.place, work, _passes, self.retry_s, text_of=_text_of)
        except FkJoinError:
            raise
        except Exception as error:
            if getattr(error, "error_code", None) in _NOT_THERE:
                raise SchemaProblemError(str(error)) from error
            if form is not None:
                raise FkJoinError(
                    f"{self.place} refuses: {_text_of(error)}. The batch is not lost. The registry "
                    f"may not provide descriptors (format={form}): read the topic through a "
                    "registry that does, such as Confluent's"
                ) from error
            raise FkJoinError(
                f"{self.place} refuses: {_text_of(error)}. The batch is not lost. Check the "
                "address and the settings of Registry, such as basic.auth.user.info, and start the "
                "query again"
            ) from error

    def schema(self, number: int, kind: str) -> Any:
        """Return the schema of an id; ``SchemaProblemError`` if it is of another kind."""
        schema = self.asked(lambda: self.client().get_schema(number))
        if (form := schema.schema_type or "AVRO") != kind:
            raise SchemaProblemError(f"schema {number} is {form}; fkjoin reads {kind} here")
        return schema

    def referred(self, reference: Any, form: str | None = None) -> Any:
        """Return the schema that a reference names."""
        version = reference.subject, reference.version, True, form
        return self.asked(lambda: self.client(form).get_version(*version), form).schema

    def serialized(self, number: int) -> Any:
        """Return the Protobuf schema of an id, as its file's descriptor in base64."""
        # Some registries refuse the form for schemas of another kind.
        self.schema(number, "PROTOBUF")
        return self.asked(
            lambda: self.client(SERIALIZED).get_schema(number, fmt=SERIALIZED), SERIALIZED
        )

    def from_json(self, data: bytes) -> Any:
        """Return what JSON behind a header is, checked by the schema that the header names."""
        return self.asking(partial(_json_deserializer(self), data, None))

    def asking(self, work: Callable[[], _T]) -> _T:
        """Return what work on a record returns that may ask the registry.

        Only the question is repeated, see ``asked``.
        """
        try:
            return work()
        except Exception as error:
            if not _is_of_registry(error):
                raise
            return self.asked(work)


def _is_of_registry(error: BaseException) -> bool:
    """Tell whether an error is about the registry or the way to it, not about a record."""
    return hasattr(error, "http_status_code") or _passes(error) or isinstance(error, OSError)


def _passes(error: BaseException) -> bool:
    """Tell whether the same question may have an answer later."""
    if (status := getattr(error, "http_status_code", None)) is not None:
        return status in _PASSING
    package = type(error).__module__.partition(".")[0]
    return (
        isinstance(error, ConnectionError | TimeoutError)
        or package in _NETWORK
        or type(error).__name__ == "OAuthTokenError"
    )


def _text_of(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {_USER.sub('//', lines[0])[:300]}"


@lru_cache
def _client(url: str, settings: Settings, _: str | None) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    own = {name: value for name, value in settings if name not in OF_WRITERS}
    return SchemaRegistryClient({**_CLIENT, "url": url, **own})


@lru_cache(1000)
def _avro_schema(registry: SchemaRegistry, number: int) -> Any:
    from fastavro.schema import load_schema

    schema = registry.schema(number, "AVRO")
    schemas = _References({"": json.loads(schema.schema_str)})
    schemas.add(registry, schema.references)
    try:
        return load_schema("", repo=cast(Any, schemas))
    except Exception as error:
        raise SchemaProblemError(
            f"schema {number} cannot be parsed: {type(error).__name__}: {error}"
        ) from error


@lru_cache(1000)
def for_rows(registry: SchemaRegistry, number: int, kind: pa.StructType) -> Rewritten:
    """Return the Avro schema of an id as fastavro takes it, for rows of the type."""
    from fastavro import parse_schema

    schema = _avro_schema(registry, number)
    result = rewritten(schema, kind)
    if result.schema is schema:
        return result
    return Rewritten(parse_schema(result.schema), result.units)


@dataclass(frozen=True)
class _References:
    """A repository for fastavro: a schema, and those that it refers to, by their types' names."""

    schemas: dict[str, Any]

    def add(self, registry: SchemaRegistry, references: Any) -> None:
        """Ask for schemas that are referred to, and for what these refer to."""
        for item in references or ():
            if item.name not in self.schemas:
                schema = registry.referred(item)
                self.schemas[item.name] = json.loads(schema.schema_str)
                self.add(registry, schema.references)

    def load(self, name: str) -> Any:
        """Return a schema; fastavro asks for it."""
        return self.schemas[name]


@lru_cache
def _json_deserializer(registry: SchemaRegistry) -> Any:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer

    # The writer's schema, by its id, is all that is wanted.
    conf = {"subject.name.strategy": lambda *_: None}
    return JSONDeserializer(
        None, schema_registry_client=registry.client(), conf=conf, json_decode=_loaded
    )


def _loaded(text: bytes) -> Any:
    value = loaded(text, Fraction, int)
    if value is None:
        raise ValueError("not JSON that fkjoin reads")
    return value
