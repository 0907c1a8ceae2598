"""Topics that were deleted and created again under their names: noticed by their ids when a query starts.

A checkpoint's document has the id of each topic that the query reads.  A topic with another id stops the start, or is read from
its beginning in the place of the one before: then the offsets in Spark's logs are set to its beginning, before the document is
written with the new id and with the topic's ends.  After an end in between, the topic has another id still, and starts over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from fkjoin.checkpoint.begun import Begun, Topic
from fkjoin.checkpoint.files import hadoop, numbered, read_file, write_file
from fkjoin.codec import versions
from fkjoin.errors import FkJoinError
from fkjoin.kafka.admin import bounds, require_topic
from fkjoin.kafka.connection import Connection
from fkjoin.stages.start_over import StartOver

_HEADER = 1
"""Lines before those of sources; in the log of batches one more, which is no source's."""


@dataclass(frozen=True)
class Checked:
    """A topic, as the query that is about to start finds it."""

    topic_id: str | None
    start_over: StartOver | None


def checked_topics(
    spark: SparkSession, checkpoint: str, begun: Begun, topics: Sequence[Connection], *, stateful: bool = True
) -> list[Checked]:
    """Compare topics with those that the checkpoint knows, and note in ``begun`` what is new; what each of them is.

    ``stateful``: the query knows which rows came from a topic.  Raises ``FkJoinError`` for a topic with another id, unless it
    is to start over; nothing has changed then.
    """
    place, names = checkpoint.rstrip("/"), _names(topics)
    named = dict(zip(names, topics, strict=True))
    ids, anew = _compared(begun, place, named, stateful=stateful)
    for name, topic_id in ids.items():
        if topic_id is not None:
            begun.topics.setdefault(name, Topic(topic_id))
    for name in anew:
        ends = _starts_over(spark, place, named[name])
        begun.topics[name] = Topic(str(ids[name]), (begun.topics[name].generation or 0) + 1, ends)
    return [Checked(ids[name], _start_over(spark, place, named[name].topic, begun.topics.get(name))) for name in names]


def require_known_topics(begun: Begun, checkpoint: str, topics: Sequence[Connection], *, stateful: bool) -> None:
    """Raise what ``checked_topics`` would; nothing changes."""
    _compared(begun, checkpoint.rstrip("/"), dict(zip(_names(topics), topics, strict=True)), stateful=stateful)


def _compared(
    begun: Begun, place: str, named: Mapping[str, Connection], *, stateful: bool
) -> tuple[dict[str, str | None], list[str]]:
    """Find the ids that topics have, and those with another id than the checkpoint knows, which start over."""
    known = begun.topics
    ids = {name: require_topic(one.topic, one.bootstrap_servers, one.options).topic_id for name, one in named.items()}
    anew = [name for name in named if name in known and ids[name] is not None and known[name].id != ids[name]]
    for name in anew:
        topic = named[name].topic
        if named[name].of_events:
            raise FkJoinError(f"{_created_again(topic, place, known[name].id, ids[name])} {_OF_EVENTS}")
        if named[name].on_new_topic != "start-over":
            raise FkJoinError(f"{_created_again(topic, place, known[name].id, ids[name])} {_WAYS.format(topic=topic)}")
        if not stateful or name != topic:
            why = _TWO_OF_A_NAME if stateful else _AS_IT_IS_READ
            raise FkJoinError(f"{_created_again(topic, place, known[name].id, ids[name])} {why}")
    return ids, anew


def _start_over(spark: SparkSession, checkpoint: str, name: str, topic: Topic | None) -> StartOver | None:
    """Tell what is read in the place of an earlier topic; ``topic``: as the checkpoint knows it."""
    if topic is None or topic.generation is None:
        return None
    identity, ends = versions.topic_identity(name, None, topic.generation), topic.ends or []
    return StartOver(identity, () if _passed(spark, checkpoint, name, ends) else tuple(ends))


