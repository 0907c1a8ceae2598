"""Errors that fkjoin raises; each message says what happened, where, and what to do next."""

from __future__ import annotations

import contextlib
import difflib
import re
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (.+)(?:\n    (.*))?')
_NOT_THE_USERS = re.compile(
    r"(^|/)(site-packages|dist-packages|python/pyspark|pyspark\.zip|py4j[^/]*\.zip"
    r"|lib/python3[^/]*)/|^<frozen "
    rf"|^({re.escape(str(_HERE))}|{re.escape(str((_HERE / 'state').resolve()))})/"
)
"""Files of libraries, wherever a worker has them, and of fkjoin, also in a checkout."""


def nearest(name: str, known: Collection[str], shown: int | None = None) -> str:
    """Say, after a name that is not there, the nearest one, else the first ``shown`` that are."""
    close = difflib.get_close_matches(name, known, 1)
    return (
        f"did you mean {close[0]!r}?"
        if close
        else f"there are {', '.join(list(known)[:shown]) or 'none'}."
    )


def first_line(error: BaseException) -> str:
    """The first line of an error, such as Spark's without the plan; else the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_CODES = re.compile(r"^(?:[\w.]+(?:Exception|Error): )?\[[A-Z0-9_.]+\] |\s*SQLSTATE: \w{5}\b;?")


def plain_line(error: BaseException) -> str:
    """Return the first line of what Spark says, without the names of its classes and its codes."""
    return _CODES.sub("", first_line(error)).strip(" ;")


_LOGIN = re.compile(r"(?<=://)[^\s/?#]*@|(?<![\w/:@])([^\s/@:'\"]*):(?!//)\S*@")
_QUERY = re.compile(r"\?\S+|[;#]\S*=\S*")


def masked(text: str) -> str:
    """A text without logins and queries of addresses: with some storages, a query has a signature.

    An address needs no scheme: what stands between a colon and an @ is taken for a password.
    """
    return _QUERY.sub("?…", _LOGIN.sub("…@", text))


def shortened(text: str, length: int) -> str:
    """Cut a text after so many characters; an ellipsis shows that more follows."""
    return text if len(text) <= length else f"{text[:length]}…"


def set_aside(items: str) -> str:
    """The end of a message about rows, lines or records that stop a query: the way out."""
    return f'; with on_error="dead-letter" such {items} are set aside'


MISPLACED = (
    "folders with the names of columns, such as region=eu, were added after the query was started"
)
"""The beginning of a message about files in them: Spark finds folders' columns at the start."""


def users_frames(text: str) -> Iterator[str]:
    """The lines of a traceback that are in the user's own code, the innermost last."""
    for file, line, name, code in _FRAME.findall(text):
        if not _NOT_THE_USERS.search(file):
            yield f"{Path(file).name}, line {line}, in {name}" + (
                f": {code.strip()}" if code else ""
            )


def thrown_at(error: BaseException) -> str:
    """Say what a user's function threw, and where: a worker's traceback does not come whole."""
    frames = list(users_frames("".join(traceback.format_tb(error.__traceback__))))
    return f"{type(error).__name__}: {error}" + (f" ({frames[-1]})" if frames else "")


class FkJoinError(Exception):
    """The base class of all errors that fkjoin raises.

    Examples
    --------
    >>> try:
    ...     query = joined.to_delta("lake/joined", checkpoint="ck/joined")
    ... except fkjoin.FkJoinError as error:
    ...     print(error)  # where, what is wrong, what to write instead
    """


class TopologyError(FkJoinError, ValueError):
    """A call describes a table or an operator wrongly. It is raised before anything runs.

    Examples
    --------
    >>> try:
    ...     large = orders.filter("amont > 5")
    ... except fkjoin.TopologyError as error:
    ...     print(error)
    condition: in 'amont > 5', table orders has no column 'amont';
    did you mean 'amount'? It has: order_id, customer_id, amount.
    """


class ColumnTypeError(TopologyError):
    """An argument cannot take a column's type.

    Where files told the type, ``telling_files`` adds them to the message.
    """


class SessionError(FkJoinError):
    """The Spark session lacks what fkjoin needs, and fkjoin cannot change that now.

    Examples
    --------
    >>> try:
    ...     spark = fkjoin.session(remote="sc://spark.example.com")
    ... except fkjoin.SessionError as error:
    ...     print(error)  # a setting, a package or a server, and what to do
    """


class FormatError(FkJoinError, ValueError):
    """A record, a file or a checkpoint does not parse, or a newer release of fkjoin wrote it."""


class InvariantError(FkJoinError):
    """The stores contradict themselves: a fault of fkjoin, or of the disk below its state.

    ``spark.fkjoin.validate`` looks for it after every batch. A query that meets it fails with a
    ``QueryError``.
    """


@contextlib.contextmanager
def needs_extra(feature: str, extra: str) -> Iterator[None]:
    """Say which extra to install where a block imports a package that is not there.

    Parameters
    ----------
    feature
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
        raise FkJoinError(f'{feature} needs {missing}: pip install "fkjoin[{extra}]"') from error
