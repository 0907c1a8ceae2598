"""The columns that tables of files were first read with: a file beside the checkpoint keeps them.

Columns that a user does not give are learned from the files that are there, and others may be there at the next start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.checkpoint.files import begun, hadoop, read_file, write_file
from fkjoin.spark.schemas import kept_type

SCHEMAS = "fkjoin-schemas.json"
"""Lies in the checkpoint of a query, and of a job."""


@dataclass
class KeptSchemas:
    """Columns that are kept, by the names of tables, and the new ones that were reported."""

    schemas: dict[str, StructType]
    reported: dict[str, list[str]]

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, queries: Iterable[str] = ("",)) -> KeptSchemas:
        """Read what is kept at ``checkpoint``, if one of the queries whose checkpoints are below it has begun."""
        if not any(begun(spark, f"{checkpoint}/{query}") for query in queries):
            return cls({}, {})
        path, files = hadoop(spark, f"{checkpoint}/{SCHEMAS}")
        found: dict[str, Any] = json.loads(read_file(path, files)) if files.exists(path) else {}
        schemas = {name: kept_type(one["schema"]) for name, one in found.items()}
        return cls(schemas, {name: one["reported"] for name, one in found.items()})

    def write(self, spark: SparkSession, checkpoint: str) -> None:
        said = {
            name: {"schema": schema.jsonValue(), "reported": self.reported.get(name, [])}
            for name, schema in self.schemas.items()
        }
        write_file(*hadoop(spark, f"{checkpoint}/{SCHEMAS}"), json.dumps(said, indent=1).encode())

    def take(self, name: str, learned: StructType) -> bool:
        """Keep what a table has learned if nothing is kept of it, else say once what is new; whether there is more to keep."""
        if name not in self.schemas:
            self.schemas[name], self.reported[name] = learned, []
            return True
        known = {*(path for path, _ in _fields(self.schemas[name])), *self.reported[name]}
        new = {path: kind for path, kind in _fields(learned) if path not in known}
        left_out = {*self.reported[name], *new}
        # A new struct is reported once, not each of its fields.
        told = {path: kind for path, kind in new.items() if path.rpartition(".")[0] not in left_out}
        for path, kind in told.items():
            logging.getLogger("fkjoin").warning(
                "table %s: its files have a new field %s (%s), which is left out: the checkpoint was begun without it. To read "
                "it, give the table a schema= that names it; a query that keeps whole rows then needs a new checkpoint",
                *(name, path, kind.simpleString()),
            )
        self.reported[name] += new
        return bool(new)


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
