"""From a table's changes to a target's upserts and deletes, batch by batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from fkjoin.errors import TopologyError
from fkjoin.spark.files import query_id
from fkjoin.topology import Node, Source


class Target(Protocol):
    """A table somewhere else."""

    def prepare(self, schema: StructType, key: tuple[str, ...]) -> None:
        """Make the table if it is not there; ``FkJoinError`` if it cannot be written to as it is."""
        ...

    def columns(self, changes: DataFrame) -> DataFrame:
        """The changes, their columns as the target takes them."""
        ...

    def apply(self, query: str, batch: int, upserts: pa.Table, gone: pa.Table) -> None:
        """Take in a batch's rows, and delete those with the keys ``gone``, unless the query's batch is in already."""
        ...


def start_upserts(
    node: Node,
    changes: DataFrame,
    key: tuple[str, ...],
    rest: tuple[str, ...],
    target: Target,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    name: str,
) -> StreamingQuery:
    """Start keeping ``target`` as the table is.  Raises ``TopologyError``, and ``FkJoinError`` when it cannot be reached."""
    if isinstance(node, Source):
        raise TopologyError(
            f"{node.name}: a source's changes come as they are read, several of a row in a batch: write "
            f'.materialize("{node.name}") first, so that each batch has a row\'s last one'
        )
    spark = changes.sparkSession
    columns = [*key, *rest]
    target.prepare(changes.select(*(f"`{column}`" for column in columns)).schema, key)

    @functools.cache
    def name_of_query() -> str:  # there from the first batch on
        return query_id(spark, checkpoint)

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow()
        gone = pc.equal(rows["_operation"], "delete")
        target.apply(name_of_query(), number, rows.filter(pc.invert(gone)).select(columns), rows.filter(gone).select(list(key)))

    writer = target.columns(changes).writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).queryName(name)
    return (writer.trigger(**trigger) if trigger else writer).start()