def _names(topics: Sequence[Connection]) -> list[str]:
    """The topics' names; with the brokers where a query reads topics of one name from several clusters."""
    clusters: dict[str, set[str]] = {}
    for one in topics:
        clusters.setdefault(one.topic, set()).add(one.bootstrap_servers)
    return [one.topic if len(clusters[one.topic]) == 1 else f"{one.topic}@{one.bootstrap_servers}" for one in topics]


_WAYS = (
    "Start with a new checkpoint and an empty target; or read the new topic from its beginning in the place of the one before: "
    'on_new_topic="start-over" for the table, or fkjoin run --start-over {topic}'
)
_OF_EVENTS = (
    "Its records are events, each of which is sent once, so the query cannot start over with it: start with a new checkpoint"
)
_TWO_OF_A_NAME = (
    "The query reads a topic of that name from another cluster, too, so it cannot start over with one of them: start with a "
    "new checkpoint and an empty target"
)
_AS_IT_IS_READ = (
    "The table is written as it is read, so nothing knows which rows to delete, and it cannot start over: start with a new "
    "checkpoint and an empty target, and write .materialize(NAME) for a table that can"
)


def _created_again(topic: str, checkpoint: str, was: str, now: str | None) -> str:
    return (
        f"topic {topic} was deleted and created again since checkpoint {checkpoint} was begun: its id was {was} and is {now}. "
        "The query would read it from the middle, or not at all."
    )


def _starts_over(spark: SparkSession, checkpoint: str, connection: Connection) -> list[tuple[int, int]]:
    """Set the checkpoint's offsets of the topic to its beginning; where it ends now."""
    begins, ends = bounds(connection.topic, connection.bootstrap_servers, connection.options, tombstones=connection.tombstones)
    if not ends:
        raise FkJoinError(
            f"topic {connection.topic} was created again and has no records yet: to start over with it now would delete all "
            "rows. Start when it has records, or with a new checkpoint and an empty target"
        )
    for path, lines in _logs(spark, checkpoint):
        changed = [*lines[:_HEADER], *(_with_offsets(line, connection.topic, begins) for line in lines[_HEADER:])]
        if changed != lines:
            write_file(*hadoop(spark, path), "\n".join(changed).encode())
    return sorted(ends.items())


def _passed(spark: SparkSession, checkpoint: str, topic: str, ends: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a committed batch has read the topic to its ends."""
    done = {path.rpartition("/")[2] for path in _newest(spark, f"{checkpoint}/commits", 2)}
    found: dict[str, int] = {}
    for path, lines in _logs(spark, checkpoint):
        if path.rpartition("/")[0].endswith("/offsets") and path.rpartition("/")[2] in done:
            for line in lines[_HEADER:]:
                found |= offsets_of(line, topic) or {}
    return all(found.get(str(number), -1) > end for number, end in ends)


def _logs(spark: SparkSession, checkpoint: str) -> list[tuple[str, list[str]]]:
    """The files of Spark's logs that say where sources go on, and their lines.

    Of the log of batches these are the last that was committed and the one after it, if that has begun.
    """
    place, files = hadoop(spark, f"{checkpoint}/sources/*")
    sources = [str(status.getPath()) for status in files.globStatus(place) or []]
    paths = [*_newest(spark, f"{checkpoint}/offsets", 2), *(one for source in sources for one in _newest(spark, source, 1))]
    return [(path, read_file(*hadoop(spark, path)).decode().split("\n")) for path in paths]


def _newest(spark: SparkSession, folder: str, count: int) -> list[str]:
    """The paths of a log's last files."""
    return [path for _, path in numbered(spark, folder)[-count:]]


def offsets_of(line: str, topic: str) -> dict[str, int] | None:
    """The offsets of the topic's partitions, if the line says them."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    offsets = found.get(topic) if isinstance(found, dict) and len(found) == 1 else None
    return offsets if isinstance(offsets, dict) else None


def _with_offsets(line: str, topic: str, begins: Mapping[int, int]) -> str:
    if offsets_of(line, topic) is None:
        return line
    return json.dumps({topic: {str(number): offset for number, offset in begins.items()}}, separators=(",", ":"))
