"""Work of a sink that is repeated through outages, and counted; and errors that do not pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from fkjoin.errors import FkJoinError, first_line, masked, shortened
from fkjoin.sinks.counts import REPEATED, count
from fkjoin.spark import repetition
from fkjoin.spark.query_start import unreached

_COLOR = re.compile(r"\x1b\[\d*m")
_STACK = re.compile(r"\n\s*0: .*", re.DOTALL)
"""Addresses in a library's code, which follow some of its errors."""
_SECRET = re.compile(r"secret|token|password|credential|key|sas", re.IGNORECASE)
"""Names of options whose values no message contains."""
_LOGIN = re.compile(r"(?:^|://)(?!\w+://)(\S*)@")
_SHORT = 2
"""Letters of a part of a login that is left as it is: it may stand in any word."""
_SHOWN = 500
_MEND = "Fix that (damaged files of a target: restore it from its backup, then run fkjoin restore)"

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Method = Callable[Concatenate[Any, _P], _T]


def repeated(
    target: str,
    work: Callable[[], _T],
    mends: Callable[[BaseException], bool],
    seconds: float,
    text_of: Callable[[BaseException], str] = first_line,
) -> _T:
    """Return what ``work`` returns, see ``repetition.repeated``; each repetition is counted."""

    def heard(reason: str) -> None:
        count(target, REPEATED, reasons=[reason])

    return repetition.repeated(target, work, mends, seconds, text_of=text_of, heard=heard)


def through_outages(
    target: str,
    work: Callable[[], _T],
    mends: Callable[[BaseException], bool],
    seconds: float,
    *,
    text_of: Callable[[BaseException], str],
    is_of_target: Callable[[BaseException], bool],
) -> _T:
    """Return what ``work`` returns, see ``repeated``; ``FkJoinError`` of what else it says.

    Any other error of a library names the target, too.  No error is the cause of another: its text
    may have secrets.
    """
    try:
        return repeated(target, work, mends, seconds, text_of)
    except (FkJoinError, PySparkException, Py4JError):
        raise
    except Exception as error:
        is_away, kind, why = is_of_target(error), type(error).__name__, text_of(error)
    if is_away:
        raise unreached(f"{target} cannot be reached: {why}")
    raise unreached(f"{target}: {kind}: {why.rstrip('.')}", f"{_MEND},")


def in_outages(method: _Method[_P, _T]) -> _Method[_P, _T]:
    """Have a method's object repeat it, by ``_repeated``."""

    @functools.wraps(method)
    def repeated_method(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._repeated(functools.partial(method, self, *args, **kwargs))

    return repeated_method


def in_a_line(error: BaseException | str, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a library's error in a line, without secrets of addresses and options."""
    text = _STACK.sub("", _COLOR.sub("", str(error)))
    for secret in _secrets_of(options):
        text = text.replace(secret, "…")
    text = " ".join(masked(text).replace("↳", ":").split()).replace(" : ", ": ")
    return shortened(text or type(error).__name__, _SHOWN)


def _secrets_of(options: Mapping[str, str]) -> Iterator[str]:
    """Values of secret options, and parts of logins: a library may cut an address differently."""
    for name, value in options.items():
        if value and _SECRET.search(name):
            yield value
        login = _LOGIN.search(str(value))
        parts = () if login is None else re.split("[:@]", login[1])
        yield from (part for part in parts if len(part) > _SHORT)
