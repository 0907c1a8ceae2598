"""Work that is repeated while a repetition may repair what went wrong.

That is an outage, a conflict or a deadlock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from fkjoin.errors import FkJoinError, first_line
from fkjoin.spark.query_start import UnreachableError, is_amid, look

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_LOOK_S = 0.2
"""The time between two looks of a start that waits."""

_T = TypeVar("_T")


def repeated(
    target: str,
    work: Callable[[], _T],
    mends: Callable[[BaseException], bool],
    seconds: float,
    *,
    text_of: Callable[[BaseException], str] = first_line,
    heard: Callable[[str], None] = lambda _: None,
) -> _T:
    """Return what ``work`` returns.

    It is called ever more rarely, for ``seconds``, while it throws what ``mends`` knows.  The first
    repetition is a warning in the log ``fkjoin``.  ``heard`` is called with the reason of each.
    ``FkJoinError`` when the time is over; other errors come as they are.
    """
    started = time.monotonic()

    def say(state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        assert error is not None
        assert state.next_action is not None
        heard(text_of(error))
        if state.attempt_number == 1:
            logging.getLogger("fkjoin").warning(
                "%s: %s; tried again in %.1f s, then ever more rarely, for up to %g s",
                target,
                text_of(error),
                state.next_action.sleep,
                seconds,
            )

    attempts = Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_exponential(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        + wait_random(0, _FIRST_WAIT_S),  # apart from others that wait
        retry=retry_if_exception(mends),
        before_sleep=say,
        sleep=_wait,
        reraise=True,
    )
    try:
        return attempts(work)
    except Exception as error:
        if not mends(error):
            raise
        why = f"{target}: {text_of(error)}"
        tries = attempts.statistics["attempt_number"]
        tried = "tried once"
        if tries > 1:
            tried = f"tried {tries} times in {time.monotonic() - started:.0f} s"
    # Outside the except block: an error of a library may have secrets in it, so it is not chained.
    if is_amid():
        longer = "; or let it try for longer, with a greater retry_s" if seconds else ""
        raise UnreachableError(
            f"{why} ({tried}). Check its host and port, and start again when it answers{longer}"
        )
    raise FkJoinError(
        f"{why} ({tried}, retry_s = {seconds:g}). Start the query again when the outage is over: "
        "it continues with this batch; or let it try for longer, with a greater retry_s"
    )


def _wait(seconds: float) -> None:
    """Sleep; a start looks around meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        look()
        time.sleep(min(left, _LOOK_S))
