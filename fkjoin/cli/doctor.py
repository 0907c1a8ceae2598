"""``fkjoin doctor``: looks at everything that a job needs, and says how to fix what is wrong."""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from fkjoin.errors import FkJoinError, first_line
from fkjoin.kafka.admin import topic_names
from fkjoin.sessions import connector
from fkjoin.sessions.class_archive import unused
from fkjoin.sessions.java import ADVICE, found_java
from fkjoin.sessions.settings import session
from fkjoin.spark.spark_api import jvm

_FAULTS = (
    ((4, 0, 2), "state messages of several MB are read wrongly (SPARK-53870), fixed in 4.0.2"),
    (
        (4, 3),
        "each task of a stateful operator leaves a socket open (SPARK-58932), fixed in 4.3: "
        "allow a job many open files (ulimit -n), and start it again before it has them",
    ),
)
"""Known faults of Spark, and the release that fixes each."""


class Finding(NamedTuple):
    """One thing that was looked at; ``advice`` matters when it is not fine."""

    subject: str
    fine: bool
    state: str
    advice: str = ""


def examine(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> list[Finding]:
    """All findings, in the order in which to fix what is wrong.

    Later ones are left out when they need earlier ones.
    """
    findings = [Finding("Java", *found_java(), ADVICE), _pyspark(), _pandas()]
    if all(finding.fine for finding in findings):
        findings += _session(master, bootstrap_servers, settings)
    return findings


def _pyspark() -> Finding:
    release = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:3])
    faults = [fault for mended, fault in _FAULTS if (4,) <= release < mended]
    fine, state = (4, 0, 2) <= release < (5,), "; ".join([pyspark.__version__, *faults])
    return Finding("PySpark", fine, state, 'pip install "pyspark>=4.0.2,<5"')


def _pandas() -> Finding:
    """pandas, and what PySpark's own check of it says."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            require_minimum_pandas_version()
    except ImportError as error:
        return Finding("pandas", False, str(error), 'pip install "pandas>=2.2"')
    import pandas

    remarks = [f"PySpark says: {warning.message}" for warning in caught]
    return Finding("pandas", True, "; ".join([pandas.__version__, *remarks]))


def _session(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    fetched, chosen = bool(bootstrap_servers) and not settings, {"spark.ui.enabled": "false"}
    try:
        spark = session("fkjoin doctor", master, {**chosen, **settings}, kafka=fetched)
    except Exception as error:
        advice = "see the message above; is the master's address right?"
        yield Finding("Spark session", False, first_line(error), advice)
        return
    yield Finding("Spark session", True, f"{spark.version} on {master}")
    if master.startswith("local"):
        yield from _classes(spark)
    of_connector = _connector(spark, wanted=bool(bootstrap_servers))
    yield of_connector
    yield _workers(spark)
    if bootstrap_servers and of_connector.fine:
        yield _brokers(bootstrap_servers)
    spark.stop()


def _classes(spark: SparkSession) -> Iterator[Finding]:
    if (file := unused(jvm().java.lang.ProcessHandle.current().pid())) is not None:
        state = f"{file} was made with another Java or Spark, so that sessions start without it"
        advice = "run `fkjoin prepare` again, or delete the file"
        yield Finding("Spark's classes", False, state, advice)


def _connector(spark: SparkSession, *, wanted: bool) -> Finding:
    packages = f"--packages {connector.package(spark.version)}"
    advice = f"topics need it: {connector.HOW}; spark-submit, and here: {packages}"
    jar = connector.loaded_jar(spark)
    if jar is None:
        state = "is not in the session" if wanted else f"is not in the session, and only {advice}"
        return Finding("Kafka connector", not wanted, state, advice)
    if connector.misfit(jar, spark.version):
        state = f"{jar} does not fit Spark {spark.version}"
        return Finding("Kafka connector", False, state, advice)
    return Finding("Kafka connector", True, jar)


def _workers(spark: SparkSession) -> Finding:
    subject = "Python on the workers"
    advice = (
        "install fkjoin for the Python of the executors, of the driver's minor version, "
        "and name it in spark.pyspark.python"
    )

    def look(_: Any) -> list[str]:
        import platform

        import rocksdict  # noqa: F401

        import fkjoin

        return [f"{platform.python_version()}, fkjoin {fkjoin.__version__}"]

    try:
        workers = set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect())
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        state = (lines or str(error).splitlines())[-1].strip()[:300]
        return Finding(subject, False, state, advice)
    from fkjoin import __version__

    here, state = f"{platform.python_version()}, fkjoin {__version__}", "; ".join(sorted(workers))
    return Finding(subject, workers == {here}, state, f"the driver has {here}; {advice}")


def _brokers(bootstrap_servers: str) -> Finding:
    try:
        topics = topic_names(bootstrap_servers, {})
    except FkJoinError as error:
        advice = (
            "check the address, and the brokers' advertised listeners; "
            "brokers that want a login: fkjoin run JOB.toml --check"
        )
        return Finding("brokers", False, str(error), advice)
    return Finding("brokers", True, f"{bootstrap_servers}, {len(topics)} topics")
