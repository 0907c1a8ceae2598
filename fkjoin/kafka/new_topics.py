"""Topics that were deleted and created again under their names: their ids tell a query's start.

A checkpoint's document contains the id of each topic that the query reads.  A topic with another id
stops the start, or is read from its beginning in the place of the one before.  Then the offsets in
Spark's logs are set to its beginning, before the document is written with the new id and with the
topic's ends.  After an end in between, the topic still has another id, and starts over again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.begun import Begun, KnownTopic
from fkjoin.checkpoint.files import files_at
from fkjoin.codec import versions
from fkjoin.errors import FkJoinError
from fkjoin.kafka.admin import bounds, require_topic
from fkjoin.kafka.connection import Connection
from fkjoin.stages.start_over import StartOver
from fkjoin.storage.files import Files

_HEADER = 1
"""Lines before the sources' lines; in the log of batches one more, which belongs to no source."""


class Checked(NamedTuple):
    """A topic, as the query that is about to start finds it."""

    topic_id: str | None
    start_over: StartOver | None


def checked_topics(
    spark: SparkSession,
    checkpoint: str,
    begun: Begun,
    topics: Sequence[Connection],
    *,
    stateful: bool = True,
) -> list[Checked]:
    """Compare topics as ``require_known_topics`` does, and note in ``begun`` what is new.

    Returns what each of them is.
    """
    folder, names = checkpoint.rstrip("/"), _names(topics)
    ids = require_known_topics(begun, folder, topics, stateful=stateful)
    for name, connection in dict(zip(names, topics, strict=True)).items():
        topic_id, known = ids[name], begun.topics.get(name)
        if topic_id is None:
            continue
        if known is None:
            begun.topics[name] = KnownTopic(topic_id)
        elif known.id != topic_id:
            ends = _starts_over(spark, folder, connection)
            begun.topics[name] = KnownTopic(topic_id, (known.generation or 0) + 1, ends)
    start_overs = [_start_over(spark, folder, name, begun.topics.get(name)) for name in names]
    return [Checked(ids[name], over) for name, over in zip(names, start_overs, strict=True)]


def require_known_topics(
    begun: Begun, checkpoint: str, topics: Sequence[Connection], *, stateful: bool
) -> dict[str, str | None]:
    """Raise ``FkJoinError`` for a topic with another id than is known, unless it is to start over.

    ``stateful``: the query knows which rows came from a topic.  Returns the ids by name.  Nothing
    changes.
    """
    ids: dict[str, str | None] = {}
    # Two tables may read one topic, and each of them must allow it to start over.
    for name, connection in zip(_names(topics), topics, strict=True):
        topic, known = connection.topic, begun.topics.get(name)
        if name not in ids:
            servers, options = connection.bootstrap_servers, connection.options
            ids[name] = require_topic(topic, servers, options).topic_id
        if known is None or ids[name] in (None, known.id):
            continue
        if connection.of_events:
            way = _OF_EVENTS
        elif connection.on_new_topic != "start-over":
            way = _WAYS.format(topic=topic)
        elif not stateful:
            way = _AS_IT_IS_READ
        elif name != topic:
            way = _TWO_OF_A_NAME
        else:
            continue
        raise FkJoinError(
            f"topic {topic} was deleted and created again since checkpoint "
            f"{checkpoint.rstrip('/')} was begun: its id was {known.id} and is {ids[name]}. "
            f"The query would read it from the middle, or not at all. {way}"
        )
    return ids


def _start_over(
    spark: SparkSession, checkpoint: str, name: str, topic: KnownTopic | None
) -> StartOver | None:
    """Tell what is read in the place of an earlier topic; ``topic``: as the checkpoint knows it."""
    if topic is None or topic.generation is None:
        return None
    identity, ends = versions.topic_identity(name, None, topic.generation), topic.ends or []
    return StartOver(identity, () if _passed(spark, checkpoint, name, ends) else tuple(ends))


