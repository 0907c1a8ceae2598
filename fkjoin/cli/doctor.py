"""``fkjoin doctor``: looks at everything that a job needs, and says what to do about what is not right."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.kafka.admin import topic_names
from fkjoin.sessions.class_archive import unused
from fkjoin.sessions.java import ADVICE, found_java
from fkjoin.sessions.settings import session

_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


class Finding(NamedTuple):
    """One thing that was looked at; ``advice`` matters when it is not fine."""

    what: str
    fine: bool
    found: str
    advice: str = ""


def examine(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> list[Finding]:
    """All findings, in the order in which to mend what is wrong; later ones are left out when they need earlier ones."""
    found = [_java(), _pyspark()]
    if all(finding.fine for finding in found):
        found += _session(master, bootstrap_servers, settings)
    return found


def _java() -> Finding:
    return Finding("Java", *found_java(), ADVICE)


def _pyspark() -> Finding:
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    return Finding("PySpark", (4, 2) <= (major, minor) < (5, 0), pyspark.__version__, 'pip install "pyspark>=4.2,<5"')


def _session(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    try:
        spark = session("fkjoin doctor", master, {"spark.ui.enabled": "false", **settings})
    except Exception as error:
        yield Finding(
            "Spark session", False, str(error).splitlines()[0], "see the message above; is the master's address right?"
        )
        return
    yield Finding("Spark session", True, f"{spark.version} on {master}")
    if master.startswith("local"):
        yield from _classes(spark)
    connector = _connector(spark)
    yield connector
    yield _workers(spark)
    if bootstrap_servers and connector.fine:
        yield _brokers(bootstrap_servers)
    spark.stop()


def _classes(spark: SparkSession) -> Iterator[Finding]:
    jvm: Any = spark._jvm
    if (file := unused(jvm.java.lang.ProcessHandle.current().pid())) is not None:
        yield Finding(
            "Spark's classes",
            False,
            f"{file} is of another Java or Spark, so that sessions start without it",
            "run `fkjoin prepare` again, or delete the file",
        )


def _connector(spark: SparkSession) -> Finding:
    advice = (
        "only needed for topics: set spark.jars.packages (spark-submit: --packages) to "
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}; here: --packages the same"
    )
    jvm: Any = spark._jvm
    try:
        found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CONNECTOR)
        place = found.getProtectionDomain().getCodeSource().getLocation().toString().rsplit("/", 1)[-1]
    except Py4JJavaError:
        return Finding("Kafka connector", False, "is not in the session", advice)
    return Finding("Kafka connector", True, place)


def _workers(spark: SparkSession) -> Finding:
    advice = (
        "install fkjoin for the Python of the executors, of the driver's minor version, and name it in spark.pyspark.python"
    )

    def look(_: Any) -> list[str]:
        import platform

        import rocksdict  # noqa: F401

        import fkjoin

        return [f"{platform.python_version()}, fkjoin {fkjoin.__version__}"]

    try:
        found = set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect())
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        return Finding("Python on the workers", False, (lines or str(error).splitlines())[-1].strip()[:300], advice)
    from fkjoin import __version__

    here = f"{platform.python_version()}, fkjoin {__version__}"
    return Finding("Python on the workers", found == {here}, "; ".join(sorted(found)), f"the driver has {here}; {advice}")


def _brokers(bootstrap_servers: str) -> Finding:
    try:
        topics = topic_names(bootstrap_servers, {})
    except FkJoinError as error:
        return Finding("brokers", False, str(error), "check the address, and the brokers' advertised listeners")
    return Finding("brokers", True, f"{bootstrap_servers}, {len(topics)} topics")
