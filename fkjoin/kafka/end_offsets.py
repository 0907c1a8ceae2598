"""End offsets of topics, as their brokers said them last, and the brokers that do not answer.

A thread for each cluster asks, so that no batch and no reader waits for a broker.  It asks for as
long as the session runs and a query reads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import SparkContext

from fkjoin.checkpoint.progress import behind, lag_of, moment, positions_of, records_of
from fkjoin.checkpoint.query import Query
from fkjoin.checkpoint.source_topics import SourceTopic, source_topics
from fkjoin.kafka.admin import consumer_of, end_offsets, leaders

EVERY_S = 5.0
"""The time between two questions."""
ANSWER_S = 8
"""The time within which brokers should answer."""
_ONE_ANSWER_S = 2
"""The time within which one broker should, when it is asked alone."""
_LEADERS_EVERY_S = 60.0
_WANTED_FOR_S = 120.0
"""The time for which a topic is asked for after it was last read."""


class Ends(NamedTuple):
    """The end offsets of a topic's partitions."""

    offsets: Mapping[int, int]
    as_of: float
    """The time of the answer, in seconds since 1970."""


@dataclass(frozen=True)
class Silence:
    """A topic whose brokers do not answer."""

    topic: str
    brokers: tuple[str, ...]
    since: float
    """The time of their last answer, or of the first question, in seconds since 1970."""

    def words(self, now: float) -> str:
        """Say which brokers of which topic do not answer, and since when."""
        noun, verb = ("broker", "has") if len(self.brokers) == 1 else ("brokers", "have")
        which = f"{noun} {', '.join(self.brokers)} of topic {self.topic}"
        return f"{which} {verb} not answered since {moment(self.since, now)}"


