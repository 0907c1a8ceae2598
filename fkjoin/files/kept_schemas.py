"""The columns that tables of files were first read with, which a checkpoint keeps.

Columns that a user does not give are learned from the files that are there, and others may be there at the next start.  So are
columns of folders, beside a schema that does not name them, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from fkjoin.checkpoint.begun import LearnedColumns
from fkjoin.files.folders import KeptFolders, lowered

_LEFT_OUT = (
    "%s (%s), which is left out: the checkpoint was begun without it. To read it, give the table a schema= that names it; a "
    "query that keeps whole rows then needs a new checkpoint"
)
_NEW_FIELD = f"table %s: its files have a new field {_LEFT_OUT}"
_NEW_FOLDER = f"table %s: its files are in folders with a new column {_LEFT_OUT}"


def keep(
    tables: dict[str, LearnedColumns], name: str, learned: StructType | None, folders: StructType | None = None
) -> LearnedColumns:
    """Keep what a table has learned if nothing is kept of it, else report once what is new.

    Returns what is kept.  ``learned``: None where the user gave the schema; ``folders``: columns of
    folders, None where nothing is known of them.
    """
    kept = tables.setdefault(name, LearnedColumns())
    if kept.schema is None and learned:
        kept.schema, kept.folders = learned, None  # folders beside a schema were not all that there were
    if kept.folders is None:
        kept.folders = folders
    _report_fields(name, kept, learned, folders or StructType())
    left_out = [path[:-1] for path in kept.reported if path.endswith("=")]
    known = lowered([*(kept.folders or StructType()).names, *left_out])
    for column in folders or ():
        if column.name.lower() not in known:
            logging.getLogger("fkjoin").warning(_NEW_FOLDER, name, column.name, column.dataType.simpleString())
            kept.reported.append(f"{column.name}=")
    return kept


def _report_fields(name: str, kept: LearnedColumns, learned: StructType | None, folders: StructType) -> None:
    known = {*(path for path, _ in _fields(kept.schema)), *kept.reported, *folders.names}
    new = {path: kind for path, kind in _fields(learned) if path not in known}
    left_out = {*kept.reported, *new}
    for path, kind in new.items():
        if path.rpartition(".")[0] not in left_out:  # a new struct is reported once, not each of its fields
            logging.getLogger("fkjoin").warning(_NEW_FIELD, name, path, kind.simpleString())
    kept.reported += new


def kept_folders(kept: LearnedColumns, *, learned: bool) -> KeptFolders | None:
    """The columns of folders that a table is to have; ``learned``: its schema is kept, too."""
    return None if kept.folders is None else KeptFolders(kept.folders, learned)


def _fields(kind: DataType | None, path: str = "") -> Iterator[tuple[str, DataType]]:
    """The fields of a type, those in structs, lists and maps of it too: their paths, such as ``a.b``, and their types."""
    if isinstance(kind, ArrayType):
        yield from _fields(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _fields(kind.valueType, path)
    elif isinstance(kind, StructType):
        for field in kind:
            yield f"{path}{field.name}", field.dataType
            yield from _fields(field.dataType, f"{path}{field.name}.")
