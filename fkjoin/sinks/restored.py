"""Checkpoints that were set back to a backup, and the sinks that are set back with them.

The query counts on from the backup's batch, and its next batches are other cuts of the input under numbers that the sink
has: the sink would leave them out.  So the batches of both are compared when the query starts, before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from pyspark.sql import SparkSession

from fkjoin.checkpoint.batch_log import BatchLog, Mark
from fkjoin.checkpoint.files import begun, hadoop, query_id
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.lowering.lowered import Lowered

OnRestore = Literal["fail", "set-back"]
_CHOICES = ("fail", "set-back")


@runtime_checkable
class Remembers(Protocol):
    """A sink that remembers the last batch of each query, and leaves out those that it has."""

    def last(self, spark: SparkSession, query: str) -> Mark | None:
        """The last batch that it has of the query; None without any."""
        ...

    def way_back(self, table: Lowered, query: str, log: BatchLog) -> Callable[[], None]:
        """Make the function that sets a sink back to the checkpoint's last batch; it may be interrupted, and called again.

        Called after ``begin``.  ``FkJoinError``, and nothing has changed, when that cannot be: it says why.
        """
        ...


def ahead(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any], on_restore: OnRestore) -> list[tuple[str, Any]]:
    """The sinks, by the names under which they remember batches, that have others than the checkpoint knows.

    ``sinks``: by what is added to the query's id.  ``FkJoinError`` if there are any, and they are not to be set back.
    """
    if on_restore not in _CHOICES:
        raise TopologyError(f"on_restore: {on_restore!r} is none of {', '.join(map(repr, _CHOICES))}")
    marks = _marks(spark, checkpoint, sinks)
    log = BatchLog(spark, checkpoint)  # afterwards: an earlier run of this process may still be at work
    found = []
    for name, (sink, last) in marks.items():
        if log.has(last):
            continue
        if on_restore == "fail":
            other = "" if last.number > log.last else ", which is another than the checkpoint's"
            raise FkJoinError(
                f"checkpoint: {checkpoint} was set back: it is at batch {log.last}, and {sink.place} has batch {last.number} "
                f"of its query{other}. What comes next would be left out there. To set the sink back to the checkpoint's "
                'batch: on_restore="set-back", or fkjoin run --set-back. Or start with a new checkpoint and an empty target'
            )
        found.append((name, sink))
    return found


def written_to(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> str | None:
    """The place of a sink that has a batch of the checkpoint's query; None if none remembers any."""
    return next((sink.place for sink, _ in _marks(spark, checkpoint, sinks).values()), None)


def _marks(spark: SparkSession, checkpoint: str, sinks: Mapping[str, Any]) -> dict[str, tuple[Any, Mark]]:
    """Sinks that have batches of the checkpoint's query, with the last one, by the names under which they remember it."""
    if not begun(spark, checkpoint):
        return {}
    query, found = query_id(spark, checkpoint), {}
    for suffix, sink in sinks.items():
        if isinstance(sink, Remembers) and (last := sink.last(spark, name := f"{query}{suffix}")) is not None:
            found[name] = sink, last
    return found


def set_back(table: Lowered, checkpoint: str, sinks: list[tuple[str, Any]]) -> None:
    """Set the sinks back to the checkpoint's last batch; ``FkJoinError``, and nothing has changed, if one cannot be."""
    log, ways = BatchLog(table.spark, checkpoint), []
    for query, sink in sinks:
        try:
            ways.append(sink.way_back(table, query, log))
        except FkJoinError as error:
            raise FkJoinError(
                f"on_restore: {sink.place} cannot be set back to batch {log.last} of checkpoint {checkpoint}: {error}. Start "
                "with a new checkpoint and an empty target"
            ) from error
    for go_back in ways:
        go_back()


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
            "_spark_metadata: it would leave out what comes next. Spark's sinks cannot be set back: start with a new "
            "checkpoint and an empty path"
        )
