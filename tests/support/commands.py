"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def fkjoin(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``fkjoin …`` to its end."""
    command, given = [sys.executable, "-m", "fkjoin", *map(str, arguments)], os.environ | environment
    return subprocess.run(command, env=given, capture_output=True, text=True, encoding="utf-8", check=False)
