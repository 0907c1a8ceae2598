"""Delta's connector for the Spark of a test run, in ``make compat``."""

from __future__ import annotations

import os
from importlib.metadata import version

RELEASE = "4.4.0"
LINES = ("4.0", "4.1", "4.2")
"""Lines of Spark for which the release has a connector."""

_LINE = ".".join(version("pyspark").split(".")[:2])


def has_connector() -> bool:
    """Tell whether sessions of tests have it."""
    return "FKJOIN_COMPAT" in os.environ and _LINE in LINES


def packages() -> dict[str, str]:
    """Settings of a session that has it; none where there is none."""
    return {"spark.jars.packages": f"io.delta:delta-spark_{_LINE}_2.13:{RELEASE}"} if has_connector() else {}
