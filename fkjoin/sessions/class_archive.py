"""Spark's classes in a file, as a JVM has them in its memory: local sessions begin with what ``fkjoin prepare`` has kept.

A JVM spends five seconds of processor time and more on reading, checking and linking the classes that a session and its first
batches need (JEP 350: dynamic archives of classes; docs/adr/0029-classes-come-from-an-archive.md).  The file is of one
Spark and one Java: a JVM for which it is not right starts as it would without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fkjoin.errors import FkJoinError
from fkjoin.sessions.java import OPTION_VARIABLES, quoted

ARCHIVE_PLACE = "FKJOIN_CLASSES"
"""The variable with another place for the file; empty: none is used."""

_FLAGS = "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare"


def place(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The place of the file, there or not, in the Python environment of its PySpark; None where it is not wanted."""
    given = environment.get(ARCHIVE_PLACE)
    if given is None:
        return Path(sys.prefix) / "share" / "fkjoin" / "classes.jsa"
    return Path(given).absolute() if given else None


def options(java_options: str, environment: Mapping[str, str] = os.environ) -> str:
    """The JVM's options with the file, if there is one and nothing is said about archives yet.

    The JVM's own log is off then, on which it would say that it cannot use the file.
    """
    file = place(environment)
    said = java_options, *(environment.get(name, "") for name in OPTION_VARIABLES)
    if file is None or not file.is_file() or any(flag in text for text in said for flag in _FLAGS):
        return java_options
    return f"-XX:SharedArchiveFile={quoted(file)} -Xlog:disable {java_options}".rstrip()


def unused(pid: int) -> Path | None:
    """The file, if local sessions are given it and the JVM with this process id has left it alone: it is of another build of
    Java, or of other jars.  None also where that cannot be seen (systems without ``/proc``).
    """
    file, maps = place(), Path(f"/proc/{pid}/maps")
    if file is None or not options("") or not maps.is_file():
        return None
    return None if str(file.resolve()) in maps.read_text() else file


def make(program: Sequence[str]) -> Path:
    """Run a program that has a local session, and keep the classes that its JVM has loaded by then.

    ``FkJoinError`` when they cannot be kept; what was kept before remains then.
    """
    file = place()
    if file is None:
        raise FkJoinError(f"{ARCHIVE_PLACE} is empty, so that no classes are kept: unset it, or set it to the path of a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="classes-", dir=file.parent) as folder:
            draft = Path(folder) / file.name
            # In place of what is there, which may name the file: a JVM cannot both begin with one and make one.
            environment = os.environ | {ARCHIVE_PLACE: "", "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={quoted(draft)}"}
            # Until the last holder of the pipe is gone: the JVM, which writes the file when the program has ended.
            pipe = subprocess.PIPE
            run = subprocess.run(program, env=environment, stdout=pipe, stderr=subprocess.STDOUT, errors="replace", check=False)
            if run.returncode or not draft.is_file():
                raise FkJoinError(
                    f"no classes were kept ({program[0]} left with status {run.returncode}); "
                    f"`fkjoin doctor` says whether Java and Spark are right. Its last words:\n{run.stdout[-2000:].strip()}"
                )
            draft.replace(file)
    except OSError as error:
        raise FkJoinError(
            f"classes cannot be kept in {file}: {error}; set {ARCHIVE_PLACE} to a file that can be written"
        ) from error
    return file
