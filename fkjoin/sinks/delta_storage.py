"""Work on a Delta table in a storage: repeated while that is away or other writers come first, and what its errors say.

Errors of the package deltalake have the text of an object store's in them, and nothing else that tells an outage from a
refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError

from fkjoin.errors import FkJoinError
from fkjoin.sinks.retry import repeated

_OF_A_STORAGE = re.compile(r"Generic \w+ error|HTTP error|non-2xx status|lacked")
_REFUSED = re.compile(
    r"\b4(?!08|09|12|25|29)\d\d [A-Z]\w+|lacked (the necessary privileges|valid authentication)"
    r"|Permission denied|Read-only file"
)
"""Status of a storage or a disk that no repetition mends: access refused, or nothing there.  408, 409, 412, 425, 429 pass."""
_APPEND_ONLY = "is append-only"
"""Texts of a failed commit that changes or deletes rows, and that no repetition mends."""
_COLOR = re.compile(r"\x1b\[\d*m")
_QUERY = re.compile(r"\?\S+")
"""Query of an address: with some storages a signature is in it."""
_SHOWN = 500

_T = TypeVar("_T")


def at_storage(place: str, work: Callable[[], _T], seconds: float) -> _T:
    """Return what the work returns, through outages and conflicts; ``FkJoinError`` of what the storage says otherwise."""
    try:
        return repeated(place, work, mends, seconds, _told)
    except (OSError, DeltaError) as error:
        if not (_of_a_storage(error) or _APPEND_ONLY in str(error)):
            raise
        why, is_append_only = _told(error), _APPEND_ONLY in str(error)
    if is_append_only:
        raise FkJoinError(
            f"{place}: {why}. Rows change and go: set its property delta.appendOnly to false, and start the query again: it "
            "goes on with this batch"
        )
    raise FkJoinError(f"{place} cannot be reached: {why}. Mend that and start the query again: it goes on with this batch")


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if isinstance(error, CommitFailedError):
        return _APPEND_ONLY not in str(error)
    return _of_a_storage(error) and not _REFUSED.search(str(error))


def _of_a_storage(error: BaseException) -> bool:
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError) or (isinstance(error, DeltaError) and _OF_A_STORAGE.search(str(error)) is not None)


def _told(error: BaseException) -> str:
    """Return the error's text in a line."""
    text = " ".join(_QUERY.sub("", _COLOR.sub("", str(error))).replace("↳", ":").split()).replace(" : ", ": ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
