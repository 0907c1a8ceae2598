"""Purging of the topics between a job's stages, on an interval, as long as the job runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from fkjoin.checkpoint.progress import span
from fkjoin.errors import TopologyError, first_line
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.purging import internal_records, purge_read
from fkjoin.sessions.launch import end_of_jvm
from fkjoin.spark.trigger import interval_ms

NEVER = "never"
"""The interval of a job whose topics others read, too."""

_END_S = 2.0
"""The time that a purge at work has to end when the job ends."""


def interval_s(text: str) -> float | None:
    """Seconds between two purges; None: there are none.  Raises ``TopologyError``."""
    if text == NEVER:
        return None
    interval = interval_ms({"processingTime": text})
    if not interval:
        raise TopologyError(
            f'purge: {text!r} is neither "{NEVER}" nor an interval such as "10 minutes"'
        )
    return interval / 1000


@contextlib.contextmanager
def purging(
    stages: Sequence[StageQuery],
    checkpoints: Sequence[str],
    every_s: float | None,
    *,
    say: Callable[[str], None],
    take: Callable[[Mapping[str, int]], None],
) -> Iterator[None]:
    """Purge at once and after each interval, in a thread of its own; see ``purge_read``.

    ``checkpoints``: of all queries of the job.  ``say`` is called with the reason why a purge
    fails, once until one succeeds again.  ``take`` is called with the numbers of records that the
    topics have, before each purge.
    """
    if not stages or every_s is None:
        yield
        return
    ended = threading.Event()

    def work() -> None:
        fails = False
        while not ended.is_set():
            try:
                take(internal_records(stages))
                purge_read(stages, checkpoints)
                fails = False
            except Exception as error:  # of whatever kind: upkeep stops no job
                if not fails and not ended.is_set() and end_of_jvm(error) is None:
                    say(
                        f"internal topics are not purged: {first_line(error)}; "
                        f"tried again every {span(every_s)}"
                    )
                fails = True
            ended.wait(every_s)

    thread = threading.Thread(target=work, name="fkjoin-purge", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_END_S)
