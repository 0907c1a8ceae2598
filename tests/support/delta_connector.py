"""Delta's connector for the Spark of a test run: ``make compat`` asks for it."""

from __future__ import annotations

import os
from importlib.metadata import version

RELEASE = "4.4.0"
"""The release that has a connector for each line of Spark in ``compat.lock``."""


def has_connector() -> bool:
    """Tell whether the session of the tests has it."""
    return "FKJOIN_DELTA" in os.environ


def delta_settings() -> dict[str, str]:
    """Settings of a session that has it; none where the tests do without."""
    if not has_connector():
        return {}
    from fkjoin.analysis.delta_feed import SETTINGS

    line = ".".join(version("pyspark").split(".")[:2])
    small = {"spark.databricks.delta.snapshotPartitions": "2"}  # Delta reads a table's log in 50 tasks by default
    return {"spark.jars.packages": f"io.delta:delta-spark_{line}_2.13:{RELEASE}", **SETTINGS, **small}
