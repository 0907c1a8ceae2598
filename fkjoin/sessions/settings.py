"""The Spark session that the engine needs: a helper that makes one, and a check of another."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from fkjoin.errors import SessionError, first_line, nearest, needs_extra
from fkjoin.plan.rules import RULES
from fkjoin.sessions import connector, words
from fkjoin.sessions.abilities import CONNECT, local_file_manager
from fkjoin.sessions.access import access
from fkjoin.sessions.launch import launch
from fkjoin.spark.cause import cause_of
from fkjoin.spark.spark_api import is_connect, java_context, running_context

BUCKETS = "spark.fkjoin.buckets"
LATENCY = "spark.fkjoin.latency"
INDEX_DIR = "spark.fkjoin.index.dir"
VALIDATE = "spark.fkjoin.validate"
OPTIMIZE = "spark.fkjoin.optimize"
EXCLUDED = "spark.fkjoin.optimizer.excludedRules"
RETENTION = "spark.fkjoin.mark.retention.ms"
RETENTION_MS = 24 * 60 * 60 * 1000
"""The default of ``RETENTION``: a day."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
TIME_ZONE = "spark.sql.session.timeZone"

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_REQUIRED = {
    PROVIDER: (_ROCKSDB, "transformWithState keeps its state in RocksDB only"),
    CHECKPOINT_FORMAT: ("2", "with format 1 a late task attempt can overwrite committed state"),
}
SHORT_LIVED = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For ``driver_extraJavaOptions`` of a local session that lives for a minute.

In so short a time the JVM's optimizing compiler takes more of the cores than it gives back
(docs/adr/0029).  Without it the JVM has room for 48 MiB of compiled code, in place of 240, and ends
when that is full.
"""

_WORKERS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4194304:"
    "glibc.malloc.trim_threshold=16777216",
}
"""Environment of Python workers, which allocate and free many megabytes a batch.

With huge pages they fault half as often, and what they have freed is not kept until their next
stage (docs/adr/0022-memory-is-given-back.md).
"""

_SIMPLE = (
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled",
    "SPARK_SIMPLIFIED_TRACEBACK",
)
"""A setting that Spark hands on to workers of all but stateful operators, and its variable.

Functions share workers where their environments are equal
(docs/adr/0023-workers-share-what-they-import.md).
"""

_LOCAL_MEMORY = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:"
    "glibc.malloc.trim_threshold=16777216:glibc.malloc.arena_max=2"
)
"""Tunables of a local session's JVM: as of workers, in the larger pieces that it copies."""

_JAVA = "spark.driver.extraJavaOptions"

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Hadoop's other way to a local disk starts a process ``readlink`` for each file that it renames.

That is a third of a small batch.
"""

_LOCAL = {"spark.shuffle.compress": "false"}
"""Workers compress data between stages (docs/adr/0030-pieces-between-the-jvm-and-workers.md)."""

_DEFAULTS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.redaction.options.regex": "(?i)url|jaas|credential|private|[.]key$",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings that apply unless a user chose others.

Spark by itself gathers up to 64 MiB before a worker gets any of it, in
buffers that are copied as they grow (docs/adr/0030-pieces-between-the-jvm-and-workers.md), and
looks for new data every 10 ms: half a core of a query that waits.  Plans on its page and in its
event log show the options of a sink, of which it hides those with a name or value that says url,
secret, password or token: not a private key.
"""

_AT_START = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""Settings that only a start can make.

PySpark asks the JVM for the Python line of each column, a third of the time
in which a table is built; the line is one of fkjoin's."""

_CONNECT = "grpc", "grpc_status", "google.rpc", "zstandard"
"""Packages that a client of Spark Connect imports besides PySpark."""
_CONNECT_PORT, _CONNECT_S = 15002, 10
"""The port of a server where its address has none, and seconds to wait for a silent one."""


