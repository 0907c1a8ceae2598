"""Spark's classes in a file, as a JVM has them in its memory, kept by ``fkjoin prepare``.

Local sessions begin with them.  A JVM spends five seconds of processor time and more on reading,
checking and linking the classes that a session and its first batches need (JEP 350: dynamic
archives of classes;
docs/adr/0029-classes-come-from-an-archive.md).  The file is of one Spark and one Java: a JVM for
which it is not right starts as it would without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fkjoin.errors import FkJoinError
from fkjoin.sessions.java import quoted

ARCHIVE_PLACE = "FKJOIN_CLASSES"
"""The variable with another place for the file; empty: none is used."""


def archive() -> Path | None:
    """The path of the file in the Python environment of its PySpark; None where it is unwanted."""
    default = Path(sys.prefix) / "share" / "fkjoin" / "classes.jsa"
    path = os.environ.get(ARCHIVE_PLACE, str(default))
    return Path(path).absolute() if path else None


def options() -> list[str]:
    """The JVM's options with the file, if there is one.

    The JVM's own log is off then, on which it would say that it cannot use the file.
    """
    file = archive()
    if file is None or not file.is_file():
        return []
    return [f"-XX:SharedArchiveFile={quoted(file)} -Xlog:disable"]


def unused(pid: int) -> Path | None:
    """The file, if the JVM with this process id was given it and has left it alone.

    It is of another build of Java, or of other jars.  None also where that cannot be seen (systems
    without ``/proc``).
    """
    file, maps = archive(), Path(f"/proc/{pid}/maps")
    if file is None or not options() or not maps.is_file():
        return None
    return None if str(file.resolve()) in maps.read_text() else file


def make(program: Sequence[str]) -> Path:
    """Run a program that has a local session, and keep the classes that its JVM has loaded by then.

    ``FkJoinError`` when they cannot be kept; what was kept before remains then.
    """
    file = archive()
    if file is None:
        raise FkJoinError(
            f"{ARCHIVE_PLACE} is empty, so that no classes are kept: "
            "unset it, or set it to the path of a file"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="classes-", dir=file.parent) as folder:
            draft = Path(folder) / file.name
            # In place of what is there, which may name the file: a JVM cannot both begin with one
            # and make one.
            dump = f"-XX:ArchiveClassesAtExit={quoted(draft)}"
            environment = os.environ | {ARCHIVE_PLACE: "", "SPARK_SUBMIT_OPTS": dump}
            # Until the last holder of the pipe is gone: the JVM, which writes the file when the
            # program has ended.
            output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            run = subprocess.run(program, env=environment, errors="replace", check=False, **output)
            if run.returncode or not draft.is_file():
                raise FkJoinError(
                    f"no classes were kept ({program[0]} left with status {run.returncode}); "
                    "`fkjoin doctor` says whether Java and Spark are right. The end of its "
                    f"output:\n{run.stdout[-2000:].strip()}"
                )
            draft.replace(file)
    except OSError as error:
        raise FkJoinError(
            f"classes cannot be kept in {file}: {error}; set {ARCHIVE_PLACE} to a file that can be "
            "written"
        ) from error
    return file
