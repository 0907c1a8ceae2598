"""A table's changes as Parquet files, each batch exactly once, without rows in the JVM.

Workers write ``PATH/batch=N-CHECKPOINT/part-….parquet``.  A batch's files are written under
``PATH/_unfinished``, by each attempt in a folder of its own.  They appear together, by the renaming
of their folder.  An attempt that comes second finds the batch's folder there, and throws away what
it wrote.

Readers of the files see a column more, ``batch``; where the table has a column of that name,
folders are called ``fkjoin_batch=…``.  ``PATH/_fkjoin.json`` says what the files are, for
``Table.from_fkjoin``.

Object stores rename no folders: there a batch is one file, which a copy of its draft publishes.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from fkjoin.errors import FkJoinError
from fkjoin.spark.object_store import opened
from fkjoin.spark.packing import Batches
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.spark.worker import releasing

UNFINISHED, SET_ASIDE = "_unfinished", "_set-aside"
"""Folders that readers pass over.

They are of attempts at batches, and of batches that a checkpoint no longer has.
"""
_WRITTEN = pa.schema([("file", pa.string())])
_ANSWER = pa.schema([*_WRITTEN, ("error", pa.string())])


_ROWS = 128 << 10

_ABOUT = "org.apache.spark.sql.parquet.row.metadata"
"""Key of a file's metadata where Spark's reader finds the types of rows."""


@dataclass(frozen=True)
class ChangesOf:
    """Envelopes of ``RESULT`` → rows of ``Table.changes``.

    ``timestamp``: they are times, in microseconds.
    """

    unpack: UnpackResults
    timestamp: bool

    @property
    def schema(self) -> pa.Schema:
        time = pa.timestamp("us", "UTC") if self.timestamp else pa.int64()
        numbers = [(f"_{name}", pa.list_(pa.int64())) for name, _ in self.unpack.versions]
        about = [("_operation", pa.string()), *numbers, ("_timestamp", time)]
        return pa.schema([*self.unpack.key, *self._row(), *(pa.field(*item) for item in about)])

    def __call__(self, batches: Batches) -> Batches:
        schema = self.schema
        for batch in self.unpack(batches):
            columns: dict[str, pa.Array] = {}
            for struct in (batch.column("row"), batch.column("key")):
                names = [field.name for field in struct.type]
                columns |= zip(names, struct.flatten(), strict=True)
            columns["_operation"] = batch.column("operation")
            for name, _ in self.unpack.versions:
                columns[f"_{name}"] = batch.column(f"numbers_{name}")
            columns["_timestamp"] = batch.column("ts").cast(schema.field("_timestamp").type)
            yield pa.record_batch([columns[name] for name in schema.names], schema=schema)

    def _row(self) -> list[pa.Field]:
        own = set(self.unpack.key.names)
        return [field for field in self.unpack.schema.field("row").type if field.name not in own]


@dataclass(frozen=True)
class WriteFile:
    """Batches → one Parquet file in ``folder``, if there is anything to write; yields its name."""

    folder: str
    """A URI, or an absolute local path."""
    changes: ChangesOf | None
    """None: the batches are what is to be written."""
    about: bytes
    """The rows' types, for Spark's reader: Parquet has none of its own for intervals."""
    options: Mapping[str, str] | None = field(default=None, repr=False)
    """Options of the object store that the folder is in; None elsewhere."""

    def __call__(self, batches: Batches) -> Batches:
        writer: pq.ParquetWriter | None = None
        name = f"part-{uuid.uuid4().hex}.parquet"
        if self.options is None:
            files, folder = FileSystem.from_uri(self.folder)
        else:
            files, folder = opened(self.folder, self.options)
        batches = releasing(batches)
        for batch in batches if self.changes is None else self.changes(batches):
            if writer is None:
                schema = batch.schema.with_metadata({_ABOUT: self.about})
                with self._writing():
                    writer = pq.ParquetWriter(f"{folder}/{name}", schema, filesystem=files)
            if batch.num_rows:
                with self._writing():
                    writer.write_table(pa.table(batch), row_group_size=_ROWS)
        if writer is not None:
            with self._writing():
                writer.close()
            yield pa.record_batch([[name]], schema=_WRITTEN)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name a local folder in errors of its disk."""
        try:
            yield
        except OSError as error:
            if "://" in self.folder:
                raise
            raise FkJoinError(f"sink parquet {self.folder}: {error}") from error


@dataclass(frozen=True)
class PutFile:
    """Batches → what ``WriteFile`` yields in an object store, or the store's error.

    The driver may know how to fix it.
    """

    write: WriteFile

    def __call__(self, batches: Batches) -> Batches:
        try:
            for written in self.write(batches):
                yield written.append_column("error", pa.nulls(written.num_rows, pa.string()))
        except OSError as error:
            deque(batches, maxlen=0)  # Spark uses the process again if it has read all
            yield pa.record_batch([[None], [str(error)]], schema=_ANSWER)
