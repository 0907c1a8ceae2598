"""The exception of a failed query: three lines on what went wrong, where, and what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from itertools import chain

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.damage import RESTORE, TAKEN_OVER, explain
from fkjoin.errors import MISPLACED, FkJoinError, set_aside
from fkjoin.spark.cause import NO_MEMORY, Cause, innermost, texts_of
from fkjoin.spark.spark_api import java_query, listed, running_session

_SET_ASIDE = re.compile(re.escape(set_aside("\0")).replace("\0", r"(\w+)"))
_FILE = re.compile(r"error while reading file (\S+?)\.?(?=\s)")
_OFFSETS_GONE = re.compile(r"OffsetOutOfRange|data may have been lost|KAFKA_DATA_LOSS")
_OTHER_TYPE = re.compile(r"column: \[(.+?)\], physicalType: (\w+), logicalType: (.+)")
_NEW_FOLDER = re.compile(r"assertion failed: Invalid batch: \S+ != \S+")
_OF_DELTA = {
    "DELTA_SCHEMA_CHANGED|DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": (
        "{goes_on}; the checkpoint keeps the columns, so a new one is left out. If it stops here "
        "again, a column was renamed, dropped or given another type: {anew}"
    ),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE": "{anew}",
    "DELTA_MISSING_CHANGE_DATA": (
        "set the table's property delta.enableChangeDataFeed to true; what changed while it was "
        "not is not recorded: {anew}"
    ),
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": (
        "this is another Delta table than the checkpoint's: {anew}"
    ),
    "DELTA_LOG_FILE_NOT_FOUND|DELTA_STREAMING_TRAILING_COMMIT_MISSING"
    "|DELTA_FILE_NOT_FOUND|/_change_data/": (
        "if VACUUM, or the retention of the table's log, deleted what was still to be read: {anew}"
    ),
}
"""Ways out of what stops a stream of a Delta table, by conditions.

Delta's own words forget the target.
"""
_ANEW = "start with a new checkpoint and an empty target"
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_SINK = r"(?:sink .+?: )?"
_OF_NO_ROOM = re.compile(rf"{_SINK}OSError: \[Errno (?:28|122)\]")
_OF_NO_MEMORY = re.compile(rf"{_SINK}\w*(?:MemoryError|OutOfMemory)\b")
"""Beginnings of causes, by the sink and the class of the exception."""
_NOT_ALLOWED = re.compile(r"\w+AuthorizationException: |Not authorized to access")
_NO_ANSWER = re.compile(
    r"Timed out waiting for a node assignment|Call\(callName=\w+|Timeout of \d+ ?ms expired"
    r"|Topic \S+ not present in metadata"
    r"|kafka\.common\.errors\.(?:Timeout|Disconnect|Network)Exception|Expiring \d+ record\(s\) for"
)
"""Words about brokers that do not answer."""
_OF_TOPIC = re.compile(
    r"Topic (\S+) not present in metadata|record\(s\) for (\S+)-\d+|[Pp]artitions? ([\w.-]+)-\d+"
)

_SOURCE = "StreamingDataSourceV2ScanRelation"
_BROKERS = "kafka.bootstrap.servers"


class QueryError(FkJoinError, StreamingQueryException):
    """The failure of a query.

    A query of a ``to_…`` call raises it in ``awaitTermination``, and returns it from ``exception``.
    Its text has three lines: which query failed and why, where, and what to do. It is also a
    ``pyspark.errors.StreamingQueryException``.

    Parameters
    ----------
    message : str
        The three lines.
    details : str, default ""
        All that Spark says: the tracebacks, the offsets and the plan.

    Examples
    --------
    >>> try:
    ...     query.awaitTermination()
    ... except fkjoin.QueryError as error:
    ...     print(error)  # three lines
    ...     log.debug(error.details)
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def failure(query: StreamingQuery, name: str | None = None) -> QueryError | None:
    """Say why a query has failed, in three lines.

    It may be any query of Spark, for example a query on ``Table.changes``.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        The query, which fkjoin need not have started.
    name : str, optional
        The name of the query in the text. By default the name that Spark has.

    Returns
    -------
    QueryError or None
        None if the query runs, or has ended as intended. For a query of Spark Connect, fkjoin knows
        one failure only: that another process took over the checkpoint.

    Examples
    --------
    >>> query = joined.changes.writeStream.format("console").start()
    >>> if (error := fkjoin.failure(query)) is not None:
    ...     raise error
    """
    # A client of Spark Connect has Spark's text alone.
    handle = java_query(query)
    optional = None if handle is None else handle.exception()
    called = name or query.name or str(query.id)
    if optional is None or not optional.isDefined():
        why: str | None = getattr(query, "_why_stopped", None)
        if why is None:
            return None
        checkpoint = str(getattr(query, "_checkpoint", "?"))
        where = f"where: checkpoint {checkpoint}"
        return QueryError(f"query {called} failed: {why}\n{where}\nwhat to do: {_ONE_PROCESS}")
    checkpoint = str(handle.streamingQuery().resolvedCheckpointRoot()).removeprefix("file:")
    error = optional.get()
    whole = str(error.toString()).partition(": ")[2]
    messages = [str(error.getMessage() or ""), *texts_of(error.getCause())]
    details = [whole, *(f"Caused by: {text}" for text in messages[1:] if text not in whole)]
    lines = told(called, checkpoint, _batch(checkpoint), messages, _source_topics(query))
    return QueryError("\n".join(lines), "\n\n".join(details))


