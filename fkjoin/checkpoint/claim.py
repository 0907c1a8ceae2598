"""A claim on a checkpoint folder: a second start by mistake, of a job or a query, is refused.

A file names the owner, which renews it every few seconds.  No clocks of two machines are compared.
A claim of a process that cannot be asked lapses when it has not changed for a minute.  The minute
is of the clock of the process that waits.  An owner that stood still, and finds that its claim was
taken over, stops its queries.

This is a courtesy, not what keeps the state whole.  That is Spark's commit log, in which only one
of two queries can write a batch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.claim_files import Claim, ClaimFiles
from fkjoin.checkpoint.damage import TAKEN_OVER
from fkjoin.checkpoint.query import Query, shown
from fkjoin.errors import FkJoinError
from fkjoin.spark.cause import cause_of

RENEWED_EVERY_S = 10.0
LAPSES_AFTER_S = 60.0
_LOOKS_EVERY_S = 0.5
_PROCESS = uuid.uuid4().hex


@dataclass
class _HeldClaim:
    """A claim of this process; it ends with the last of those that it is held for."""

    files: ClaimFiles
    number: int
    stop: threading.Event = field(default_factory=threading.Event)
    held_for: int = 1
    queries: list[StreamingQuery] = field(default_factory=list)
    renewing: threading.Thread | None = None
    taken: str | None = None
    """Text about the process that took it over, if one did."""
    looked: float = field(default_factory=lambda: time.monotonic())
    """Time when it was known to be this process's."""

    def look(self) -> None:
        """Renew it, unless it is another's.

        A claim with a lower number came with a backup that was put in place of the folder.
        """
        now, newest = time.monotonic(), self.files.newest()
        if newest is None or (newest.number == self.number and newest.is_free):
            self.files.write(self.number, _owner())
        elif (newest.number, newest.content) == (self.number, _owner()):
            self.files.renew(self.number, _owner())
        else:
            self.taken = f"{_who(newest)} {TAKEN_OVER} {self.files.checkpoint}"
            return
        self.looked = now

    def renew(self) -> None:
        """Renew it, or stop the queries if it is another's."""
        self.look()
        if self.taken is not None:
            self.stop.set()
            text = "%s: its queries in this process are stopped"
            logging.getLogger("fkjoin").error(text, self.taken)
            calls = [(query, self.taken, self.files.checkpoint) for query in self.queries]
            ends = [threading.Thread(target=_end, args=call, daemon=True) for call in calls]
            for end in ends:  # all at once, since one that hangs would let the next run on
                end.start()
            for end in ends:
                end.join()

    def renew_until_stopped(self) -> None:
        while not self.stop.wait(RENEWED_EVERY_S):
            # The job continues without a storage that answers, as long as Spark does.
            with contextlib.suppress(Exception):
                self.renew()


