"""Checkpoints that were set back to a backup, and the sinks that are set back with them.

The query counts on from the backup's batch, and its next batches are other cuts of the input under numbers that the sink
has: the sink would leave them out.  So the batches of both are compared when the query starts, before anything changes.

Each set-back of a sink has an identity, which the sink keeps and the checkpoint that it is set back for.  Another copy of the
checkpoint, which may have written rows that the sink lacks since, does not have it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.checkpoint.files import begun, hadoop, query_id, read_file, write_file
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.lowering.lowered import Lowered

OnRestore = Literal["fail", "set-back"]
_CHOICES = ("fail", "set-back")

SET_BACKS = "fkjoin-set-backs.json"
"""Lies in a checkpoint that sinks were set back for: the identity of each sink's last set-back."""


@dataclass(frozen=True)
class SetBack:
    """A set-back of a sink that is about to happen."""

    identity: int
    known: int | None
    """Identity of the sink's last set-back that the checkpoint knows of."""


@runtime_checkable
class Remembers(Protocol):
    """A sink that remembers the last batch of each query, and leaves out those that it has."""

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        """The last batch that it has of the query; None without any."""
        ...

    def is_there(self, spark: SparkSession) -> bool:
        """Tell whether there is what ``begin`` makes, by whichever query."""
        ...

    def last_set_back(self, spark: SparkSession, query: str) -> int | None:
        """The identity of the last set-back of the query's batches; None without any, or where an older release did it."""
        ...

    def way_back(self, table: Lowered, query: str, log: BatchLog, turn: SetBack) -> Callable[[], None]:
        """Make the function that sets a sink back to the checkpoint's last batch; it may be interrupted, and called again.

        The sink keeps the set-back's identity from before the first row goes.  Called after ``begin``.  ``FkJoinError``, and
        nothing has changed, when that cannot be: it says why.
        """
        ...


def ahead(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any], on_restore: OnRestore) -> list[tuple[str, Any]]:
    """The sinks, by the names under which they remember batches, that have others than the checkpoint knows.

    Also those that were set back for another copy of the checkpoint.  ``sinks``: by what is added to the query's id.
    ``FkJoinError`` if there are any, and they are not to be set back; or if a sink of a query that has batches is gone.
    """
    if on_restore not in _CHOICES:
        raise TopologyError(f"on_restore: {on_restore!r} is none of {', '.join(map(repr, _CHOICES))}")
    remembering, known = _remembering(spark, checkpoint, sinks), _noted(spark, checkpoint)
    marks = {name: (sink, sink.last(spark, name), sink.last_set_back(spark, name)) for name, sink in remembering.items()}
    log = BatchLog(spark, checkpoint)  # afterwards: an earlier run of this process may still be at work
    found = []
    for name, (sink, last, set_back) in marks.items():
        if log.done >= 0 and not sink.is_there(spark):
            raise FkJoinError(
                f"checkpoint: {checkpoint} is at batch {log.done}, and {sink.place} is not there: made anew it would lack the "
                "rows from before. Restore it, or start with a new checkpoint and an empty target"
            )
        ahead_at = None if last is None or log.has(last) else last
        if ahead_at is None and set_back in (None, known.get(name)):
            continue
        if on_restore == "fail":
            place = sink.place
            raise _replaced(checkpoint, log, place) if ahead_at is None else _behind(checkpoint, log, place, ahead_at)
        found.append((name, sink))
    return found


def _behind(checkpoint: str, log: BatchLog, place: str, last: Mark) -> FkJoinError:
    other = "" if last.number > log.last else ", which is another than the checkpoint's"
    return FkJoinError(
        f"checkpoint: {checkpoint} was set back: it is at batch {log.last}, and {place} has batch {last.number} "
        f"of its query{other}. The sink would leave out the next batches. To set the sink back to the checkpoint's "
        'batch: on_restore="set-back", or fkjoin run --set-back. Or start with a new checkpoint and an empty target'
    )


