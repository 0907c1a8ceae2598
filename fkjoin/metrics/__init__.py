"""Metrics of running queries, from Spark's progress events: counters, times, lag, state, hot keys.

``watch`` is for queries that your program starts; ``fkjoin run`` watches its own queries. Metrics
are JSON lines, which ``Metrics.take`` returns, and series ``fkjoin_…`` for Prometheus. Where Kafka
Streams has a name for a counter, fkjoin uses that name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from fkjoin.checkpoint.progress import event_of
from fkjoin.errors import needs_extra
from fkjoin.metrics.collector import Metrics
from fkjoin.metrics.server import ClientAccess, PageServer
from fkjoin.spark.cause import innermost
from fkjoin.spark.spark_api import jvm

__all__ = ["Metrics", "watch"]


class _Events(JStreamingQueryListener):
    """A listener as the JVM calls it, with progress as one text.

    PySpark's asks for each number of it, 0.4 s for a join's.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._own = listener

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self._own._take(event_of(jevent.progress().json()))


class Listener(StreamingQueryListener):
    """Give the progress of all queries of a session to ``Metrics``."""

    def __init__(self, metrics: Metrics, spark: SparkSession | None = None) -> None:
        self._metrics, self._spark = metrics, spark
        self._names: dict[str, str] = {}

    def _take(self, event: Mapping[str, Any]) -> None:
        """Add an event, and find out how far the batches of its query are apart."""
        if self._spark is not None:
            streams, query_id = self._spark.streams, event["id"]
            name = event["name"] or query_id
            self._metrics._learn_interval(name, event["runId"], lambda: streams.get(query_id))
        self._metrics._take(event)

    @functools.cached_property
    def _jlistener(self) -> Any:
        """Make the object that PySpark registers."""
        return jvm().PythonStreamingQueryListenerWrapper(_Events(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._names[str(event.runId)] = name = event.name or str(event.id)
        self._metrics._start(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._metrics.take(event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._metrics._end(name, event.exception and innermost([event.exception]).text)


def watch(
    spark: SparkSession,
    port: int | None = None,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    names: Iterable[str] = (),
) -> Metrics:
    """Collect the metrics of a session's queries from now on, and serve them on request.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    port : int, optional
        The port of a page for people at ``/``, and of metrics for Prometheus at ``/metrics``. By
        default neither is served.
    host : str, default "127.0.0.1"
        The address to listen on. The default is for this machine alone; ``"0.0.0.0"`` is for all
        that reach the machine.
    token : str, optional
        The token that a client must send, in the header ``Authorization: Bearer TOKEN``.
    names : iterable of str, default ()
        Further names of the machine, as clients write them. fkjoin refuses requests to other names,
        except to ``localhost`` and to the address that the request comes to.

    Returns
    -------
    Metrics

    Raises
    ------
    FkJoinError
        If the address is taken or unknown, if clients cannot send the token or a name, or if the
        extra ``cli`` is not installed.

    Examples
    --------
    >>> metrics = watch(spark, 9464)
    >>> print(metrics.prometheus().decode())
    """
    metrics = Metrics()
    access = ClientAccess(host, tuple(names), token)
    if port is not None:
        with needs_extra("watch(port=)", "cli"):
            from fkjoin.metrics.page import ShownJob, pages
        shown = ShownJob(spark.conf.get("spark.app.name", "fkjoin") or "fkjoin")
        PageServer(pages(shown, metrics), port, access, "port")
    spark.streams.addListener(Listener(metrics, spark))
    return metrics


def __dir__() -> list[str]:
    return __all__
