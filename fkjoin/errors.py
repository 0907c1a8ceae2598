"""Errors that fkjoin raises; each message says what happened, where, and what to do next."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterator


def nearest(name: str, known: Collection[str], shown: int | None = None) -> str:
    """What a message says after a name that there is not: the nearest one, else the first ``shown`` that there are."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(list(known)[:shown]) or 'none'}."


def set_aside(what: str) -> str:
    """The end of a message about rows, lines or records that stop a query: the way out."""
    return f'; with on_error="dead-letter" such {what} are set aside'


AS_BEGUN = "; of files that a checkpoint has read before, give schema= with the type that it had"
"""The end of a message about a column whose type was learned: another expression would be another job."""


class FkJoinError(Exception):
    """The root of all of fkjoin's own errors."""


class TopologyError(FkJoinError, ValueError):
    """A table or join was described wrongly; raised while building, before anything runs."""


class SessionError(FkJoinError):
    """The Spark session lacks a setting that the engine needs and that cannot be changed any more."""


class FormatError(FkJoinError, ValueError):
    """Bytes do not parse, or carry a format version that this release does not know."""


class TraceError(FkJoinError, ValueError):
    """A line of a trace file is not what a trace may hold."""


class InvariantError(FkJoinError):
    """Something that must hold of the stores does not: a fault in fkjoin or in what keeps its state."""


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Say which extra to install where a block imports a package that is not there.

    Parameters
    ----------
    what
        The subject of the message, such as ``"to_postgres"``.
    extra
        The name of the extra in ``pyproject.toml``.

    Raises
    ------
    FkJoinError
        In place of the ``ImportError``.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("fkjoin"):  # no package of others
            raise
        missing = error.name or str(error).partition("\n")[0]
        raise FkJoinError(f'{what} needs {missing}: pip install "fkjoin[{extra}]"') from error