_ONE_PROCESS = (
    "let only one process use the checkpoint: the other one continues; "
    "start this one again when the other one has ended"
)


_Advice = tuple[str, str]
"""Words about a cause: what went wrong, and the way out."""


def told(
    name: str,
    checkpoint: str,
    batch: int | None,
    messages: list[str],
    topics: Mapping[str, str] | None = None,
) -> tuple[str, str, str]:
    """Say the three lines about a query.

    ``messages``: of Java's exception and of its causes, the innermost last; ``topics``: those that
    the query reads, with the brokers of each.
    """
    cause = innermost(messages)
    where, next_batch = [f"checkpoint {checkpoint}"], "the batch after the last one"
    if batch is not None:
        where, next_batch = [f"batch {batch} of checkpoint {checkpoint}"], "this batch"
    goes_on = f"start the query again: it continues with {next_batch}"
    whole = "\n".join(messages)
    of_brokers = _of_brokers(cause, whole, topics or {}, goes_on)
    problem, way = of_brokers or _advice(cause, checkpoint, whole, goes_on)
    where += [f"file {file}" for file in _FILE.findall(f"{' '.join(messages)} ")[-1:]]
    where += cause.frames[-1:]
    return (
        f"query {name} failed: {problem}",
        f"where: {'; '.join(where)}",
        f"what to do: {way}",
    )


def _advice(cause: Cause, checkpoint: str, whole: str, goes_on: str) -> _Advice:
    """Choose what to say of a cause, by its kind."""
    if (of_checkpoint := explain(whole, checkpoint)) is not None:
        return of_checkpoint
    if (match := _SET_ASIDE.search(cause.text)) is not None:
        rows, rest = match[1], cause.text[match.end() :].removeprefix(",").strip()
        also = f", {rest}" if rest else ""
        return (
            cause.text[: match.start()],
            f'set such {rows} aside, with on_error="dead-letter" for the table{also}; '
            f"or fix what is wrong; then {goes_on}",
        )
    if cause.ours == "StoreMismatchError":
        return (
            cause.text,
            "as the first line says; the checkpoint is unchanged, and nothing was written",
        )
    if cause.ours in ("CorruptLogError", "UnknownFormatError"):
        return (
            cause.text,
            f"`fkjoin state verify {checkpoint}` says what else is wrong; then {RESTORE}",
        )
    if cause.ours is None and not cause.frames and _OFFSETS_GONE.search(whole):
        return (
            "the topic no longer has offsets that were still to be read",
            f"if retention deleted them: {_ANEW}; or, to continue without what is missing, set the "
            "option failOnDataLoss = false. If the topic was deleted and created again: start the "
            'job with --start-over TOPIC (in Python: on_new_topic="start-over"), or with a new '
            "checkpoint and an empty target",
        )
    for condition, way in _OF_DELTA.items():
        if re.search(condition, whole):
            return cause.text, way.format(goes_on=goes_on, anew=_ANEW)
    if (of_files := _of_files(cause.text, whole, goes_on)) is not None:
        return of_files
    return cause.text, _way(cause, whole, goes_on)


