"""Records of fkjoin's batches in a Delta table's log, and the version of one of them.

A batch's commit has its number and when it began as transactions (``txn``), which the log keeps for good, and as metadata, by
which the version of a batch is found as long as the table keeps its history.
"""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable, Transaction

from fkjoin.checkpoint.batch_log import Mark
from fkjoin.errors import FkJoinError

_QUERY, _BATCH, _BEGAN = "fkjoin.query", "fkjoin.batch", "fkjoin.beganMs"
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END")
"""Operations that leave the rows as they are."""
_NEVER = -1
"""Stands for the time of the batch before the first one."""


def commit(query: str, mark: Mark) -> CommitProperties:
    """Make the properties of a batch's commit."""
    began_ms = _NEVER if mark.began_ms is None else mark.began_ms
    metadata = {_QUERY: query, _BATCH: str(mark.number), _BEGAN: str(began_ms)}
    transactions = [Transaction(query, mark.number), Transaction(_began(query), began_ms)]
    return CommitProperties(custom_metadata=metadata, app_transactions=transactions)


def last(table: DeltaTable, query: str) -> Mark | None:
    """The query's last batch that is in the table."""
    number, began_ms = table.transaction_version(query), table.transaction_version(_began(query))
    if number is None:
        return None
    return Mark(number, None if began_ms == _NEVER else began_ms)


def note(table: DeltaTable, query: str, mark: Mark) -> None:
    """Commit a batch that has no rows."""
    table.create_write_transaction([], "append", table.schema(), commit_properties=commit(query, mark))


def version_of(table: DeltaTable, query: str, mark: Mark) -> int | None:
    """The newest version with a batch, after which only fkjoin wrote; None where the table's history has none.

    ``FkJoinError`` if another writer has changed rows since: they would be undone.
    """
    others: list[tuple[int, str]] = []
    for entry in table.history():  # the newest first
        if entry.get(_QUERY) == query and entry[_BEGAN] == str(mark.began_ms):
            if others:
                version, operation = others[-1]
                raise FkJoinError(f"its version {version} ({operation}) comes from another writer, and would be undone")
            return int(entry["version"])
        if entry.get(_QUERY) != query and entry["operation"] not in _UPKEEP:
            others.append((entry["version"], entry["operation"]))
    return None


def _began(query: str) -> str:
    return f"{query} began"
