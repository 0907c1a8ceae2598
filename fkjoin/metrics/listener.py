"""The listener that gives the progress of all queries of a session to their metrics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from fkjoin.checkpoint.progress import event_of
from fkjoin.spark.cause import innermost

if TYPE_CHECKING:
    from fkjoin.metrics import Metrics


class _Events(JStreamingQueryListener):
    """A listener as the JVM calls it, with progress as one text; PySpark's asks for each number of it, 0.4 s for a join's."""

    def __init__(self, listener: Listener, metrics: Metrics) -> None:
        super().__init__(listener)
        self._own, self._metrics = listener, metrics

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        progress = jevent.progress().json()
        self._own._learn_topics(progress)
        self._metrics.take_json(progress)


class Listener(StreamingQueryListener):
    """Give the progress of all queries of a session to ``Metrics``."""

    def __init__(self, metrics: Metrics, spark: SparkSession | None = None) -> None:
        self._metrics, self._spark = metrics, spark
        self._names: dict[str, str] = {}

    def _learn_topics(self, progress: str) -> None:
        """Find out which topics the query of an event reads."""
        about = event_of(progress)
        if self._spark is not None:
            streams = self._spark.streams
            self._metrics._learn_topics(about["name"] or about["id"], about["runId"], lambda: streams.get(about["id"]))

    @functools.cached_property
    def _jlistener(self) -> Any:
        """Make the object that PySpark registers."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(_Events(self, self._metrics))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._names[str(event.runId)] = name = event.name or str(event.id)
        self._metrics._start(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._metrics.take(event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._metrics._end(name, event.exception and innermost([event.exception]).text)
