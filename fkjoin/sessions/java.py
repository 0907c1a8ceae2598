"""The Java that a session's JVM is started with, and what to do if Spark does not run on it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ADVICE = (
    "install a JDK 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless), "
    "or point JAVA_HOME to it"
)

_USABLE = (17, 21)


def found_java() -> tuple[bool, str]:
    """Look for the Java that ``spark-submit`` takes: whether Spark runs on it, and its version."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    try:
        run = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        where = f"at JAVA_HOME, which is {home}" if home else "on the PATH"
        return False, f"there is none {where}"
    version = re.search(r'version "(\d+)([^"]*)"', run.stderr)
    if version is None:
        return False, (run.stderr or run.stdout).strip()[:200]
    return int(version[1]) in _USABLE, f"{version[1]}{version[2]}"


def quoted(path: Path) -> str:
    """Quote a path within options, as ``spark-submit`` and Spark's settings read them."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
