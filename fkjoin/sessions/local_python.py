"""The Python of a local session's workers: this one, started so that they import PySpark quickly."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyspark

from fkjoin.sessions.fork_server import address
from fkjoin.sessions.local_start import FORKS

STARTER = Path(__file__).with_name("local-python")
"""A program that takes the place of Python on the command line of a worker."""

_PYTHON = "FKJOIN_PYTHON"


def use_this_python(context: Any) -> None:
    """Have the workers of a local ``SparkContext`` run on this interpreter, virtual environment included."""
    if sys.platform != "win32" and _installed_with_spark() and os.access(STARTER, os.X_OK):
        context.pythonExec = str(STARTER)
        context.environment[_PYTHON] = sys.executable
        if (forks := address(context.environment)) is not None:
            context.environment[FORKS] = forks
    elif not _is_this(context.pythonExec):
        context.pythonExec = sys.executable


def _installed_with_spark() -> bool:
    """Tell whether workers find the PySpark of this process, and of the JVM, without Spark's archives of it."""
    package = Path(pyspark.__file__).parent
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return package.parent in places and Path(os.environ.get("SPARK_HOME", package)) == package


def _is_this(command: str) -> bool:
    """Tell whether ``command`` starts this very interpreter."""
    found = shutil.which(command)
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()
