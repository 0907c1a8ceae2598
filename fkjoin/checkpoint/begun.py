"""The document of a checkpoint: ``fkjoin.json`` says what its query, or its job, was begun with.

*Law*: it is written as a whole, in one step, just before a query starts.  Until the query has
begun, it says nothing: after an end in between, the next start is the first one again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fkjoin.checkpoint.files import files_at, has_begun
from fkjoin.errors import FkJoinError
from fkjoin.spark.schemas import kept_type

DOCUMENT = "fkjoin.json"
VERSION = 1
MISSHAPEN = (KeyError, TypeError, AttributeError, ValueError, RecursionError, FkJoinError)
"""Errors of a value that has another shape than the code expects."""


@dataclass
class LearnedColumns:
    """Columns that were learned from a table's files at the first start."""

    schema: StructType | None = None
    folders: list[str] = field(default_factory=list)
    """Those that names of folders are."""
    reported: list[str] = field(default_factory=list)
    """Paths of fields that are left out."""
    format: str | None = None
    """The format of a job's files: an empty folder does not tell it."""


@dataclass(frozen=True)
class KnownTopic:
    """A topic that the query reads."""

    id: str
    generation: int | None = None
    """Number of times that the query has started over with such a topic; None for never."""
    ends: list[tuple[int, int]] | None = None
    """Partitions and the ends that they had at the last such start."""


@dataclass(frozen=True)
class JobFacts:
    """Settings that all queries of a job began with."""

    rules: list[str]
    """The rules of the optimizer that move state."""


@dataclass
class Begun:
    """The sections of a document; each is empty where there is nothing to say."""

    zone: str | None = None
    """The session's time zone."""
    operators: list[tuple[str, dict[str, Any]]] | None = None
    """Names of stateful operators, and facts that bind their stores, as each bucket has them."""
    sources: list[str] | None = None
    """The places that the query reads; Spark knows its sources by their order alone."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts that no store is bound to, by the tables that end in a sink as they are read."""
    columns: dict[str, LearnedColumns] = field(default_factory=dict)
    topics: dict[str, KnownTopic] = field(default_factory=dict)
    sinks: list[str] | None = None
    """The places of a query with several sinks."""
    job: JobFacts | None = None

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str) -> Begun:
        """Read a query's document; it is empty unless the query has begun.

        ``FkJoinError`` if the query has begun and the document does not say with what: nothing
        else does.
        """
        if not has_begun(spark, checkpoint):
            return cls()
        return cls._with(spark, checkpoint, "zone", "operators", "sources")

    @classmethod
    def of_job(cls, spark: SparkSession, checkpoint: str) -> Begun:
        """Read a job's document; it is empty unless a query that ends in a sink has begun.

        Raises: as ``of``.
        """
        files = files_at(spark, checkpoint)
        for query in files.names():
            is_of_sinks = query.startswith(("sink-", "sinks-", "dead-letters-"))
            if is_of_sinks and files.is_file(f"{query}/metadata"):
                return cls._with(spark, checkpoint, "job")
        return cls()

    @classmethod
    def _with(cls, spark: SparkSession, checkpoint: str, *sections: str) -> Begun:
        """Read a document that has these sections."""
        begun = cls.read(spark, checkpoint)
        if begun is None:
            problem = "is missing (checkpoints of builds before 0.1.0 have none)"
            raise unusable(checkpoint, problem)
        for section in sections:
            if getattr(begun, section) is None:
                raise unusable(checkpoint, f"has no section {section}")
        return begun

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str) -> Begun | None:
        """Read a document, whether or not a query has begun; None if there is none.

        ``FkJoinError`` if it is broken, or has another version.
        """
        files = files_at(spark, checkpoint)
        status = files.status(DOCUMENT)
        if status is None:
            return None
        if status.is_folder:
            raise unusable(checkpoint, "is a folder")
        return cls.parsed(files.read(DOCUMENT), checkpoint)

    @classmethod
    def parsed(cls, data: bytes, checkpoint: str) -> Begun:
        """Read the bytes of a checkpoint's document."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise unusable(checkpoint, f"is not JSON ({error})") from error
        version = document.pop("version", None) if isinstance(document, dict) else None
        if type(version) is not int or version != VERSION:
            problem = f"has version {version!r}, and this release reads {VERSION}"
            raise unusable(checkpoint, problem)
        begun, sections = cls(), get_type_hints(cls)
        for section, value in document.items():
            if section not in sections:
                raise unusable(checkpoint, f"has a section {section}, which this release lacks")
            try:
                setattr(begun, section, _typed(value, sections[section]))
            except MISSHAPEN as error:
                problem = f"has a section {section} of another shape ({error})"
                raise unusable(checkpoint, problem) from error
        return begun

    def data(self) -> bytes:
        """The document's bytes."""
        return json.dumps({"version": VERSION, **_plain(self)}, default=_plain, indent=1).encode()

    def write(self, spark: SparkSession, checkpoint: str) -> None:
        """Write the checkpoint's document, unless it says the same already.

        Not all file systems replace a file in one step, so that no start does without need.
        """
        files, data = files_at(spark, checkpoint), self.data()
        if not files.is_file(DOCUMENT) or files.read(DOCUMENT) != data:
            files.write(DOCUMENT, data)


def unusable(checkpoint: str, problem: str) -> FkJoinError:
    """Make the error for a checkpoint's document; ``problem``: its predicate."""
    document = f"{checkpoint.rstrip('/')}/{DOCUMENT}"
    return FkJoinError(
        f"{document} {problem}: restore this file from the last backup "
        "of the checkpoint, or start with a new checkpoint and an empty target"
    )


def _plain(value: Any) -> Any:
    """Return a dataclass or a schema as JSON has it."""
    if isinstance(value, StructType):
        return value.jsonValue()
    return {name: item for name, item in vars(value).items() if item not in (None, {})}


def _typed(value: Any, kind: Any) -> Any:
    """Read a value of JSON as an annotated type; one of ``MISSHAPEN`` if it is none."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if type(None) in arguments:
        return _typed(value, arguments[0])
    if kind is Any:
        return value
    if kind is StructType:
        return kept_type(value)
    if origin is tuple:
        items = zip(_typed(value, list), arguments, strict=True)
        return tuple(_typed(item, part) for item, part in items)
    if is_dataclass(kind):
        hints, facts = get_type_hints(kind), _typed(value, dict)
        return origin(**{name: _typed(item, hints[name]) for name, item in facts.items()})
    if type(value) is not origin:
        raise TypeError(f"{json.dumps(value)[:100]} is not of type {origin.__name__}")
    if origin is list and arguments:
        return [_typed(item, arguments[0]) for item in value]
    if origin is dict and arguments:
        return {name: _typed(item, arguments[1]) for name, item in value.items()}
    return value
