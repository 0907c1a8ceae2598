"""Upserts and deletes of a target, made from a table's changes batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.lowering.lowered import Lowered
from fkjoin.plan.nodes import Source
from fkjoin.sinks.batches import Batch, Write
from fkjoin.spark.names import require_results


class Upserts(ABC):
    """A sink that is a table somewhere else, kept as fkjoin's table is."""

    _set_backs: dict[str, int | None]
    """By query: the identity of the last set-back, when its first batch since the start came."""

    def check(self, table: Lowered) -> None:
        """See ``Checks``."""
        _require_last_changes(table)
        self.examine(_schema(table), table.key)

    def begin(self, table: Lowered) -> Write:
        """Begin to write, see ``Sink``.  ``TopologyError`` for a source; ``FkJoinError`` where the target takes nothing."""
        _require_last_changes(table)
        key = list(table.key)
        columns = [*key, *table.rest]
        self.prepare(_schema(table), table.key)
        self._set_backs = {}

        def write(batch: Batch, query: str, number: int) -> None:
            rows = self.columns(batch.changes).toArrow()
            gone = pc.equal(rows["_operation"], "delete")
            upserts, deletes = rows.filter(pc.invert(gone)).select(columns), rows.filter(gone).select(key)
            self.apply(query, number, upserts, deletes, batch.began_ms)

        return write

    @abstractmethod
    def examine(self, schema: StructType, key: tuple[str, ...]) -> None:
        """Raise what ``prepare`` would, trying once; nothing is made."""

    @abstractmethod
    def prepare(self, schema: StructType, key: tuple[str, ...]) -> None:
        """Make the table if it is not there; ``FkJoinError`` if it cannot be written to as it is.

        ``schema``: of the key's columns, then the others; a column that may be null is nullable in it.
        """

    def columns(self, changes: DataFrame) -> DataFrame:
        """The changes, their columns as the target takes them."""
        return changes

    def require_not_set_back(self, query: str, last: int | None) -> None:
        """``FkJoinError`` if the target was set back since the first batch; ``last``: the identity of the last set-back."""
        if self._set_backs.setdefault(query, last) != last:
            raise FkJoinError(f"{self.place} was set back since this query began, and another query goes on with it")

    @property
    @abstractmethod
    def place(self) -> str: ...

    @abstractmethod
    def apply(self, query: str, batch: int, upserts: pa.Table, gone: pa.Table, began_ms: int | None = None) -> None:
        """Take in a batch's rows, and delete those with the keys ``gone``, unless the query's batch is in already.

        ``began_ms``: see ``Mark``.  ``FkJoinError`` when another batch of that number, or a later one, is in.
        """


def _schema(table: Lowered) -> StructType:
    return StructType([*table.key_type, *(table.row_type[name] for name in table.rest)])


def _require_last_changes(table: Lowered) -> None:
    """Raise ``TopologyError`` unless a batch has the last change of each row, under names that results leave free."""
    if isinstance(table.node, Source):
        raise TopologyError(
            f"{table.name}: a source's changes come as they are read, several of a row in a batch: write "
            f'.materialize("{table.name}") first (in a job file, materialize = true), so that each batch has a row\'s last one'
        )
    require_results(table.name, [*table.key, *table.rest])
