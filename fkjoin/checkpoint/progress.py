"""The state of a query, from Spark's status and progress of it: plain data in, words out.

Nothing of Spark nor of the stages is imported here: a command says what it does before it has them,
which takes seconds.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_READY = "Waiting for data to arrive"
_ASKING = "Getting offsets from"
_NEXT = "Waiting for next trigger"
_STARTING = "Initializing"
_TOPIC = re.compile(r"KafkaV2\[Subscribe\[(.+)]]")
_FOLDER = re.compile(r"FileStreamSource\[(?:file:)?(.+)]")
"""Sources as Spark's status has them."""
OLD_S = 30.0
"""The age from which on the time of a figure is said."""
_OFFSETS = ("startOffset", "endOffset", "latestOffset")


class QueryPhase(enum.Enum):
    """The states of a query."""

    PLANNED = "not started yet"
    STARTS = "starts"
    BATCH = "works on a batch"
    WAITS = "waits for data"
    DUE = "waits for its next turn"
    ASKS = "asks its sources for new data"
    DONE = "done, all is read"
    STOPPED = "stopped"
    FAILED = "failed"


def doing_of(status: Mapping[str, Any]) -> QueryPhase:
    """Read what a running query does from Spark's ``StreamingQuery.status``."""
    message = str(status["message"])
    if message.startswith(_STARTING):
        return QueryPhase.STARTS
    if message.startswith(_ASKING):
        return QueryPhase.ASKS
    if message.startswith(_READY):
        return QueryPhase.WAITS
    if message.startswith(_NEXT):
        return QueryPhase.DUE if status["isDataAvailable"] else QueryPhase.WAITS
    return QueryPhase.BATCH if status["isTriggerActive"] else QueryPhase.WAITS


def start_of(status: Mapping[str, Any]) -> str:
    """Say what a query waits for that has no batch yet, by Spark's ``StreamingQuery.status``."""
    message = str(status["message"])
    if not message.startswith(_ASKING):
        return "Spark plans it and opens its sources"
    source = message.removeprefix(_ASKING).strip()
    if (topic := _TOPIC.fullmatch(source)) is not None:
        return f"asks the brokers for the end of topic {topic[1]}"
    if (folder := _FOLDER.fullmatch(source)) is not None:
        return f"lists the files in {folder[1]}"
    return f"asks {source} for new data"


def is_batch(phases: Mapping[str, Any]) -> bool:
    """Tell whether an event with these phases, Spark's ``durationMs``, is of a batch.

    A query that waits says so every ten seconds, under the number of its next batch.
    """
    return "addBatch" in phases


def event_of(text: str) -> dict[str, Any]:
    """Read an event as Spark's JSON says it, which Spark Connect writes in another shape."""
    event: dict[str, Any] = json.loads(text)
    if "numInputRows" in event:
        return event
    sources = [_with_offsets(source) for source in event["sources"]]
    metrics = event.get("observedMetrics") or {}
    observed = {name: _observed(row) for name, row in metrics.items()}
    rows = sum(source["numInputRows"] for source in sources)
    return {**event, "numInputRows": rows, "sources": sources, "observedMetrics": observed}


def _with_offsets(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source's part of an event, with its offsets read."""
    return {**source, **{name: _offset(source.get(name)) for name in _OFFSETS}}


def _observed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an observed row by their names."""
    names = [field["name"] for field in row["schema"]["fields"]]
    return dict(zip(names, row["values"], strict=True))


def _offset(text: str | None) -> Any:
    """Read an offset, which is a text within the event; of some sources it is not JSON."""
    with contextlib.suppress(TypeError, ValueError):
        return json.loads(text or "null")
    return text


def line_of(
    name: str, does: str, batch: Mapping[str, Any] | None, now: float, left: str = ""
) -> str:
    """Say in a line what a query does, and what its last batch was.

    ``left``: words on what it has left to read.
    """
    if batch is None:
        return f"{name}: {does}"
    ended = seconds_of(batch["timestamp"]) + _took(batch)
    if does == QueryPhase.WAITS.value:
        does += f" since {moment(ended, now)}"
    rows, took = several(batch["numInputRows"], "row", "rows"), span(_took(batch))
    return f"{name}: {does}; batch {batch['batchId']:,} had {rows} and took {took}{left}"


def _took(batch: Mapping[str, Any]) -> float:
    return float(batch["durationMs"].get("triggerExecution", 0)) / 1000


def behind(records: int | None, known_at: float, now: float) -> str:
    """Say how many records of topics are yet to be read, and when that was known if long ago."""
    if records is None:
        return ""
    return f"; {records:,} behind{as_of(known_at, now)}"


def as_of(known_at: float, now: float) -> str:
    """Say the time of a figure that is no longer of this moment; nothing of one that is."""
    return f" as of {moment(known_at, now)}" if now - known_at > OLD_S else ""


def lag_of(sources: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the records of each topic's partitions that are yet to be read."""
    lag: dict[str, dict[str, int]] = {}
    for source in sources:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if isinstance(end, dict) and isinstance(latest, dict):
            for topic in end.keys() & latest.keys():
                read = end[topic]
                if isinstance(read, dict):
                    offsets = latest[topic].items()
                    lag[topic] = {part: offset - read.get(part, 0) for part, offset in offsets}
    return lag


def records_of(lag: Mapping[str, Mapping[str, int]]) -> int | None:
    """Sum up the lag of all topics; None if there is none."""
    return sum(sum(parts.values()) for parts in lag.values()) if lag else None


def seconds_of(time: str) -> float:
    """Read a time as Spark writes it, in seconds since 1970."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def several(number: int, singular: str, plural: str) -> str:
    """Say a number of things."""
    return f"{number:,} {singular if number == 1 else plural}"


def span(seconds: float) -> str:
    """Say how long something takes: 0.8 s, 4 s, 12 s, 3 min 10 s, 2 h 14 min, 3 d 4 h."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    units = (
        ("d", whole // 86_400),
        ("h", whole // 3_600 % 24),
        ("min", whole // 60 % 60),
        ("s", whole % 60),
    )
    first = next(index for index, (_, number) in enumerate(units) if number)
    # A second unit that is 0 is left out.
    shown = [units[first], *(unit for unit in units[first + 1 : first + 2] if unit[1])]
    return " ".join(f"{number} {unit}" for unit, number in shown)


def moment(seconds: float, now: float) -> str:
    """Say a time of day, and the day if it is another one; both are seconds since 1970."""
    then, here = time.localtime(seconds), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == here[:3] else "%Y-%m-%d %H:%M", then)


def progress_since(
    query: StreamingQuery, batch: int, *, idle: bool = False
) -> list[StreamingQueryProgress]:
    """Read the progress of the query's batches after ``batch`` (-1: of all), oldest first.

    It goes as far back as Spark keeps it.  ``idle``: read also what the query says while it waits,
    which is under the number of its next batch.

    Cheap to ask again and again, since the last batch is asked for first.  For a reader of the
    recent ones, Spark writes out the progress of all of its last hundred batches.
    """
    last = query.lastProgress
    if last is None or last.batchId <= batch:
        return []
    if last.batchId == batch + 1:
        return [last] if idle or is_batch(last.durationMs) else []
    later = [progress for progress in query.recentProgress if progress.batchId > batch]
    return [progress for progress in later if idle or is_batch(progress.durationMs)]
