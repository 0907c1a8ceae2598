"""Tests share one JVM.  When somebody else ends it (a machine's cleaning up, for instance), the test that met with that is run
once more in a new one, and the run says so.  A JVM that crashes, runs out of memory or leaves a second time is a failure.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

_SIGNS = (
    *("Connection refused", "Connection reset", "Py4JNetworkError", "Answer from Java side is empty"),
    *("SparkContext was shut down", "stopped SparkContext"),
)
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_BY_OTHERS = {0, *(-number for number in _SIGNALS), *(128 + number for number in _SIGNALS)}
_left: list[str] = []


def stop(spark: Any) -> None:
    """Stop the session, or have PySpark forget one whose JVM is gone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if spark.sparkContext._gateway.proc.poll() is None:
        spark.stop()
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _status(reports: list[pytest.TestReport]) -> int | None:
    """With what status the JVM left; None if it did not, or if no test failed for it."""
    failed = [report.longreprtext for report in reports if report.failed]
    gateway = sys.modules["pyspark"].SparkContext._gateway if "pyspark" in sys.modules else None
    if gateway is None or not any(sign in text for text in failed for sign in _SIGNS):
        return None
    try:
        status: int = gateway.proc.wait(timeout=30)
    except subprocess.TimeoutExpired:
        return None
    return status


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run the test; pytest's own way but for a JVM that leaves."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if (status := _status(reports)) is not None:
        _left.append(f"the JVM left with status {status} at {item.nodeid}")
        if status in _BY_OTHERS and len(_left) == 1:
            item.session._setupstate.teardown_exact(None)
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in _left[:2]:
        terminalreporter.write_line(line)
