"""Spark's Kafka connector: which published release fits a Spark, and how a session comes to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from fkjoin.errors import SessionError

MODULE = "org.apache.spark:spark-sql-kafka-0-10_2.13"

RELEASES = ("4.0.0", "4.1.1", "4.2.0")
"""Newest release of each minor version that the public index has whole, with its module of tokens; oldest first.
``tests/sessions/test_connector.py`` asks the index for each."""

HOW = "start the session with fkjoin.session(kafka=True), in a job file kafka = true in [spark]"
"""The way to the connector, in messages."""

PACKAGES, JARS, EXCLUDES = "spark.jars.packages", "spark.jars", "spark.jars.excludes"

_ARTIFACT = "spark-sql-kafka-0-10_"
_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_IN_SPARK = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
"""Modules that the connector names and that Spark has among its own jars: 50 MB, and a second version of Hadoop's classes."""


def package(spark_version: str = pyspark.__version__) -> str:
    """The connector for a Spark, as ``spark.jars.packages`` names it.

    Parameters
    ----------
    spark_version
        The version of the running Spark.

    Returns
    -------
    str
        The newest release that is of no later minor version than Spark.

    Examples
    --------
    >>> package("4.3.0")
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    return f"{MODULE}:{max((one for one in RELEASES if _minor(one) <= _minor(spark_version)), key=_minor)}"


def with_connector(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the connector among the packages, unless they name one, as package or jar, or Spark has it itself."""
    own = (Path(_find_spark_home()) / "jars").glob(f"{_ARTIFACT}*.jar")
    if any(own) or any(_ARTIFACT in str(settings.get(name, "")) for name in (PACKAGES, JARS)):
        return dict(settings)
    added = {PACKAGES: package(), EXCLUDES: _IN_SPARK}
    return {**settings, **{name: _joined(settings.get(name), more) for name, more in added.items()}}


def _joined(given: Any, more: str) -> str:
    return f"{given},{more}" if given else more


def loaded_jar(spark: SparkSession) -> str | None:
    """The name of the jar that the session has the connector from; None if it has none."""
    jvm: Any = spark._jvm
    try:
        found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CLASS)
    except Py4JJavaError:
        return None
    return str(found.getProtectionDomain().getCodeSource().getLocation().toString().rsplit("/", 1)[-1])


def require(spark: SparkSession) -> None:
    """``SessionError`` if the session lacks the connector: another program started its JVM, or it was started without it."""
    if loaded_jar(spark) is None:
        raise SessionError(
            "kafka: this process has a JVM without Spark's Kafka connector, and takes packages only when its JVM starts. Start "
            f"a new process (a notebook: restart its kernel); under spark-submit, give it --packages {package(spark.version)}"
        )


def misfit(jar: str, spark_version: str) -> bool:
    """Tell whether a jar is of another Spark: not of its minor version, nor of the release that ``package`` names."""
    found = re.search(rf"{_ARTIFACT}[\d.]+-(\d+\.\d+)", jar)
    return found is not None and _minor(found[1]) not in (
        _minor(spark_version),
        _minor(package(spark_version).rpartition(":")[2]),
    )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def unresolved(said: str) -> str | None:
    """A line on a start that ended because packages cannot be had; None if it ended for something else.

    ``said``: all that Spark printed.
    """
    if (wrong := re.search(r"Provided Maven Coordinates must be in the form .*: (\S*)", said)) is not None:
        return f'{PACKAGES}: {wrong[1]!r} is no package; write each as "group:name:version", with commas between them'
    found = re.search(r"^Exception in thread .*?\[((?:unresolved dependency|download failed): .*)\]$", said, re.MULTILINE)
    if found is None:
        return None
    missing = _distinct(":".join(one) for one in re.findall(r": ([\w.-]+)#([\w.-]+);([\w.-]+)", found[1]))
    where = f"tried {', '.join(_distinct(re.findall(r'==== (.+): tried', said)))}"
    if silent := _distinct(re.findall(r"^\s*(?:Host |Server access error at url \w+://)([^/\s]+)", said, re.MULTILINE)):
        where += f"; not reached: {', '.join(silent)}"
    says = f"{PACKAGES}: {', '.join(missing)} cannot be had ({where}); "
    if any("-kafka-0-10_" in one and not one.endswith(RELEASES) for one in missing):
        return f"{says}write {package()}, or leave it out and {HOW}"
    return f"{says}name releases that are published there, another repository in spark.jars.repositories, or jars in {JARS}"


def _distinct(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))
