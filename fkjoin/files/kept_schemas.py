"""The columns that tables of files were first read with: a file beside the checkpoint keeps them.

Columns that a user does not give are learned from the files that are there, and others may be there at the next start.  So are
columns of folders, beside a schema that does not name them, too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.checkpoint.files import begun, hadoop, read_file, write_file
from fkjoin.files.folders import KeptFolders, lowered
from fkjoin.spark.schemas import kept_type

SCHEMAS = "fkjoin-schemas.json"
"""Lies in the checkpoint of a query, and of a job."""
_LEFT_OUT = (
    "%s (%s), which is left out: the checkpoint was begun without it. To read it, give the table a schema= that names it; a "
    "query that keeps whole rows then needs a new checkpoint"
)
_NEW_FIELD = f"table %s: its files have a new field {_LEFT_OUT}"
_NEW_FOLDER = f"table %s: its files are in folders with a new column {_LEFT_OUT}"


@dataclass
class KeptSchemas:
    """Columns that are kept, by the names of tables, and the new ones that were reported."""

    schemas: dict[str, StructType]
    """Empty where the user gave the schema."""
    reported: dict[str, list[str]]
    """Paths of fields; columns of folders end with ``=``."""
    folders: dict[str, StructType] = field(default_factory=dict)
    """The columns of folders, those of them that were learned."""
    formats: dict[str, str] = field(default_factory=dict)
    """The formats of a job's files: an empty folder does not tell them."""

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, queries: Iterable[str] = ("",)) -> KeptSchemas:
        """Read what is kept at ``checkpoint``, if one of the queries whose checkpoints are below it has begun."""
        if not any(begun(spark, f"{checkpoint}/{query}") for query in queries):
            return cls({}, {})
        return cls.read(spark, checkpoint)

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str) -> KeptSchemas:
        """Read what is kept at ``checkpoint``."""
        path, files = hadoop(spark, f"{checkpoint}/{SCHEMAS}")
        found: dict[str, Any] = json.loads(read_file(path, files)) if files.exists(path) else {}
        schemas = {name: kept_type(one["schema"]) for name, one in found.items()}
        folders = {name: kept_type(one["folders"]) for name, one in found.items() if one.get("folders")}
        formats = {name: one["format"] for name, one in found.items() if "format" in one}
        return cls(schemas, {name: one["reported"] for name, one in found.items()}, folders, formats)

    def texts(self, spark: SparkSession) -> dict[str, str]:
        """The schemas as DDL, but for those that the user gave."""
        frames: dict[str, Any] = {name: spark.createDataFrame([], one) for name, one in self.schemas.items() if one}
        return {name: str(frame._jdf.schema().toDDL()) for name, frame in frames.items()}

    def write(self, spark: SparkSession, checkpoint: str) -> None:
        said: dict[str, dict[str, Any]] = {
            name: {"schema": schema.jsonValue(), "reported": self.reported.get(name, [])}
            for name, schema in self.schemas.items()
        }
        for name, columns in self.folders.items():
            said[name]["folders"] = columns.jsonValue()
        for name, form in self.formats.items():
            said[name]["format"] = form
        write_file(*hadoop(spark, f"{checkpoint}/{SCHEMAS}"), json.dumps(said, indent=1).encode())

    def take(self, name: str, learned: StructType | None, folders: StructType | None = None) -> bool:
        """Keep what a table has learned if nothing is kept of it, else say once what is new; whether there is more to keep.

        ``learned``: None where the user gave the schema; ``folders``: columns of folders, None where nothing is said of them.
        """
        more = self._take_fields(name, learned or StructType(), folders or StructType())
        return more if folders is None else self._take_folders(name, folders) or more

    def _take_fields(self, name: str, learned: StructType, folders: StructType) -> bool:
        if not self.schemas.get(name):
            more = name not in self.schemas or bool(learned)
            self.schemas[name], self.reported[name] = learned, self.reported.get(name, [])
            if learned:
                self.folders.pop(name, None)  # beside a schema, they were not all that there were
            return more
        known = {*(path for path, _ in _fields(self.schemas[name])), *self.reported[name], *folders.names}
        new = {path: kind for path, kind in _fields(learned) if path not in known}
        left_out = {*self.reported[name], *new}
        # A new struct is reported once, not each of its fields.
        told = {path: kind for path, kind in new.items() if path.rpartition(".")[0] not in left_out}
        for path, kind in told.items():
            logging.getLogger("fkjoin").warning(_NEW_FIELD, name, path, kind.simpleString())
        self.reported[name] += new
        return bool(new)

    def _take_folders(self, name: str, folders: StructType) -> bool:
        more = name not in self.folders
        if more:  # of a checkpoint of before, those that are among its columns
            schema = {one.name.lower(): one for one in self.schemas[name]}
            known = [schema[one.name.lower()] for one in folders if one.name.lower() in schema] if schema else folders
            self.folders[name] = StructType([*known])
        known_names = lowered([*self.folders[name].names, *(path[:-1] for path in self.reported[name] if path.endswith("="))])
        new = [one for one in folders if one.name.lower() not in known_names]
        for one in new:
            logging.getLogger("fkjoin").warning(_NEW_FOLDER, name, one.name, one.dataType.simpleString())
        self.reported[name] += [f"{one.name}=" for one in new]
        return more or bool(new)

    def kept_folders(self, name: str, *, learned: bool) -> KeptFolders | None:
        """The columns of folders that a table is to have; ``learned``: its schema is kept, too.

        A checkpoint of before does not tell them from others of its columns, and None is kept of a schema that was given.
        """
        if name not in self.folders:
            return KeptFolders(StructType(), only=False) if learned and self.schemas.get(name) else None
        return KeptFolders(self.folders[name], learned)


def _fields(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """The fields of a type, those in structs, lists and maps of it too: their paths, such as ``a.b``, and their types."""
    if isinstance(kind, ArrayType):
        yield from _fields(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _fields(kind.valueType, path)
    elif isinstance(kind, StructType):
        for field in kind:
            yield f"{path}{field.name}", field.dataType
            yield from _fields(field.dataType, f"{path}{field.name}.")