class Cluster:
    """The brokers of a cluster, asked where topics end."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        self._bootstrap_servers, self._options = bootstrap_servers, options
        self._changed = threading.Condition()
        self._wanted: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        """The times at which topics were first asked for, in seconds since 1970."""
        self._ends: dict[str, Ends] = {}
        self._silent: dict[str, Silence] = {}
        self._leaders: dict[str, dict[int, str]] = {}
        self._learned = 0.0
        self._heard: set[str] = set()
        """The topics that the thread has asked for."""
        self._thread: threading.Thread | None = None

    def read(
        self, topics: Iterable[str], within_s: float = 0.0
    ) -> tuple[dict[str, Ends], list[Silence]]:
        """Return the last ends of topics, as far as they are known, and those with silent brokers.

        ``within_s``: wait so long for an answer where there is none, or none of late.
        """
        wanted = list(topics)
        with self._changed:
            self._wanted |= dict.fromkeys(wanted, time.monotonic())
            for topic in wanted:
                self._asked.setdefault(topic, time.time())
            if self._thread is None and _session_runs():
                self._heard.clear()
                self._silent.clear()
                self._asked = dict.fromkeys(self._wanted, time.time())
                name = "fkjoin-end-offsets"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            if self._thread is not None and not self._heard.issuperset(wanted):
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._heard.issuperset(wanted), within_s)
            silent = [self._silent[topic] for topic in wanted if topic in self._silent]
            return {topic: self._ends[topic] for topic in wanted if topic in self._ends}, silent

    def _run(self) -> None:
        """Ask until no query reads any more.

        Whatever else goes wrong is for Spark's own consumer to say.
        """
        opened = consumer_of(self._bootstrap_servers, self._options)
        with contextlib.suppress(Exception), opened as consumer:
            while _session_runs() and (topics := self._topics()):
                self._ask(consumer, topics)
                with self._changed:
                    self._changed.wait_for(self._has_unheard, EVERY_S)
        time.sleep(EVERY_S)  # where no client can be made, the next one is not made at once
        with self._changed:
            self._thread = None

    def _has_unheard(self) -> bool:
        return not self._heard.issuperset(self._wanted)

    def _topics(self) -> list[str]:
        """The topics that a query has read of late; the others are forgotten."""
        with self._changed:
            until = time.monotonic() - _WANTED_FOR_S
            for topic in [topic for topic, time_s in self._wanted.items() if time_s <= until]:
                del self._wanted[topic], self._asked[topic]
                self._silent.pop(topic, None)
                self._heard.discard(topic)
            return list(self._wanted)

    def _ask(self, consumer: Any, topics: Sequence[str]) -> None:
        parts = self._parts(consumer, topics)
        ends = None if parts is None else end_offsets(consumer, parts, ANSWER_S)
        if parts is None:
            self._take(topics, {}, {topic: {self._bootstrap_servers} for topic in topics})
        elif ends is not None:
            self._take(topics, ends, {})
        else:
            # Another broker may lead a partition since, or a topic may be gone.
            self._learned = float("-inf")
            self._take(topics, *self._one_by_one(consumer, self._parts(consumer, topics) or {}))

    def _parts(self, consumer: Any, topics: Sequence[str]) -> dict[tuple[str, int], str] | None:
        """The partitions of topics with their leaders; None where no broker answers.

        Leaders are learned once a minute.
        """
        is_old = time.monotonic() - self._learned > _LEADERS_EVERY_S
        if is_old or not self._leaders.keys() >= set(topics):
            learned: dict[str, dict[int, str]] = {}
            for topic in topics:
                if (addresses := leaders(consumer, topic, ANSWER_S)) is None:
                    break
                learned[topic] = addresses
            else:
                self._leaders, self._learned = learned, time.monotonic()
        if not self._leaders.keys() >= set(topics):
            return None
        parts = {}
        for topic in topics:
            for number, broker in self._leaders[topic].items():
                parts[topic, number] = broker
        return parts

    def _one_by_one(
        self, consumer: Any, parts: Mapping[tuple[str, int], str]
    ) -> tuple[dict[tuple[str, int], int], dict[str, set[str]]]:
        """Ask each broker for itself: the ends that some say, and silent ones, by topic."""
        ends: dict[tuple[str, int], int] = {}
        silent: dict[str, set[str]] = {}
        for broker in dict.fromkeys(parts.values()):
            led = [part for part, leader in parts.items() if leader == broker]
            answer = end_offsets(consumer, led, _ONE_ANSWER_S) if broker else None
            ends |= answer or {}
            for topic, _ in led if answer is None else ():
                silent.setdefault(topic, set()).add(broker or self._bootstrap_servers)
        return ends, silent

    def _take(
        self,
        topics: Sequence[str],
        ends: Mapping[tuple[str, int], int],
        silent: Mapping[str, set[str]],
    ) -> None:
        """Keep what the brokers said of topics; of one with a silent broker, the ends before."""
        now = time.time()
        with self._changed:
            for topic in topics:
                offsets = {part: end for (name, part), end in ends.items() if name == topic}
                if topic in silent:
                    since = self._asked[topic]
                    if topic in self._ends:
                        since = max(since, self._ends[topic].as_of)
                    self._silent[topic] = Silence(topic, tuple(sorted(silent[topic])), since)
                    continue
                self._silent.pop(topic, None)
                if offsets:  # else the topic is gone, and its ends before stay
                    self._ends[topic] = Ends(offsets, now)
            self._heard.update(topics)
            self._changed.notify_all()


def _session_runs() -> bool:
    return SparkContext._active_spark_context is not None


_clusters: dict[tuple[Any, ...], Cluster] = {}
_lock = threading.Lock()


def _cluster(topic: SourceTopic) -> Cluster:
    """The cluster of a topic: one for all queries that reach it in the same way."""
    known, servers = topic.options.items(), topic.bootstrap_servers
    options = {name: value for name, value in known if name.lower().startswith("kafka.")}
    way = servers, *sorted(options.items())
    with _lock:
        return _clusters.setdefault(way, Cluster(servers, options))


def read_ends(
    topics: Iterable[SourceTopic], within_s: float = 0.0
) -> tuple[dict[str, Ends], list[Silence]]:
    """Return the last ends of topics, and those with silent brokers: see ``Cluster.read``."""
    of_clusters: dict[Cluster, list[str]] = {}
    for topic in topics:
        of_clusters.setdefault(_cluster(topic), []).append(topic.topic)
    ends: dict[str, Ends] = {}
    silent: list[Silence] = []
    for cluster, names in of_clusters.items():
        own_ends, own_silent = cluster.read(names, within_s)
        ends, silent = ends | own_ends, silent + own_silent
    return ends, silent


class Left(NamedTuple):
    """Records that a query has left to read."""

    lag: Mapping[str, Mapping[str, int]]
    """By topic and partition."""
    as_of: float
    """The time as of which that is known, in seconds since 1970."""
    silent: Sequence[Silence] = ()


def left_to_read(
    topics: Sequence[SourceTopic],
    positions: Mapping[str, Mapping[str, int]],
    by_spark: Left,
    within_s: float = 0.0,
) -> Left:
    """Count what is left from the ``positions`` to the topics' last known ends: see ``up_to``."""
    ends, silent = read_ends(topics, within_s)
    return up_to(ends, positions, by_spark)._replace(silent=silent)


def up_to(
    ends: Mapping[str, Ends], positions: Mapping[str, Mapping[str, int]], by_spark: Left
) -> Left:
    """Count what is left from the ``positions`` up to the ``ends``.

    ``by_spark``: what Spark's last event says, which is of its batch's beginning.  It holds for
    topics whose ends are unknown, and where they were asked for before.
    """
    lag = {topic: dict(parts) for topic, parts in by_spark.lag.items()}
    times = dict.fromkeys(by_spark.lag, by_spark.as_of)
    for topic in ends.keys() & positions.keys():
        before, read = lag.get(topic, {}), positions[topic]
        offsets = {str(number): end for number, end in ends[topic].offsets.items()}
        more = {part: end - read.get(part, 0) for part, end in offsets.items()}
        parts = sorted({*before, *more}, key=int)
        lag[topic] = {part: max(before.get(part, 0), more.get(part, 0)) for part in parts}
        times[topic] = max(by_spark.as_of, ends[topic].as_of)
    return Left(lag, min(times.values(), default=by_spark.as_of))


def telling_lag(query: Query) -> Query:
    """The query, whose line says what it has left to read at that moment.

    A topic's brokers have two seconds to answer.
    """

    def left(sources: Sequence[Mapping[str, Any]], as_of: float, now: float) -> str:
        by_spark, positions = Left(lag_of(sources), as_of), positions_of(sources)
        rest = left_to_read(source_topics(query), positions, by_spark, _ONE_ANSWER_S)
        silences = "".join(f"; {silence.words(now)}" for silence in rest.silent)
        return f"{behind(records_of(rest.lag), rest.as_of, now)}{silences}"

    query._left = left
    return query