def session(
    app_name: str = "fkjoin",
    master: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    kafka: bool = False,
    remote: str | None = None,
    **conf: Any,
) -> SparkSession:
    """Make a Spark session with the settings that fkjoin needs, or complete the active session.

    fkjoin leaves out warnings of Spark's log that you can do nothing about. ``log_level="WARN"``
    shows all warnings, ``log_level="INFO"`` more, also in a session that exists already.

    Parameters
    ----------
    app_name : str, default "fkjoin"
        The name of the application. With ``remote`` the server decides it.
    master : str, optional
        The master of the cluster. By default the master that ``spark-submit`` gave, else
        ``local[*]``.
    settings : mapping of str to value, optional
        Further settings, under their full names.
    kafka : bool, default False
        Whether the session has Spark's Kafka connector, in the newest published version that fits
        this Spark. Spark fetches it once, and keeps it.
    remote : str, optional
        The address of a Spark Connect server, ``sc://HOST:PORT``, for a session there. By default
        ``SPARK_REMOTE`` of the environment, if that is set and ``master`` is not given.
    **conf : value
        Further settings, with ``_`` for ``.`` and without the leading ``spark.``.

    Returns
    -------
    pyspark.sql.SparkSession

    Raises
    ------
    SessionError
        If a setting rules fkjoin out, arguments contradict each other, or a package of Spark
        Connect is missing. Also if the connector cannot be fetched, or if the process already has a
        JVM without it.

    Examples
    --------
    >>> spark = session(sql_shuffle_partitions=8, fkjoin_buckets=16)
    >>> spark = session(kafka=True, settings={"spark.sql.session.timeZone": "UTC"})
    """
    exact = {"spark." + name.replace("_", "."): value for name, value in conf.items()}
    exact |= settings or {}
    if remote is not None or (master is None and is_client()):
        if kafka:
            raise SessionError(
                f"kafka: {remote or 'the server'} has its own jars: start the server with the "
                "connector, and leave out kafka"
            )
        return _at_server(remote, master, exact)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_submitted = "MASTER" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted and not running_context():
        master = "local[*]"
    chosen: dict[str, Any] = {"spark.app.name": app_name, "spark.ui.showConsoleProgress": "false"}
    if master is not None:
        chosen["spark.master"] = master
    chosen |= {name: value for name, (value, _) in _REQUIRED.items()} | _DEFAULTS | _AT_START
    if kafka:
        exact = connector.with_connector(exact)
    if (master or "").startswith("local"):
        exact.setdefault(_JAVA, "-XX:+UseParallelGC")
        chosen |= _LOCAL
        os.environ.setdefault("GLIBC_TUNABLES", _LOCAL_MEMORY)
    texts = _texts(chosen | exact)
    if words.LOG_LEVEL not in texts:
        words.drop_warnings()
    launch(texts)
    spark = _classic(texts)
    if kafka:
        connector.require(spark)
    return spark


def _classic(texts: Mapping[str, str]) -> SparkSession:
    """A session of this process with these settings; ``SessionError`` if Spark refuses one."""
    try:
        spark = SparkSession.builder.config(map=dict(texts)).getOrCreate()
        is_local = (spark.sparkContext.master or "").startswith("local")
        is_free = is_local and spark.conf.get(_FILE_MANAGER, None) is None
        if is_free and (manager := local_file_manager()):
            spark.conf.set(_FILE_MANAGER, manager)
        prepare(spark)
        if words.LOG_LEVEL in texts:
            words.output().everything = True
            # Spark does nothing about the level of its own defaults, INFO, though its log begins at
            # WARN.
            for level in ("WARN", texts[words.LOG_LEVEL]):
                spark.sparkContext.setLogLevel(level)
    except (PySparkException, Py4JJavaError) as error:
        raise SessionError(
            f"settings: Spark refuses one: {cause_of(error)}; change it, or leave it out"
        ) from error
    return spark


def is_client() -> bool:
    """Tell whether PySpark has sessions of Spark Connect alone in this process.

    Notebooks of some managed services are so.
    """
    return is_remote() or "SPARK_REMOTE" in os.environ


def _at_server(remote: str | None, master: str | None, settings: Mapping[str, Any]) -> SparkSession:
    """A session of Spark Connect with these settings."""
    if master is not None:
        raise SessionError(
            f"remote: {remote} is a server with a master of its own: leave out master, which is "
            f"{master!r}"
        )
    words.drop_warnings()
    with needs_extra("Spark Connect", "connect"):
        # PySpark itself ends the process without a word where a package is missing.
        for package in _CONNECT:
            importlib.import_module(package)
    spark = _client(remote)
    for ability in CONNECT:
        ability.require(spark)
    for name, value in _texts(settings).items():
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            raise SessionError(
                f"{name} cannot be set in a session at {remote or 'its server'}: start the server "
                f"with it, and leave it out here ({first_line(error)})"
            ) from error
    prepare(spark)
    return spark


def _client(remote: str | None) -> SparkSession:
    """A session at the address; without one, the active one, or PySpark's of the environment."""
    if remote is None and (active := SparkSession.getActiveSession()) is not None:
        return active
    builder, address = SparkSession.builder, remote or os.environ.get("SPARK_REMOTE", "")
    # A managed service may have addresses of another kind.
    if remote is not None or address.startswith("sc://"):
        _require_server(address)
    return builder.getOrCreate() if remote is None else builder.remote(remote).getOrCreate()


