"""Work on a Delta table in a storage, and what its errors say.

It is repeated while the storage is away, or other writers come first.
Errors of the package deltalake have the text of an object store's in them, and nothing else that
tells an outage from a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError

from fkjoin.errors import FkJoinError
from fkjoin.sinks.retry import in_a_line, through_outages

_OF_A_STORAGE = re.compile(r"Generic (?!DeltaTable)\w+ error|HTTP error|non-2xx status|lacked")
_REFUSED = re.compile(
    r"\b4(?!08|09|12|25|29)\d\d [A-Z]\w+|lacked (the necessary privileges|valid authentication)"
    r"|Permission denied|Read-only file"
)
"""Status of a storage or a disk that no repetition repairs: access refused, or nothing there.

408, 409, 412, 425, 429 pass.
"""
_APPEND_ONLY = "is append-only"
"""Texts of a failed commit that changes or deletes rows, and that no repetition repairs."""
_BROKEN = "Invalid data found: "
"""Text before what is said of rows that break a constraint of the table."""

_T = TypeVar("_T")


def at_storage(
    target: str, options: Mapping[str, str], work: Callable[[], _T], seconds: float
) -> _T:
    """Return what the work returns, through outages and conflicts.

    ``FkJoinError`` of what the storage says otherwise.
    """

    def attempt() -> _T:
        try:
            return work()
        except DeltaError as error:
            refusal = _refusal(target, in_a_line(error, options))
            if refusal is None:
                raise
        raise refusal

    text_of = partial(in_a_line, options=options)
    return through_outages(
        target, attempt, mends, seconds, text_of=text_of, is_of_target=_of_a_storage
    )


def _refusal(target: str, why: str) -> FkJoinError | None:
    """The error of rows that the table does not take; None if it says something else."""
    if _BROKEN in why:
        return FkJoinError(
            f"{target} has a constraint that a row breaks: {why.partition(_BROKEN)[2]}. Leave such "
            "rows out with a filter, or drop the constraint; the batch will be written again"
        )
    if _APPEND_ONLY in why:
        return FkJoinError(
            f"{target}: {why}. fkjoin updates and deletes rows: set the table's property "
            "delta.appendOnly to false, and start the query again: it continues with this batch"
        )
    return None


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if isinstance(error, CommitFailedError):
        return True
    return _of_a_storage(error) and not _REFUSED.search(str(error))


def _of_a_storage(error: BaseException) -> bool:
    if isinstance(error, DeltaError):
        return _OF_A_STORAGE.search(str(error)) is not None
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