def _replaced(checkpoint: str, log: BatchLog, place: str) -> FkJoinError:
    return FkJoinError(
        f"checkpoint: {checkpoint} is at batch {log.last}, and {place} was set back since for another copy of it, or by a "
        "start that was ended. It may lack rows that this checkpoint has written. To make it what the checkpoint has: "
        'on_restore="set-back", or fkjoin run --set-back. Or start with a new checkpoint and an empty target'
    )


def written_to(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> str | None:
    """The place of a sink that has a batch of the checkpoint's query; None if none remembers any."""
    remembering = _remembering(spark, checkpoint, sinks)
    return next((sink.place for name, sink in remembering.items() if sink.last(spark, name) is not None), None)


def last_set_backs(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> dict[str, int | None]:
    """The identities of the sinks' last set-backs, by the names under which they remember batches."""
    return {name: sink.last_set_back(spark, name) for name, sink in _remembering(spark, checkpoint, sinks).items()}


def missing(place: str) -> FkJoinError:
    """The error of a sink that is no longer there."""
    return FkJoinError(f"{place} is gone: restore it, or start with a new checkpoint and an empty target")


def require_not_set_back(place: str, began_with: int | None, last: int | None) -> None:
    """``FkJoinError`` if a sink was set back since a query began: what that writes is of another copy of the checkpoint."""
    if began_with != last:
        raise FkJoinError(f"{place} was set back since this query began, and another query goes on with it")


def _remembering(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> dict[str, Any]:
    """The sinks that remember batches of the checkpoint's query, by the names under which they do."""
    if not begun(spark, checkpoint):
        return {}
    query = query_id(spark, checkpoint)
    return {f"{query}{suffix}": sink for suffix, sink in sinks.items() if isinstance(sink, Remembers)}


def _noted(spark: SparkSession, checkpoint: str) -> dict[str, int | None]:
    """The set-backs that the checkpoint knows of."""
    path, files = hadoop(spark, f"{checkpoint}/{SET_BACKS}")
    return dict(json.loads(read_file(path, files))) if files.exists(path) else {}


def set_back(table: Lowered, checkpoint: str, sinks: list[tuple[str, Any]]) -> None:
    """Set the sinks back to the checkpoint's last batch; ``FkJoinError``, and nothing has changed, if one cannot be."""
    spark, ways = table.spark, []
    log, known = BatchLog(spark, checkpoint), _noted(spark, checkpoint)
    for query, sink in sinks:
        try:
            ways.append(sink.way_back(table, query, log, SetBack(secrets.randbits(62), known.get(query))))
        except FkJoinError as error:
            raise FkJoinError(
                f"on_restore: {sink.place} cannot be set back to batch {log.last} of checkpoint {checkpoint}: {error}. Start "
                "with a new checkpoint and an empty target"
            ) from error
    for (query, sink), go_back in zip(sinks, ways, strict=True):
        go_back()
        known[query] = sink.last_set_back(spark, query)
        write_file(*hadoop(spark, f"{checkpoint}/{SET_BACKS}"), json.dumps(known).encode())


def require_spark_at(spark: SparkSession, checkpoint: str, path: str) -> None:
    """``FkJoinError`` if Spark's own sink of files has batches at ``path`` that the checkpoint does not know.

    It goes by its log there alone, whichever query wrote it, and leaves out a batch of a number that it has.
    """
    place, files = hadoop(spark, f"{path}/_spark_metadata")
    names = [status.getPath().getName().split(".")[0] for status in files.listStatus(place)] if files.exists(place) else []
    last, known = max((int(name) for name in names if name.isdigit()), default=-1), BatchLog(spark, checkpoint).last
    if last > known:
        at = f"batch {known}" if known >= 0 else "its beginning"
        raise FkJoinError(
            f"checkpoint: {checkpoint} is at {at}, and {path} has batch {last} already, as Spark's own sink notes in "
            "_spark_metadata: it would leave out the next batches. Spark's sinks cannot be set back: start with a new "
            "checkpoint and an empty path"
        )
