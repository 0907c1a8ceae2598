"""Places for a table's changes, for ``Table.to``: topics, files, tables elsewhere, and your own.

``Postgres``, ``Delta``, ``Iceberg`` and your own sinks inherit from ``TableSink``. Each keeps a
table up to date, row by row. In one transaction with the rows, it stores the last batch of each
query, so it leaves out a batch that is repeated. Batches pass through the driver; limit them with
the source's ``maxOffsetsPerTrigger`` or ``maxFilesPerTrigger``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fkjoin.errors import needs_extra
from fkjoin.sinks.batches import Sink
from fkjoin.sinks.kafka import Kafka
from fkjoin.sinks.parquet import Parquet
from fkjoin.sinks.table_sink import BatchId, TableSink
from fkjoin.spark.outages import RETRY_S

if TYPE_CHECKING:
    from fkjoin.sinks.delta import Delta
    from fkjoin.sinks.iceberg import Iceberg
    from fkjoin.sinks.postgres import Postgres

__all__ = [
    "RETRY_S",
    "BatchId",
    "Delta",
    "Iceberg",
    "Kafka",
    "Parquet",
    "Postgres",
    "Sink",
    "TableSink",
]


def __getattr__(name: str) -> Any:
    """Import the sinks whose packages need not be there."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = name.lower()
    with needs_extra(f"to_{module}", module):
        return getattr(importlib.import_module(f"fkjoin.sinks.{module}"), name)


def __dir__() -> list[str]:
    return __all__