def _way(cause: Cause, whole: str, goes_on: str) -> str:
    """Say what to do about a cause that says itself what went wrong."""
    of_spark = cause.of_java or not cause.frames  # else the words may be the user's
    if _OF_NO_ROOM.match(cause.text) or (of_spark and _NO_ROOM.search(cause.text)):
        return f"make room on that disk, and {goes_on}"
    if _OF_NO_MEMORY.match(cause.text) or (of_spark and NO_MEMORY.search(cause.text)):
        return (
            "give the session more memory (spark.driver.memory, spark.executor.memory, for Python "
            f"spark.executor.memoryOverhead), and {goes_on}; limits such as maxOffsetsPerTrigger "
            "hold from the batch after it"
        )
    if cause.ours is not None and TAKEN_OVER in cause.text:
        return _ONE_PROCESS
    if cause.ours is not None:
        return f"fix what the first line names, and {goes_on}"
    if cause.frames:
        return f"fix that line, and {goes_on}"
    if _NOT_ALLOWED.search(whole):
        return (
            "ask Kafka's administrator to allow the query's user (kafka-acls) READ and DESCRIBE of "
            "the topics that are read, WRITE and DESCRIBE of the topics that are written; then "
            f"{goes_on}"
        )
    details = "Spark's log, and this error's details, contain the whole error"
    if files := _FILE.findall(f"{whole} "):
        return (
            f"replace {files[-1]} by an undamaged file of the same name, and {goes_on}; or, to "
            "continue without it, move it away and set spark.sql.files.ignoreMissingFiles = true; "
            f"{details}"
        )
    return f"fix the cause in the first line, and {goes_on}; {details}"


def _of_brokers(
    cause: Cause, whole: str, topics: Mapping[str, str], goes_on: str
) -> _Advice | None:
    """Say which brokers do not answer; None of another cause.

    Java's messages name a topic at most, perhaps one that is written.
    """
    if cause.ours is not None or cause.frames or _NO_ANSWER.search(whole) is None:
        return None
    # Each match has one of the groups, and empty texts for the others.
    named = set(filter(None, chain.from_iterable(_OF_TOPIC.findall(whole))))
    if not named and not topics:
        return None
    silent = sorted(named or topics)
    servers = sorted({topics[topic] for topic in silent if topic in topics})
    where = f" at {' and '.join(servers)}" if servers else ""
    which = f"topic {silent[0]}" if len(silent) == 1 else f"topics {', '.join(silent)}"
    return (
        f"the brokers of {which}{where} do not answer ({cause.text})",
        "check that these brokers run, and that the driver and the workers can reach them; then "
        f"{goes_on}",
    )


def _of_files(cause: str, whole: str, goes_on: str) -> _Advice | None:
    """Say what Spark's readers of files stop at; None of another cause."""
    if (match := _OTHER_TYPE.search(cause)) is not None:
        file = (_FILE.findall(f"{whole} ") or ["a file"])[-1]
        return (
            f"{file}: column {match[1]} is {match[2]} in it, but must be read as {match[3]}",
            "write that file again, under its name, with the types of the table, and "
            f"{goes_on}. Or start with a new checkpoint and a schema= that all files fit",
        )
    if cause.startswith(MISPLACED) or _NEW_FOLDER.search(cause):
        return (
            cause if cause.startswith(MISPLACED) else MISPLACED,
            f"{goes_on}, and reads these columns if schema= names them",
        )
    return None


def _batch(checkpoint: str) -> int | None:
    """The batch that has begun and is not done; None if there is none, or that cannot be told."""
    with contextlib.suppress(Exception):
        log = BatchLog(running_session(), checkpoint)
        return log.last if log.last > log.done else None
    return None


def _source_topics(query: StreamingQuery) -> dict[str, str]:
    """Read which topics a query reads, with the brokers of each.

    None before its sources are there, and none of a query of Spark Connect.  A topic that the query
    reads from two clusters is left out: its name alone would not say which one is meant.
    """
    clusters: dict[str, set[str]] = {}
    with contextlib.suppress(Exception):  # Spark does not say it until it has made the sources
        plan = java_query(query).streamingQuery().logicalPlan()
        for leaf in listed(plan.collectLeaves()):
            if leaf.getClass().getSimpleName() != _SOURCE:
                continue
            options: dict[str, str] = dict(leaf.relation().options().asCaseSensitiveMap())
            named = {name.lower(): value for name, value in options.items()}
            if {"subscribe", _BROKERS} <= named.keys():
                for topic in named["subscribe"].split(","):
                    clusters.setdefault(topic, set()).add(named[_BROKERS])
    return {topic: next(iter(brokers)) for topic, brokers in clusters.items() if len(brokers) == 1}
