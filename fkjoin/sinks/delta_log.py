"""Records of fkjoin's batches in a Delta table's log, and the way back to one of them.

A batch's commit has its number and when it began as transactions (``txn``), which the log keeps for good, and as metadata, by
which the version of a batch is found as long as the table keeps its history.  A release that knows numbers only leaves the
other transactions as they are: so the number that a time belongs to is one of them.

The commit of a way back has its identity in both ways, too.  What follows it is of the checkpoint that knows it; what it undid
may be of another copy of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.errors import FkJoinError
from fkjoin.sinks.restored import SetBack

_QUERY, _BATCH, _BEGAN, _SET_BACK = "fkjoin.query", "fkjoin.batch", "fkjoin.beganMs", "fkjoin.setBack"
_RESTORE = "RESTORE"
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END")
"""Operations that leave the rows as they are."""
_UNKNOWN = -1

Opened = Callable[[int | None], DeltaTable]
"""Function that opens the table at a version; at the newest with None."""


def commit(query: str, mark: Mark, set_back: int | None = None) -> CommitProperties:
    """Make the properties of a batch's commit, or of that of a way back to it, which has an identity."""
    said = {_QUERY: query, _BATCH: str(mark.number), _BEGAN: str(_UNKNOWN if mark.began_ms is None else mark.began_ms)}
    transactions = [
        Transaction(query, mark.number),
        Transaction(_began(query), int(said[_BEGAN])),
        Transaction(_timed(query), mark.number),
    ]
    if set_back is not None:
        said[_SET_BACK] = str(set_back)
        transactions.append(Transaction(_turned(query), set_back))
    return CommitProperties(custom_metadata=said, app_transactions=transactions)


def last(table: DeltaTable, query: str) -> Mark | None:
    """The query's last batch that is in the table."""
    number = table.transaction_version(query)
    if number is None or number < 0:
        return None
    is_timed = table.transaction_version(_timed(query)) == number
    return _mark(number, table.transaction_version(_began(query)) if is_timed else None)


def last_set_back(table: DeltaTable, query: str) -> int | None:
    """The identity of the last way back."""
    return table.transaction_version(_turned(query))


def require_way_back(opened: Opened, query: str, log: BatchLog, turn: SetBack) -> None:
    """``FkJoinError`` where the version of the checkpoint's last batch is not to be had."""
    _find(opened, query, log, turn)


def go_back(opened: Opened, query: str, log: BatchLog, turn: SetBack) -> None:
    """Restore the version of the checkpoint's last batch, unless it is the newest; ``FkJoinError`` as above.

    It looks first: between an earlier look and this one others may have written.
    """
    table, version, mark = _find(opened, query, log, turn)
    if version == table.version():
        return
    try:
        table.restore(version, commit_properties=commit(query, mark, turn.identity))
    except DeltaError as error:
        if "missing file" not in str(error):
            raise
        raise FkJoinError(
            f"version {version}, that of batch {mark.number} of the checkpoint, lacks files, which were vacuumed"
        ) from error


def _find(opened: Opened, query: str, log: BatchLog, turn: SetBack) -> tuple[DeltaTable, int, Mark]:
    """Find the version with the checkpoint's last batch, after which only fkjoin wrote: the table, the version, the batch."""
    table = opened(None)
    history = table.history()  # the newest first
    last = last_set_back(table, query)
    if last not in (None, turn.known) and str(last) not in {entry.get(_SET_BACK) for entry in history}:
        raise FkJoinError("it was set back for another copy of the checkpoint, and its history no longer says when")
    version, mark = _target(opened, history, query, log, turn.known)
    for entry in history:
        if entry["version"] > version and entry.get(_QUERY) != query and entry["operation"] not in _UPKEEP:
            raise FkJoinError(
                f"its version {entry['version']} ({entry['operation']}) comes from another writer, and would be undone with "
                f"all after version {version}"
            )
    return table, version, mark


def _target(opened: Opened, history: list[dict[str, Any]], query: str, log: BatchLog, set_back: int | None) -> tuple[int, Mark]:
    """The version with the last of the checkpoint's batches, and that batch; ``set_back``: the last one that it knows of."""
    ours = [(_mark(entry[_BATCH], entry[_BEGAN]), entry["version"]) for entry in history if entry.get(_QUERY) == query]
    live = _live(history, _end(history, query, set_back))
    if known := [(mark.number, version, mark) for mark, version in ours if _has(log, mark, version in live)]:
        _, version, mark = max(known, key=lambda one: one[:2])
        return version, mark
    if ours and history[-1]["version"] == 0 < (first := ours[-1][1]):
        number = opened(first - 1).transaction_version(query)  # of a release whose commits say no more
        if number is None or number < 0:  # the checkpoint is from before the first batch that had rows
            return first - 1, Mark(-1, None)
    raise FkJoinError("no version of its history is that of a batch that the checkpoint has")


def _end(history: list[dict[str, Any]], query: str, set_back: int | None) -> int:
    """The newest version from before the ways back that the checkpoint does not know of."""
    end = int(history[0]["version"])
    for entry in history:
        if entry.get(_QUERY) == query and _SET_BACK in entry:
            if entry[_SET_BACK] == str(set_back):
                break
            end = entry["version"] - 1
    return end


def _live(history: list[dict[str, Any]], version: int) -> set[int]:
    """The versions from which this one came, and itself, without those that a way back undid."""
    entries, found = {entry["version"]: entry for entry in history}, set()
    while version in entries:
        found.add(version)
        entry = entries[version]
        is_way_back = _QUERY in entry and entry["operation"] == _RESTORE
        version = int(entry["operationParameters"]["version"]) if is_way_back else version - 1
    return found


def _has(log: BatchLog, mark: Mark, is_live: bool) -> bool:
    """Tell whether it is the checkpoint's batch: by its time, or without one as long as no way back has undone it."""
    if mark.number < 0:
        return True
    return log.has(mark) and (is_live or (mark.began_ms is not None and log.mark(mark.number) == mark))


def _mark(number: int | str, began_ms: int | str | None) -> Mark:
    return Mark(int(number), None if began_ms is None or int(began_ms) == _UNKNOWN else int(began_ms))


def _began(query: str) -> str:
    return f"{query} began"


def _turned(query: str) -> str:
    return f"{query} set back"


def _timed(query: str) -> str:
    return f"{query} began, of batch"
