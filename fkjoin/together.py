"""What tables that are made of several others have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stateful import frame_of, once
from fkjoin.table import Table
from fkjoin.topology import Cogroup, Merge


def put_together(
    tables: Sequence[Table], node: Cogroup | Merge, results: DataFrame, unpack: UnpackResults, built: Callable[[str], Table]
) -> Table:
    """The table of ``results``, the envelopes of its last stage; ``built`` makes it with its rows kept under a name."""
    return Table(
        node,
        frame_of(results, unpack),
        tables[0].key,
        next((table.timestamps for table in tables if table.timestamps), None),
        tables[0].on_error,
        once(frame for table in tables for frame in table.dead),
        connection=next((table.connection for table in tables if table.connection), None),
        packed=(results, unpack),
        stages=tuple(query for table in tables for query in table.stages),
        materialized_as=built,
    )
