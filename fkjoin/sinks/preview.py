"""A bounded look at a table: a query of its own reads the beginning of its inputs.

It leaves nothing behind.
The table is planned over sources that are read a little at a time.  After each batch the rows that
have been seen are the table of what has been read; the query ends when they are enough, or after
``MOST_BATCHES`` batches.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from fkjoin.analysis.emission import Emission
from fkjoin.analysis.planned import Planned, SourceBound, rebuilt
from fkjoin.checkpoint.failure import failure
from fkjoin.checkpoint.files import files_at
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import TopologyError
from fkjoin.lowering.handle import Handle
from fkjoin.lowering.operators import plan
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.base import ON_CHANGE, periodic
from fkjoin.plan.physical import Physical, Read, replaced
from fkjoin.sessions.own_folder import held_folder
from fkjoin.sinks.batches import Batch, started
from fkjoin.spark.index_home import index_base
from fkjoin.spark.schemas import arrow_schema
from fkjoin.spark.spark_api import require_classic

MOST_BATCHES = 10
"""After so many a preview ends, with the rows that there are."""

_OF_TOPICS = {"maxOffsetsPerTrigger": "10000"}
_OF_FILES = {"maxBytesPerTrigger": str(8 << 20)}
_BOUNDS = {
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "maxbytespertrigger",
    "maxfilespertrigger",
}
"""Options of sources, in lower case, that say how much a batch reads."""


def first_rows(table: Handle, schema: StructType, n: int) -> DataFrame:
    """Read the first rows, see ``Table.preview``.

    A source has to be materialized, so that a batch has a row's last change.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise TopologyError(f"n: {n!r} is not a whole number of at least 1")
    spark = table._planned.spark
    require_classic(spark, "preview", "write the table to a place with to_parquet, and read that")
    reads: dict[Read, Read] = {}
    bounded = rebuilt(table._planned, partial(_bounded, reads))
    bounded.require_fitting()
    rows = _Rows(plan(bounded), schema, n)
    # On the session's own file system, which all workers reach.
    with held_folder() as folder:
        try:
            _run(rows, f"{folder}/checkpoint")
        finally:
            files_at(spark, folder).delete()
    return spark.createDataFrame(rows.table, schema)


class _Rows:
    """The first rows of a table, kept up to date batch by batch."""

    def __init__(self, plan: TablePlan, schema: StructType, n: int) -> None:
        self.plan, self._n, self._batches = plan, n, 0
        self.ended = threading.Event()
        """No further batch is wanted."""
        self._schema = arrow_schema("row", schema)
        self._key = KeyCodec(arrow_schema("key", plan.key_type))
        self._rows: dict[bytes, pa.Table] = {}

    def write(self, batch: Batch, query: str, number: int) -> None:
        """Take in the changes of rows that are known, and up to ``n`` rows more.

        As long as there are fewer than ``n`` rows, they are all that there are: so no row is missed
        that a later batch changes.
        """
        if self.ended.is_set():
            return
        changes = batch.changes.toArrow()
        rows = changes.select(self._schema.names)
        columns = [rows[name].combine_chunks() for name in self.plan.key]
        keys = self._key.encode(columns, len(rows)).to_pylist()
        operations, more = changes["_operation"].to_pylist(), 0
        for index, (key, operation) in enumerate(zip(keys, operations, strict=True)):
            known = self._rows.pop(key, None) is not None
            if operation != "delete" and (known or more < self._n):
                self._rows[key] = rows.slice(index, 1)
                more += not known
        self._batches += 1
        if len(self._rows) >= self._n or self._batches == MOST_BATCHES:
            self.ended.set()

    @property
    def table(self) -> pa.Table:
        rows = list(self._rows.values())[: self._n]
        return pa.concat_tables(rows) if rows else self._schema.empty_table()


def _run(rows: _Rows, checkpoint: str) -> None:
    """Read until the rows are enough, or the input is at its end."""
    # A query of the table may run meanwhile, and has its name.
    name, trigger = f"preview of {rows.plan.name} {uuid.uuid4()}", {"availableNow": True}
    query = started(rows.plan, rows.write, checkpoint, trigger=trigger, query_name=name)

    def stop() -> None:
        rows.ended.wait()
        query.stop()

    # The thread that writes a batch cannot stop the query, which waits for it.
    stopping = InheritableThread(target=stop, name="fkjoin-preview", daemon=True)
    stopping.start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if not rows.ended.is_set():  # else the batch after the last one was cut off
            raise failure(query, f"preview of {rows.plan.name}") or error from None
    finally:
        rows.ended.set()
        stopping.join()
        for folder in rows.plan.planned.index_dirs:
            shutil.rmtree(index_base(folder) / str(query.id), ignore_errors=True)


def _bounded(reads: dict[Read, Read], table: Planned) -> Planned:
    """The table with little read at a time, nothing that waits, and all stages in one query.

    ``reads``: sources that are bounded already.
    """
    node, bound = table.node, table.bound
    if isinstance(bound, SourceBound):
        return replace(table, bound=_little(bound, reads))
    fused = dict.fromkeys(("topics", "topic"))
    node, bound = _with(node, fused), _with(bound, fused)
    if periodic(node):
        node, bound = _with(node, {"emit": ON_CHANGE}), _with(bound, {"emission": Emission()})
    return replace(table, node=node, bound=bound)


def _with(node: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass with the values that it has fields for."""
    names = {field.name for field in fields(node)} & values.keys()
    return replace(node, **{name: values[name] for name in names})


def _little(source: SourceBound, reads: dict[Read, Read]) -> SourceBound:
    def little(node: Physical) -> Physical | None:
        if not isinstance(node, Read):
            return None
        if node not in reads:
            known = node.options.items()
            options = {name: value for name, value in known if name.lower() not in _BOUNDS}
            more = _OF_TOPICS if node.format == "kafka" else _OF_FILES
            reads[node] = replace(node, options={**options, **more})
        return reads[node]

    undecoded = source.undecoded
    if undecoded is not None:
        lines, snapshot = replaced(undecoded.lines, little), undecoded.snapshot
        if snapshot is not None:
            snapshot = replaced(snapshot, little)
        undecoded = undecoded._replace(lines=lines, snapshot=snapshot)
    return replace(source, rows=replaced(source.rows, little), undecoded=undecoded)
