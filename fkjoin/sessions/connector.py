"""Spark's Kafka connector: which published release fits a Spark, and how a session comes to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fkjoin.errors import SessionError
from fkjoin.spark.spark_api import jvm, spark_home

MODULE = "org.apache.spark:spark-sql-kafka-0-10_2.13"

RELEASES = ("4.0.0", "4.1.1", "4.2.0")
"""Newest release of each minor version that the public index has whole; oldest first.

It has the module of tokens, too.  ``tests/sessions/test_connector.py`` asks the index for each.
"""

HOW = "start the session with fkjoin.session(kafka=True), in a job file kafka = true in [spark]"
"""The way to the connector, in messages."""

PACKAGES, JARS, EXCLUDES = "spark.jars.packages", "spark.jars", "spark.jars.excludes"

_WRONG = re.compile(r"Provided Maven Coordinates must be in the form .*: (\S*)")
_UNRESOLVED = re.compile(
    r"^Exception in thread .*?\[((?:unresolved dependency|download failed): .*)\]$", re.MULTILINE
)
_COORDINATES = re.compile(r": ([\w.-]+)#([\w.-]+);([\w.-]+)")
_SILENT = re.compile(r"^\s*(?:Host |Server access error at url \w+://)([^/\s]+)", re.MULTILINE)
"""Texts of Spark's resolver of packages."""

_ARTIFACT = "spark-sql-kafka-0-10_"
_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_IN_SPARK = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
"""Modules that the connector names and that Spark has: 50 MB, and Hadoop's classes once more."""


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
    fitting = [release for release in RELEASES if _minor(release) <= _minor(spark_version)]
    return f"{MODULE}:{max(fitting, key=_minor)}"


def with_connector(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the connector among the packages, unless they or Spark have one."""
    own = (Path(spark_home()) / "jars").glob(f"{_ARTIFACT}*.jar")
    if any(own) or any(_ARTIFACT in str(settings.get(name, "")) for name in (PACKAGES, JARS)):
        return dict(settings)
    whole = dict(settings)
    for name, more in {PACKAGES: package(), EXCLUDES: _IN_SPARK}.items():
        whole[name] = f"{whole[name]},{more}" if whole.get(name) else more
    return whole


def loaded_jar(spark: SparkSession) -> str | None:
    """The name of the jar that the session has the connector from; None if it has none."""
    try:
        provider = jvm().java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CLASS)
    except Py4JJavaError:
        return None
    jar = provider.getProtectionDomain().getCodeSource().getLocation()
    return str(jar.toString().rsplit("/", 1)[-1])


def require(spark: SparkSession) -> None:
    """``SessionError`` if the session lacks the connector.

    Another program started its JVM, or it was started without it.
    """
    if loaded_jar(spark) is None:
        raise SessionError(
            "kafka: this process has a JVM without Spark's Kafka connector, and takes packages "
            "only when its JVM starts. Start a new process (a notebook: restart its kernel); "
            f"under spark-submit, give it --packages {package(spark.version)}"
        )


def misfit(jar: str, spark_version: str) -> bool:
    """Tell whether a jar is of another Spark, and not of the release that ``package`` names."""
    match = re.search(rf"{_ARTIFACT}[\d.]+-(\d+\.\d+)", jar)
    published = package(spark_version).rpartition(":")[2]
    fitting = _minor(spark_version), _minor(published)
    return match is not None and _minor(match[1]) not in fitting


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def unresolved(output: str) -> str | None:
    """A line on a start that ended because packages cannot be had; None if it ended otherwise.

    ``output``: all that Spark printed.
    """
    if (wrong := _WRONG.search(output)) is not None:
        advice = 'write each as "group:name:version", with commas between them'
        return f"{PACKAGES}: {wrong[1]!r} is not a package; {advice}"
    match = _UNRESOLVED.search(output)
    if match is None:
        return None
    missing = list(dict.fromkeys(":".join(parts) for parts in _COORDINATES.findall(match[1])))
    where = f"tried {', '.join(dict.fromkeys(re.findall(r'==== (.+): tried', output)))}"
    if silent := dict.fromkeys(_SILENT.findall(output)):
        where += f"; not reached: {', '.join(silent)}"
    problem = f"{PACKAGES}: {', '.join(missing)} cannot be downloaded ({where}); "
    if any("-kafka-0-10_" in name and not name.endswith(RELEASES) for name in missing):
        return f"{problem}write {package()}, or leave it out and {HOW}"
    advice = "name releases that are published there, another repository in spark.jars.repositories"
    return f"{problem}{advice}, or jars in {JARS}"