def _names(topics: Sequence[Connection]) -> list[str]:
    """The topics' names; with the brokers where topics of several clusters have one name."""
    clusters: dict[str, set[str]] = {}
    for read in topics:
        clusters.setdefault(read.topic, set()).add(read.bootstrap_servers)
    names = []
    for read in topics:
        is_alone = len(clusters[read.topic]) == 1
        names.append(read.topic if is_alone else f"{read.topic}@{read.bootstrap_servers}")
    return names


_WAYS = (
    "Start with a new checkpoint and an empty target; or read the new topic from its beginning in "
    'the place of the one before: on_new_topic="start-over" for the table, or fkjoin run '
    "--start-over {topic}"
)
_OF_EVENTS = (
    "Its records are events, each of which is sent once, so the query cannot start over with it: "
    "start with a new checkpoint"
)
_TWO_OF_A_NAME = (
    "The query reads a topic of that name from another cluster, too, so it cannot start over with "
    "one of them: start with a new checkpoint and an empty target"
)
_AS_IT_IS_READ = (
    "The table is written as it is read, so nothing knows which rows to delete, and it cannot "
    "start over: start with a new checkpoint and an empty target, and write .materialize(NAME) "
    "for a table that can"
)


def _starts_over(
    spark: SparkSession, checkpoint: str, connection: Connection
) -> list[tuple[int, int]]:
    """Set the checkpoint's offsets of the topic to its beginning; where it ends now."""
    topic, servers = connection.topic, connection.bootstrap_servers
    begins, ends = bounds(topic, servers, connection.options, tombstones=connection.tombstones)
    if not ends:
        raise FkJoinError(
            f"topic {topic} was created again and has no records yet: to start over with it now "
            "would delete all rows. Start when it has records, or with a new checkpoint and an "
            "empty target"
        )
    files = files_at(spark, checkpoint)
    for path, lines in _logs(files):
        sources = [_with_offsets(line, topic, begins) for line in lines[_HEADER:]]
        changed = [*lines[:_HEADER], *sources]
        if changed != lines:
            files.write(path, "\n".join(changed).encode())
    return sorted(ends.items())


def _passed(
    spark: SparkSession, checkpoint: str, topic: str, ends: Iterable[tuple[int, int]]
) -> bool:
    """Tell whether a committed batch has read the topic to its ends."""
    files = files_at(spark, checkpoint)
    reached: dict[str, int] = {}
    for number in sorted(both_logs(files))[-1:]:
        for line in files.read(f"offsets/{number}").decode().split("\n")[_HEADER:]:
            reached |= offsets_of(line, topic) or {}
    return all(reached.get(str(number), -1) > end for number, end in ends)


def both_logs(files: Files) -> set[int]:
    """The batches of a checkpoint that Spark has logged as begun and as committed."""
    return {*files.numbers("offsets")} & {*files.numbers("commits")}


def _logs(files: Files) -> list[tuple[str, list[str]]]:
    """The files of Spark's logs that say where sources continue, and their lines.

    Of the log of batches these are the last that was committed and the one after it, if that has
    begun.
    """
    paths = [f"offsets/{number}" for number in files.numbers("offsets")[-2:]]
    for source in files.names("sources"):
        folder = f"sources/{source}"
        paths += [f"{folder}/{number}" for number in files.numbers(folder)[-1:]]
    return [(path, files.read(path).decode().split("\n")) for path in paths]


def offsets_of(line: str, topic: str) -> dict[str, int] | None:
    """The offsets of the topic's partitions, if the line says them."""
    try:
        source = json.loads(line)
    except ValueError:
        return None
    offsets = source.get(topic) if isinstance(source, dict) and len(source) == 1 else None
    return offsets if isinstance(offsets, dict) else None


def _with_offsets(line: str, topic: str, begins: Mapping[int, int]) -> str:
    if offsets_of(line, topic) is None:
        return line
    offsets = {str(number): offset for number, offset in begins.items()}
    return json.dumps({topic: offsets}, separators=(",", ":"))
