"""Sinks that remember the last batch of each query: a query's start compares the checkpoint.

A place and a checkpoint are parted when one of them is restored from a backup.  A place that is
ahead would leave out the query's next batches, which are other cuts of the input; one that is
behind lacks the rows of the batches between.  So they are compared in both directions before
anything changes, and ``restore`` makes a place what the checkpoint's state is.

*Law*: a query writes to a place only what follows the last batch there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.checkpoint.files import files_at, has_begun, query_id
from fkjoin.checkpoint.saved import read_state
from fkjoin.errors import FkJoinError
from fkjoin.lowering.table_plan import TablePlan

_WAY_BACK = "Stop the query, and run fkjoin restore JOB.toml, or Table.restore in a program"

_OR_ANEW = "Or start with a new checkpoint and an empty target"


@runtime_checkable
class Ledger(Protocol):
    """A sink that remembers the last batch of each query, and leaves out a batch that it has.

    The batch may be one without rows.
    """

    @property
    def place(self) -> str:
        """Name in errors."""

    def begin(self, table: TablePlan) -> Any:
        """Make what has to be there, see ``Sink``."""

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        """The last batch of the query that it has; None without any, or without a target."""

    def restore(self, table: TablePlan, query: str, log: BatchLog) -> None:
        """Make the target what the checkpoint has after its last batch that is done.

        The call comes after ``begin``.  It may be interrupted, and repeated: until it is done,
        ``last`` does not return that batch.  ``FkJoinError``, and nothing has changed, when that
        cannot be: it says why.
        """


def parted(
    spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]
) -> list[tuple[str, Ledger, str]]:
    """Find the sinks that are not where the checkpoint is.

    Each is the name that it remembers batches by, the sink, and what is wrong.  ``sinks``: by what
    is added to the query's id.
    """
    ledgers = _ledgers(spark, checkpoint, sinks)
    marks = {name: ledger.last(spark, name) for name, ledger in ledgers.items()}
    # Afterwards: an earlier run of this process may still be at work.
    log = BatchLog(spark, checkpoint)
    wrongs = {name: _wrong(log, marks[name], ledger.place) for name, ledger in ledgers.items()}
    return [(name, ledgers[name], wrong) for name, wrong in wrongs.items() if wrong is not None]


def require_together(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> None:
    """``FkJoinError`` if one of the sinks is not where the checkpoint is."""
    for _, _, wrong in parted(spark, checkpoint, sinks):
        raise FkJoinError(f"{wrong}. {_WAY_BACK}. {_OR_ANEW}")


def _wrong(log: BatchLog, last: Mark | None, target: str) -> str | None:
    """Say what is wrong with a target whose last batch is ``last``; None if nothing is.

    The batch after the one that is done may be there already: its commit came after the target had
    it.
    """
    if last is None or last.began_ms is None:
        if log.done < 0:
            return None
    elif last.began_ms in (log.mark(log.done).began_ms, log.mark(log.last).began_ms):
        return None
    here = f"batch {log.done}" if log.done >= 0 else "its beginning"
    if last is None or last.number < 0:
        why = " has no batch of its query: it is another place, or was dropped or "
        why += "restored from a backup"
    elif last.number < log.done:
        why = f" is behind, at batch {last.number}: it was restored from a backup, "
        why += "and lacks later rows"
    elif last.number > log.last:
        why = f" is ahead, at batch {last.number}: the checkpoint was restored from a backup"
    else:
        why = f" has another batch {last.number}: one of them was restored from a backup"
    return f"checkpoint: {log.checkpoint} is at {here}, and {target}{why}"


def restore(table: TablePlan, checkpoint: str, sinks: Mapping[str, Any]) -> list[str]:
    """Make places that are not where the checkpoint is what its state is; their names.

    ``sinks``: as of ``parted``.
    """
    # Before they begin: a target that is gone is made by that, and its place may remember
    # batches apart from it.
    places_apart = parted(table.spark, checkpoint, sinks)
    for _, ledger, _ in places_apart:
        ledger.begin(table)
    places = []
    log = BatchLog(table.spark, checkpoint)
    for name, ledger, wrong in places_apart:
        try:
            ledger.restore(table, name, log)
        except FkJoinError as error:
            raise FkJoinError(f"{wrong}. It cannot be restored: {error}. {_OR_ANEW}") from error
        places.append(ledger.place)
    return places


def written_to(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> str | None:
    """The place of a sink that has a batch of the checkpoint's query; None for none."""
    for name, ledger in _ledgers(spark, checkpoint, sinks).items():
        if ledger.last(spark, name) is not None:
            return ledger.place
    return None


def missing(target: str) -> FkJoinError:
    """The error of a target that is gone while a query writes to it."""
    return FkJoinError(f"{target} is gone. {_WAY_BACK}. {_OR_ANEW}")


def rows_of_state(table: TablePlan, log: BatchLog) -> DataFrame:
    """The table's rows as of the last batch that is done, with all columns of ``read_state``.

    ``FkJoinError`` where the state does not have them.
    """
    if table.node.appends:
        raise FkJoinError(f"{table.name} has events, which no state keeps")
    if log.done < 0:
        return table.spark.createDataFrame([], table.changes.schema)
    name = table.node.kept_as or table.name
    rows = read_state(table.spark, log.checkpoint, name, batch=log.done)
    lacking = [name for name in (*table.key, *table.rest) if name not in rows.columns]
    if lacking:
        raise FkJoinError(f"{table.name} has no column {lacking[0]} in the state")
    return rows


def _ledgers(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> dict[str, Ledger]:
    """The sinks that remember batches of the checkpoint's query, by the names that they use."""
    if not has_begun(spark, checkpoint):
        return {}
    query = query_id(spark, checkpoint)
    return {f"{query}{suffix}": sink for suffix, sink in sinks.items() if isinstance(sink, Ledger)}


def require_spark_at(spark: SparkSession, checkpoint: str, path: str) -> None:
    """``FkJoinError`` if Spark's own sink of files has batches that the checkpoint does not know.

    It goes by its log at ``path`` alone, whichever query wrote it, and leaves out a batch of a
    number that it has.
    """
    logs = files_at(spark, path).names("_spark_metadata")
    names = [name.split(".")[0] for name in logs]
    last = max((int(name) for name in names if name.isdigit()), default=-1)
    known = BatchLog(spark, checkpoint).last
    if last > known:
        here = f"batch {known}" if known >= 0 else "its beginning"
        raise FkJoinError(
            f"checkpoint: {checkpoint} is at {here}, and {path} already contains batch {last}, as "
            "its folder _spark_metadata says: Spark's sink would leave out the next batches. "
            "Spark's sinks cannot be restored: give another path, or start with a new checkpoint "
            "and an empty path"
        )
