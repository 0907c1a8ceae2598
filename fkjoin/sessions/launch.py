"""The start of a session's JVM, which gets settings in files that only this user reads.

The JVM ends when this process ends.  PySpark's own start puts settings on the command line, which
every user of the machine sees, and forgets a JVM whose start is interrupted
(docs/adr/0038-fkjoin-starts-the-jvm.md).
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from fkjoin.errors import SessionError
from fkjoin.sessions import class_archive, words
from fkjoin.sessions.connector import unresolved
from fkjoin.sessions.java import ADVICE, found_java, quoted
from fkjoin.sessions.own_folder import HeldFolder
from fkjoin.spark.spark_api import java_gateway, jvm, spark_home, use_gateway

_FILE = "--properties-file"
_JAVA = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
_PROGRESS = "spark.ui.showConsoleProgress"
"""Spark's bar, which is a line without an end: then standard error of the JVM is this process's."""

_SOCKETS = "spark.python.unix.domain.socket"
"""Sockets of files are a tenth of a small batch faster than sockets of a network.

They are closed to others, too.
"""

_SOCKET_NAME, _LONGEST_SOCKET = len("/.01234567-89ab-cdef-0123-456789abcdef.sock"), 103
"""Bytes of the name that Spark gives to a socket, and of the longest path on any system."""

_END_S = 2.0
"""The time that a process may need to end after its connections have broken."""

_starting = threading.Lock()


def launch(settings: Mapping[str, str]) -> None:
    """Start this process's JVM, unless it has one, or was given one by ``spark-submit``."""
    with _starting:
        is_remote = "spark.remote" in settings or "spark.api.mode" in settings
        if is_remote or any(name in os.environ for name in (*_REMOTE, _PORT)):
            return
        if java_gateway() or sys.platform == "win32":
            return
        folder = HeldFolder()
        atexit.register(folder.let_go)
        # Until the JVM has read its files.
        with tempfile.TemporaryDirectory(dir=folder.path) as start:
            gateway = _started(settings, folder, Path(start))
        use_gateway(gateway)
        # Its own hook, which removes the folder when the JVM ends, however this process does.
        hooks = jvm().org.apache.spark.util.ShutdownHookManager
        hooks.registerShutdownDeleteDir(jvm().java.io.File(str(folder.path)))


def end_of_jvm(error: BaseException) -> SessionError | None:
    """Say how this process's JVM has ended; None while it runs, and of one that others started.

    ``error``: what has gone wrong.  A connection that breaks is noticed some time before the end of
    the process.
    """
    process: subprocess.Popen[bytes] | None = getattr(java_gateway(), "proc", None)
    if process is None:
        return None
    is_connection = isinstance(error, OSError | Py4JError) and not isinstance(error, Py4JJavaError)
    try:
        return SessionError(_how_it_ended(process.wait(_END_S if is_connection else 0)))
    except subprocess.TimeoutExpired:
        return None


def _how_it_ended(status: int) -> str:
    """Say how a JVM has ended, by the status of its process, and what to do."""
    if status == -signal.SIGKILL:
        return (
            "the JVM was killed (SIGKILL), as systems do when memory runs out. Give the machine "
            "or the container more memory, or the JVM less (spark.driver.memory), and start "
            "again: a job continues from its checkpoint"
        )
    how = f"has ended with status {status}"
    if status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
    advice = "Read the end of Spark's log, fix the cause, and start again"
    return f"the JVM {how}. {advice}: a job continues from its checkpoint"


def _started(settings: Mapping[str, str], folder: HeldFolder, start: Path) -> JavaGateway:
    """A JVM that waits for commands; one that is interrupted is killed.

    ``start``: an empty folder for its files.
    """
    is_local = settings.get("spark.master", "").startswith("local")
    answer = start / "gateway"
    environment = os.environ | {
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SUBMIT_OPTS": _java_options(folder.path, is_local=is_local),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
    }
    sockets = _sockets(folder.path) if is_local else {}
    arguments = _arguments(sockets | dict(settings), start)
    output = words.output()
    output.everything = words.LOG_LEVEL in settings
    output.held = True
    try:
        process = subprocess.Popen(
            # The JVM leaves Ctrl-C to its parent.
            ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *arguments],
            stdin=subprocess.PIPE,  # the JVM ends when it closes
            stderr=None if settings.get(_PROGRESS) == "true" else output.writing,
            env=environment,
            pass_fds=[] if folder.lock is None else [folder.lock],
        )
        try:
            return _connected(process, answer)
        except BaseException:
            process.kill()
            process.wait()
            raise
    except SessionError:  # which says all that there is to say
        output.waiting.clear()
        raise
    finally:
        output.release()


