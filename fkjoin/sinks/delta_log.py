"""What a Delta table's log says of fkjoin's batches, and the way back to one of them.

A batch's commit has its number and when it began as transactions (``txn``), which the log keeps for good, and as metadata, by
which the version of a batch is found as long as the table keeps its history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from fkjoin.errors import FkJoinError
from fkjoin.spark.batch_log import BatchLog, Mark

_QUERY, _BATCH, _BEGAN = "fkjoin.query", "fkjoin.batch", "fkjoin.beganMs"
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END")
"""Operations that leave the rows as they are."""
_UNKNOWN = -1


def commit(query: str, mark: Mark) -> CommitProperties:
    """What the commit of a batch says beside its rows."""
    said = {_QUERY: query, _BATCH: str(mark.number), _BEGAN: str(_UNKNOWN if mark.began_ms is None else mark.began_ms)}
    transactions = [Transaction(query, mark.number), Transaction(_began(query), int(said[_BEGAN]))]
    return CommitProperties(custom_metadata=said, app_transactions=transactions)


def last(table: DeltaTable, query: str) -> Mark | None:
    """The query's last batch that is in the table."""
    number = table.transaction_version(query)
    return None if number is None or number < 0 else _mark(number, table.transaction_version(_began(query)))


def way_back(table: DeltaTable, query: str, log: BatchLog) -> Callable[[], None]:
    """What restores the version of the checkpoint's last batch; ``FkJoinError`` where it is not to be had."""
    history = table.history()  # the newest first
    version, mark = _target(history, query, log)
    for entry in history:
        if entry["version"] > version and entry.get(_QUERY) != query and entry["operation"] not in _UPKEEP:
            raise FkJoinError(
                f"its version {entry['version']} ({entry['operation']}) is none of this query's, and would be undone with all "
                f"after version {version}"
            )

    def go_back() -> None:
        if version == history[0]["version"]:
            return
        try:
            table.restore(version, commit_properties=commit(query, mark))
        except DeltaError as error:
            raise FkJoinError(
                f"Delta table {table.table_uri} cannot be restored to version {version}, that of batch {mark.number} of the "
                f"checkpoint: {error}. If its files were vacuumed, start with a new checkpoint and an empty target"
            ) from error

    return go_back


def _target(history: list[dict[str, Any]], query: str, log: BatchLog) -> tuple[int, Mark]:
    """The version with the last of the checkpoint's batches, and that batch."""
    ours = [(_mark(entry[_BATCH], entry[_BEGAN]), entry["version"]) for entry in history if entry.get(_QUERY) == query]
    if known := [(mark.number, version, mark) for mark, version in ours if mark.number < 0 or log.has(mark)]:
        _, version, mark = max(known, key=lambda one: one[:2])
        return version, mark
    if ours and history[-1]["version"] == 0 < ours[-1][1]:  # the checkpoint is from before the first batch that had rows
        return ours[-1][1] - 1, Mark(-1, None)
    raise FkJoinError("no version of its history is that of a batch that the checkpoint has")


def _mark(number: int | str, began_ms: int | str | None) -> Mark:
    return Mark(int(number), None if began_ms is None or int(began_ms) == _UNKNOWN else int(began_ms))


def _began(query: str) -> str:
    return f"{query} began"
