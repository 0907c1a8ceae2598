"""The columns that tables of files were first read with, which a checkpoint keeps.

Columns that a user does not give are learned from the files that are there, and others may be there
at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.checkpoint.begun import LearnedColumns
from fkjoin.errors import TopologyError
from fkjoin.files.folders import lowered

_NEW_FIELD = (
    "table %s: its files have a new field %s (%s), which is left out: the checkpoint was begun "
    "without it. To read it, give the table a schema= that names it; a query that keeps whole rows "
    "then needs a new checkpoint"
)


def keep(
    tables: dict[str, LearnedColumns], name: str, learned: StructType, folders: Sequence[str] = ()
) -> LearnedColumns:
    """Keep what a table has learned if nothing is kept of it, else report once what is new.

    Returns what is kept.  ``folders``: the columns that names of folders are.  ``TopologyError``
    for a column that was one of the lines and is one of folders now, or the other way round.
    """
    first = tables.setdefault(name, LearnedColumns())
    if first.schema is None:
        first.schema, first.folders = learned, list(folders)
    moved = lowered(folders) ^ lowered(first.folders)
    for column in learned.names:
        if column.lower() in moved & lowered(first.schema.names):
            origin = "names of folders" if column.lower() in lowered(folders) else "lines"
            raise TopologyError(
                f"path: column {column} of {name} comes from {origin} now, and did not when the "
                "checkpoint was started. Rename the folders, if no batch has read them; or give a "
                f"schema= that names {column}, which is then read from {origin}"
            )
    known = {*(path for path, _ in _fields(first.schema)), *first.reported}
    new = {path: kind for path, kind in _fields(learned) if path not in known}
    left_out = {*first.reported, *new}
    for path, kind in new.items():
        if path.rpartition(".")[0] not in left_out:  # a new struct counts once, without its fields
            logging.getLogger("fkjoin").warning(_NEW_FIELD, name, path, kind.simpleString())
    first.reported += new
    return first


def _fields(kind: DataType | None, path: str = "") -> Iterator[tuple[str, DataType]]:
    """The paths, such as ``a.b``, and types of the fields of a type, those in it too."""
    if isinstance(kind, ArrayType):
        yield from _fields(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _fields(kind.valueType, path)
    elif isinstance(kind, StructType):
        for field in kind:
            yield f"{path}{field.name}", field.dataType
            yield from _fields(field.dataType, f"{path}{field.name}.")
