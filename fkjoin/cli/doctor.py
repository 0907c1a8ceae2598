"""``fkjoin doctor``: looks at everything that a job needs, and says what to do about what is not right."""

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

_FAULTS = (
    ((4, 0, 2), "state messages of several MB are read wrongly (SPARK-53870), mended in 4.0.2"),
    (
        (4, 3),
        "each task of a stateful operator leaves a socket open (SPARK-58932), mended in 4.3: allow a job many open files "
        "(ulimit -n), and start it anew before it has them",
    ),
)
"""Known faults of Spark, and the release that has each mended."""


class Finding(NamedTuple):
    """One thing that was looked at; ``advice`` matters when it is not fine."""

    what: str
    fine: bool
    found: str
    advice: str = ""


def examine(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> list[Finding]:
    """All findings, in the order in which to mend what is wrong; later ones are left out when they need earlier ones."""
    found = [_java(), _pyspark(), _pandas()]
    if all(finding.fine for finding in found):
        found += _session(master, bootstrap_servers, settings)
    return found


def _java() -> Finding:
    return Finding("Java", *found_java(), ADVICE)


def _pyspark() -> Finding:
    release = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:3])
    faults = [fault for mended, fault in _FAULTS if (4,) <= release < mended]
    fine = (4, 0, 2) <= release < (5,)
    return Finding("PySpark", fine, "; ".join([pyspark.__version__, *faults]), 'pip install "pyspark>=4.0.2,<5"')


def _pandas() -> Finding:
    """pandas, and what PySpark's own check of it says."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            require_minimum_pandas_version()
    except ImportError as error:
        return Finding("pandas", False, str(error), 'pip install "pandas>=2.2"')
    import pandas

    return Finding("pandas", True, "; ".join([pandas.__version__, *(f"PySpark says: {one.message}" for one in said)]))


def _session(master: str, bootstrap_servers: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    fetched = bool(bootstrap_servers) and not settings
    try:
        spark = session("fkjoin doctor", master, {"spark.ui.enabled": "false", **settings}, kafka=fetched)
    except Exception as error:
        yield Finding("Spark session", False, first_line(error), "see the message above; is the master's address right?")
        return
    yield Finding("Spark session", True, f"{spark.version} on {master}")
    if master.startswith("local"):
        yield from _classes(spark)
    found = _connector(spark, wanted=bool(bootstrap_servers))
    yield found
    yield _workers(spark)
    if bootstrap_servers and found.fine:
        yield _brokers(bootstrap_servers)
    spark.stop()


def _classes(spark: SparkSession) -> Iterator[Finding]:
    jvm: Any = spark._jvm
    if (file := unused(jvm.java.lang.ProcessHandle.current().pid())) is not None:
        yield Finding(
            "Spark's classes",
            False,
            f"{file} was made with another Java or Spark, so that sessions start without it",
            "run `fkjoin prepare` again, or delete the file",
        )


def _connector(spark: SparkSession, *, wanted: bool) -> Finding:
    advice = f"topics need it: {connector.HOW}; spark-submit, and here: --packages {connector.package(spark.version)}"
    jar = connector.loaded_jar(spark)
    if jar is None:
        found = "is not in the session" if wanted else f"is not in the session, and only {advice}"
        return Finding("Kafka connector", not wanted, found, advice)
    if connector.misfit(jar, spark.version):
        return Finding("Kafka connector", False, f"{jar} does not fit Spark {spark.version}", advice)
    return Finding("Kafka connector", True, jar)


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
        advice = (
            "check the address, and the brokers' advertised listeners; brokers that want a login: fkjoin run JOB.toml --check"
        )
        return Finding("brokers", False, str(error), advice)
    return Finding("brokers", True, f"{bootstrap_servers}, {len(topics)} topics")