_held: dict[str, _HeldClaim] = {}
_lock = threading.Lock()
_claiming: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""Locks by place: a start at one place does not wait for what another waits for."""
_SAME_NAME = re.compile(
    r"Cannot start query with name (.+?) as a query with that name is already active"
)
_lapsed: set[bytes] = set()
"""Owners that another claim was taken over from: for theirs the wait is two renewals long."""


@contextlib.contextmanager
def claimed(spark: SparkSession, checkpoint: str) -> Iterator[_HeldClaim]:
    """Hold the claim; ``FkJoinError`` when another process that is alive holds it.

    Of a process that cannot be asked it takes a minute to know.  This process may hold it several
    times over.  Of two queries on one checkpoint in a session, Spark refuses the second if it has
    the first one's name, and else stops the first.
    """
    files = ClaimFiles(spark, checkpoint)  # it asks the JVM, so before the lock
    with _lock:
        claiming = _claiming[files.place]
    with claiming:
        held = _of_this_process(files)
    at_once = False  # the JVM may be amid an answer then, and the process is gone when it is asked
    try:
        yield held
    except (KeyboardInterrupt, SystemExit):
        at_once = True
        raise
    finally:
        with _lock:
            held.held_for -= 1
            is_last = not held.held_for
            if is_last and _held.get(files.place) is held:
                del _held[files.place]
        if is_last:
            held.stop.set()
            if not at_once and held.renewing is not None:
                held.renewing.join(5)
            if not at_once or files.folder.local is not None:
                _give_up(held)


def start_claimed(
    spark: SparkSession, checkpoint: str, start: Callable[[], StreamingQuery]
) -> Query:
    """Start a query, and hold the claim from before it starts until it ends, in whatever way."""
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(claimed(spark, checkpoint))
        try:
            query = start()
        except (PySparkException, Py4JJavaError, OSError) as error:
            if (same := _SAME_NAME.search(str(error))) is None:
                raise FkJoinError(
                    f"checkpoint: {checkpoint}: the query cannot start: {cause_of(error)}. "
                    "Fix this and start it again"
                ) from error
            if held.queries:
                raise FkJoinError(
                    f"checkpoint: {checkpoint} is in use by query {same[1]} of this session: stop "
                    "that one first, or give another checkpoint= and query_name="
                ) from error
            raise FkJoinError(
                f"query_name: a query called {same[1]} runs in this session already: stop that "
                "one first, or give another query_name="
            ) from error
        claim = stack.pop_all()

    def hold() -> None:
        # Errors of the query, which others are told, or of a JVM that is gone.
        with claim, contextlib.suppress(Exception):
            query.awaitTermination()

    threading.Thread(target=hold, name="fkjoin-claim-of-query", daemon=True).start()
    started = shown(query)
    held.queries.append(started)
    if held.taken is not None:
        _end(started, held.taken, held.files.checkpoint)
    return started


def require_unclaimed(spark: SparkSession, checkpoint: str) -> None:
    """Raise ``FkJoinError`` if another process holds the claim, as a start would find it.

    Nothing is made or changed.
    """
    files = ClaimFiles(spark, checkpoint)
    while not _may_be_taken(files.newest(), files):
        pass


def require_held(spark: SparkSession, checkpoint: str) -> None:
    """Raise ``FkJoinError`` if another process has taken over this one's claim.

    To be called before a batch is done: what Spark notes then would be taken for the other's.  Only
    a process that stood still for long enough to lose the claim looks at its file.
    """
    if not _held:  # as in the worker of a Spark Connect server
        return
    held = _held.get(ClaimFiles(spark, checkpoint).place)
    if held is not None and time.monotonic() - held.looked > LAPSES_AFTER_S / 2:
        held.look()
    if held is not None and held.taken is not None:
        raise FkJoinError(held.taken)


def _end(query: StreamingQuery, why: str, checkpoint: str) -> None:
    """Stop a query, which says why."""
    query._why_stopped, query._checkpoint = why, checkpoint  # type: ignore[attr-defined]
    # Errors of a JVM that is gone, or of a query that takes too long to end.
    with contextlib.suppress(Exception):
        query.stop()


def _of_this_process(files: ClaimFiles) -> _HeldClaim:
    """The claim that this process holds, made or taken over if it does not yet."""
    with _lock:
        if (held := _held.get(files.place)) is not None and held.taken is None:
            held.held_for += 1
            return held
    while True:
        number, newest = files.next(), files.newest()
        if _may_be_taken(newest, files) and files.make(number, _owner()):
            break
    held = _HeldClaim(files, number)
    held.renewing = threading.Thread(
        target=held.renew_until_stopped, name="fkjoin-claim", daemon=True
    )
    held.renewing.start()
    with _lock:
        _held[files.place] = held
    return held


def _may_be_taken(claim: Claim | None, files: ClaimFiles) -> bool:
    if claim is None or claim.is_free:
        return True
    return _is_void(claim, files) or _has_lapsed(claim, files)


def _is_void(claim: Claim, files: ClaimFiles) -> bool:
    """Tell whether the owner is known to be gone; ``FkJoinError`` if it is known to be alive."""
    owner = claim.owner
    if owner.get("machine", owner.get("host")) != (
        _machine() if "machine" in owner else socket.gethostname()
    ):
        return False
    if owner["process"] == os.getpid() or not _alive(owner["process"]):
        return True
    # Both times are this machine's.
    if files.folder.local is not None and abs(time.time() - claim.changed) <= LAPSES_AFTER_S:
        raise _in_use(claim, files)
    return False


def _has_lapsed(claim: Claim, files: ClaimFiles) -> bool:
    """Wait until a claim is as old as claims last; False if it is another or free before that.

    An owner that lost a claim may live all the same, so its others are looked at too, for a shorter
    time.  ``FkJoinError`` once the claim is renewed.
    """
    lasts = 2 * RENEWED_EVERY_S if claim.content in _lapsed else LAPSES_AFTER_S
    text = (
        "checkpoint %s: it was in use by %s; waiting for up to %.0f s to see whether that is alive"
    )
    logging.getLogger("fkjoin").warning(text, files.checkpoint, _who(claim), lasts)
    until = time.monotonic() + lasts
    while time.monotonic() < until:
        time.sleep(_LOOKS_EVERY_S)
        newest = files.newest()
        if newest is None or newest.is_free or newest.number != claim.number:
            return False
        if newest != claim:
            raise _in_use(newest, files)
    if claim.owner:
        _lapsed.add(claim.content)
    return True


def _in_use(claim: Claim, files: ClaimFiles) -> FkJoinError:
    process, host = claim.owner.get("process", "?"), claim.owner.get("host", "another machine")
    return FkJoinError(
        f"checkpoint: {files.checkpoint} is in use by process {process} on {host}: stop that job "
        f"first. It renewed its claim in the last {LAPSES_AFTER_S:.0f} s; once it is gone, a start "
        "takes the claim over"
    )


def _give_up(held: _HeldClaim) -> None:
    """Leave the claim without an owner, unless another process has taken it over meanwhile."""
    with contextlib.suppress(Exception):
        newest = held.files.newest()
        if newest is not None and (newest.number, newest.content) == (held.number, _owner()):
            held.files.give_up(held.number)


@cache
def _owner() -> bytes:
    """This process, by one text for as long as it runs: a host may get another name meanwhile."""
    facts = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "machine": _machine(),
        "start": _PROCESS,
    }
    return json.dumps(facts).encode()


@cache
def _machine() -> str:
    """The running kernel and the space of its processes.

    Only there does the number of a process say which one it is.
    """
    with contextlib.suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _who(claim: Claim) -> str:
    owner = claim.owner
    return f"process {owner['process']} on {owner['host']}" if owner else "another process"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True