def _connected(process: subprocess.Popen[bytes], answer: Path) -> JavaGateway:
    """PySpark's end of the connection, as it makes it to a JVM that others have started."""
    while not answer.is_file():
        if process.poll() is not None:
            raise _failure(process.returncode)
        time.sleep(0.05)
    with answer.open("rb") as info:
        os.environ[_PORT] = str(read_int(info))  # type: ignore[no-untyped-call]
        os.environ[_SECRET] = UTF8Deserializer().loads(info)  # type: ignore[no-untyped-call]
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]
    gateway.proc = process
    return gateway


def _failure(status: int) -> Exception:
    """An error of a JVM that has ended before it was up."""
    if (reason := unresolved(words.output().said())) is not None:
        return SessionError(reason)
    if status == -signal.SIGKILL:
        return SessionError(_how_it_ended(status))
    usable, java = found_java()
    if not usable:
        return SessionError(f"Java: {java}, so that no session can start: {ADVICE}")
    return PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def _java_options(folder: Path, *, is_local: bool) -> str:
    """Options of the JVM before the user's options, which have precedence."""
    options = [f"-Djava.io.tmpdir={quoted(folder)}"]
    if is_local:
        options += class_archive.options()
    # Java reads these before the command line.
    before = "".join(os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"))
    options = [option for option in options if option.partition("=")[0] not in before]
    return " ".join([*options, os.environ.get("SPARK_SUBMIT_OPTS", "")])


def _sockets(folder: Path) -> dict[str, str]:
    """Settings for sockets in the folder, if their paths are short enough."""
    if len(os.fsencode(folder)) + _SOCKET_NAME > _LONGEST_SOCKET:
        return {f"{_SOCKETS}.enabled": "false"}
    return {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": str(folder)}


def _arguments(settings: Mapping[str, str], start: Path) -> list[str]:
    """The command line of ``spark-submit``: the environment's, and a file with the settings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(_FILE, type=Path, dest="file")
    submitted = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    theirs, arguments = parser.parse_known_args(submitted)
    # Spark reads one such file: ours begins with what is in theirs.
    text = ""
    if theirs.file is None:
        arguments.insert(0, "--load-spark-defaults")
    else:
        try:
            text = theirs.file.read_text(encoding="utf-8") + "\n"
        except OSError as error:
            reason = f"{theirs.file}: {error.strerror}; correct the path"
            message = f"PYSPARK_SUBMIT_ARGS: {_FILE} {reason}"
            raise SessionError(message) from error
    properties = start / "settings"
    for name, value in _with_java_options(settings, start / "java-options").items():
        text += f"{_escaped(name)}={_escaped(value)}\n"
    _write(properties, text)
    submit = Path(spark_home()) / "bin" / "spark-submit"
    return [str(submit), _FILE, str(properties), *arguments]


def _with_java_options(settings: Mapping[str, str], file: Path) -> dict[str, str]:
    """The settings, with Java's options in a file that they name.

    Spark would put the options on a command line.
    """
    lines, changed = "", dict(settings)
    for name in _JAVA:
        try:
            options = shlex.split(settings.get(name, ""))
        except ValueError:  # Spark would print them all, and a secret may be in them
            reason = "a quotation mark has no other one, or nothing follows the last backslash"
            message = f"{name}: {reason}; add what is missing"
            raise SessionError(message) from None
        # Spark refuses this one, and says which setting there is.
        heap = [option for option in options if option.startswith("-Xmx")]
        for option in options:
            if option not in heap:
                lines += json.dumps(option, ensure_ascii=False) + "\n"
        if options:
            changed[name] = " ".join([*heap, f"@{file}"])
    _write(file, lines)
    return changed


def _write(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")


def _escaped(text: str) -> str:
    """Escape as Java reads properties: the number of each unit of UTF-16."""
    return re.sub("....", r"\\u\g<0>", text.encode("utf-16-be", "surrogatepass").hex())