def _require_server(remote: str) -> None:
    """Raise ``SessionError`` if no server answers, or this process has a session at another one."""
    from pyspark.sql.connect.session import SparkSession as Client

    address = urlsplit(remote)
    if address.scheme != "sc" or not address.hostname:
        raise SessionError(f"remote: {remote!r} is not a server's address; write sc://HOST:PORT")
    port = address.port or _CONNECT_PORT
    wanted, active = f"{address.hostname}:{port}", Client.getActiveSession()
    endpoint = None if active is None else getattr(active.client._builder, "endpoint", "")
    if endpoint not in (None, wanted):
        raise SessionError(
            f"remote: this process has a session at {endpoint}: stop it first, or use another "
            f"process for {remote}"
        )
    try:
        socket.create_connection((address.hostname, port), _CONNECT_S).close()
    except OSError as error:
        raise SessionError(
            f"remote: no server answers at {remote} ({error}); start one, or give its address"
        ) from error


def _texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    texts = {}
    for name, value in settings.items():
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def prepare(spark: SparkSession) -> None:
    """Complete the session's settings; ``SessionError`` when it has others that rule fkjoin out."""
    require_running(spark)
    asked = access(spark)
    # A setting that is not made reads as None here, not as Spark's default.
    for name, (value, why) in _REQUIRED.items():
        own = spark.conf.get(name, None)
        if own not in (None, value):
            raise SessionError(
                f"{name} is {own!r}, fkjoin needs {value!r}: {why}. Remove or change that setting."
            )
        spark.conf.set(name, value)
    for name, value in _DEFAULTS.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)
    if spark.conf.get(PARTITIONS, None) is None:
        partitions = 1 if _is_low(spark) else max(2, asked.parallelism())
        spark.conf.set(PARTITIONS, str(partitions))
    asked.set_up(_WORKERS, _SIMPLE)


def require_running(spark: SparkSession) -> None:
    """Raise ``SessionError`` if the session was stopped: nothing made with it works any more."""
    if not is_connect(spark) and java_context(spark.sparkContext) is None:
        raise SessionError(
            "the Spark session was stopped: make a new one with fkjoin.session(), "
            "and create the tables again with it"
        )


def bucket_count(spark: SparkSession) -> int:
    """The buckets of new state: ``spark.fkjoin.buckets``.

    By default they are as many as the shuffle partitions, or with ``spark.fkjoin.latency=low`` one.
    """
    return _positive(spark, BUCKETS, "1" if _is_low(spark) else str(spark.conf.get(PARTITIONS)))


def retention_ms(spark: SparkSession) -> int:
    """The time that tombstone markers stay: ``spark.fkjoin.mark.retention.ms``, or a day."""
    return _positive(spark, RETENTION, str(RETENTION_MS))


def index_dir(spark: SparkSession) -> str:
    """The folder of executors' indexes: ``spark.fkjoin.index.dir``; empty: a temporary one."""
    return spark.conf.get(INDEX_DIR, "") or ""


def validated(spark: SparkSession) -> bool:
    """Tell whether batches check the stores' invariants: ``spark.fkjoin.validate``, or false."""
    return _truth(spark, VALIDATE, "false")


def time_zone(spark: SparkSession) -> str:
    """The session's time zone, in which Spark reads clocks that say no zone."""
    return str(spark.conf.get(TIME_ZONE))


def switched_off(spark: SparkSession) -> dict[str, str]:
    """The optimizer's rules that the session does not want, and why.

    ``spark.fkjoin.optimize=false`` switches off all of them,
    ``spark.fkjoin.optimizer.excludedRules`` those that it names, with commas between them.
    """
    parts = (spark.conf.get(EXCLUDED, "") or "").split(",")
    names = [part.strip() for part in parts if part.strip()]
    for name in names:
        if name not in RULES:
            raise SessionError(f"{EXCLUDED}: there is no rule {name!r}; {nearest(name, RULES)}")
    if not _truth(spark, OPTIMIZE, "true"):
        return dict.fromkeys(RULES, f"{OPTIMIZE} is false")
    return dict.fromkeys(names, f"{EXCLUDED} names it")


def _is_low(spark: SparkSession) -> bool:
    """Tell whether a session wants results soon: ``spark.fkjoin.latency``, ``low`` or ``default``.

    Raises ``SessionError``.
    """
    text = spark.conf.get(LATENCY, "default") or "default"
    if text not in ("low", "default"):
        raise SessionError(f"{LATENCY} is {text!r}: it must be low or default")
    return text == "low"


def _truth(spark: SparkSession, name: str, default: str) -> bool:
    text = (spark.conf.get(name, default) or default).lower()
    if text not in ("true", "false"):
        raise SessionError(f"{name} is {text!r}: it must be true or false")
    return text == "true"


def _positive(spark: SparkSession, name: str, default: str) -> int:
    text = spark.conf.get(name, default) or default
    if not text.isdigit() or int(text) < 1:
        raise SessionError(f"{name} is {text!r}: it must be a whole number of at least 1")
    return int(text)
