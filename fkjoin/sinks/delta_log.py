"""Records of fkjoin's batches in a Delta table's log, and the version of one of them.

A batch's commit has its number and when it began as transactions (``txn``), which the log keeps for
good, and as metadata, by which the version of a batch is found as long as the table keeps its
history.
"""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable, Transaction

from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError
from fkjoin.sinks.table_sink import BatchId

_QUERY, _BATCH, _BEGAN = "fkjoin.query", "fkjoin.batch", "fkjoin.beganMs"
_ROWS_STAY = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN"),
    *("SET TBLPROPERTIES", "SET TABLE PROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT"),
    *("ADD FEATURE", "UPDATE TABLE METADATA", "UPDATE FIELD METADATA"),
}
"""Operations of others that leave the rows as they are."""
_RESTORE = "RESTORE"
_NEVER = -1
"""Stands for the time of the batch before the first one."""


def commit(batch: BatchId) -> CommitProperties:
    """Make the properties of a batch's commit."""
    query, number = batch.query, batch.number
    began_ms = _NEVER if batch.began_ms is None else batch.began_ms
    metadata = {_QUERY: query, _BATCH: str(number), _BEGAN: str(began_ms)}
    transactions = [Transaction(query, number), Transaction(_began(query), began_ms)]
    return CommitProperties(custom_metadata=metadata, app_transactions=transactions)


def last(table: DeltaTable, query: str) -> BatchId | None:
    """The query's last batch that is in the table."""
    number, began_ms = table.transaction_version(query), table.transaction_version(_began(query))
    if number is None or _was_restored(table, query):
        return None
    return BatchId(query, number, None if began_ms == _NEVER else began_ms)


def _was_restored(table: DeltaTable, query: str) -> bool:
    """Tell whether another writer restored an earlier version after the query's last commit.

    The query's transactions outlive that.
    """
    for limit in (1, 20, None):  # mostly the newest commit is the query's
        for entry in table.history(limit):
            if entry.get(_QUERY) == query:
                return False
            if entry["operation"] == _RESTORE and _QUERY not in entry:
                return True
    return False


def note(table: DeltaTable, batch: BatchId) -> None:
    """Commit a batch that has no rows."""
    properties = commit(batch)
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def version_of(table: DeltaTable, query: str, mark: Mark) -> int | None:
    """The newest version with a batch, after which only fkjoin wrote; None without any.

    ``FkJoinError`` if another writer has changed rows since: they would be undone.
    """
    others: list[tuple[int, str]] = []
    for entry in table.history():  # the newest first
        if entry.get(_QUERY) == query and entry[_BEGAN] == str(mark.began_ms):
            if others:
                version, operation = others[-1]
                raise FkJoinError(
                    f"its version {version} ({operation}) was written by another writer, and would "
                    "be undone"
                )
            return int(entry["version"])
        if entry.get(_QUERY) != query and entry["operation"] not in (*_ROWS_STAY, _RESTORE):
            others.append((entry["version"], entry["operation"]))
    return None


def _began(query: str) -> str:
    return f"{query} began"
