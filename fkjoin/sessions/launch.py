"""The start of a session's JVM: settings go to it in files that only this user reads, and it ends when this process ends.

PySpark's own start puts settings on the command line, which every user of the machine sees, and forgets a JVM whose start is
interrupted (docs/adr/0038-fkjoin-starts-the-jvm.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from fkjoin.errors import SessionError
from fkjoin.sessions import words
from fkjoin.sessions.connector import PACKAGES, unresolved
from fkjoin.sessions.java import ADVICE, OPTION_VARIABLES, found_java, quoted
from fkjoin.sessions.own_folder import own_folder, own_lock

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_JAVA = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
_TEMPORARY = "-Djava.io.tmpdir="

_END_S = 2.0
"""The time that a process may need to end after its connections have broken."""
_SET_PARENT_DEATH_SIGNAL = 1
"""Option of Linux's prctl."""


_starting = threading.Lock()
_is_ours = False
"""True once fkjoin has started the JVM of this process."""


def jvm_folder(settings: Mapping[str, Any]) -> Path | None:
    """The folder of this process, if fkjoin starts, or has started, its JVM."""
    return own_folder() if _is_ours or _wanted(settings) else None


def launch(settings: Mapping[str, Any]) -> None:
    """Start this process's JVM, unless it has one, or was given one by ``spark-submit``."""
    global _is_ours
    with _starting:
        if not _wanted(settings):
            return
        folder = own_folder()
        with tempfile.TemporaryDirectory(prefix="start-", dir=folder) as start:  # until the JVM has read the files
            files = [Path(start) / name for name in ("settings", "java-options", "gateway")]
            arguments = _arguments(settings, *files[:2])
            told = *(os.environ.get(name, "") for name in OPTION_VARIABLES), *(str(settings.get(name, "")) for name in _JAVA)
            temporary = None if any(_TEMPORARY in text for text in told) else folder
            output = words.output(settings, held=PACKAGES in settings or "--packages" in arguments)
            process, port, secret = _started(arguments, temporary, files[2], output)
        SparkContext._ensure_initialized(gateway=_connected(process, port, secret))
        _is_ours = True
        # Its own hook, which removes the folder when the JVM ends, however this process does.
        SparkContext._jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(  # type: ignore[union-attr]
            SparkContext._jvm.java.io.File(str(folder))  # type: ignore[union-attr]
        )


def end_of_jvm(error: BaseException) -> SessionError | None:
    """Say how this process's JVM has ended, if it has; None while it runs, and of one that others have started.

    ``error``: what has gone wrong.  A connection that breaks is noticed some time before the end of the process.
    """
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    is_connection = isinstance(error, OSError | Py4JError) and not isinstance(error, Py4JJavaError)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S if is_connection else 0)
    return None if process.returncode is None else SessionError(_how_it_ended(process.returncode))


def _how_it_ended(status: int) -> str:
    """Say how a JVM has ended, by the status of its process, and what to do."""
    if status == -signal.SIGKILL:
        return (
            "the JVM was killed (SIGKILL), as systems do when memory runs out. Give the machine or the container more memory, "
            "or the JVM less (spark.driver.memory), and start again: a job goes on from its checkpoint"
        )
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
    return f"the JVM {how}. Read the end of Spark's log, mend that, and start again: a job goes on from its checkpoint"


def _wanted(settings: Mapping[str, Any]) -> bool:
    remote = "spark.remote" in settings or "spark.api.mode" in settings or any(name in os.environ for name in _REMOTE)
    return not (SparkContext._gateway or _PORT in os.environ or remote or sys.platform == "win32")


def _arguments(settings: Mapping[str, Any], properties: Path, java_options: Path) -> list[str]:
    """Return the arguments of ``spark-submit``: those of the environment, and a file with the settings."""
    given, theirs = shlex.split(os.environ.get(_ARGUMENTS, "pyspark-shell")), ""
    if (at := next((n for n, one in enumerate(given) if one.partition("=")[0] == _FILE), None)) is not None:
        # Spark reads one such file: ours begins with what is in theirs.
        name = given.pop(at).partition("=")[2] or given.pop(at)
        try:
            theirs = Path(name).read_text(encoding="utf-8") + "\n"
        except OSError as error:
            says = f"{_ARGUMENTS}: {_FILE} {name} cannot be read: {error.strerror}; name one that is there, or none"
            raise SessionError(says) from error
    else:
        given.insert(0, "--load-spark-defaults")
    kept, lines = dict(settings), []
    for name in _JAVA:
        if name in kept and (options := _options(name, kept[name])):
            for_spark = [one for one in options if one.startswith("-Xmx")]  # it says which setting that is
            lines += [one for one in options if one not in for_spark]
            kept[name] = " ".join([*for_spark, f"@{java_options}"])
    _write(java_options, "".join(f"{_quoted(line)}\n" for line in lines))
    _write(properties, theirs + "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in kept.items()))
    return [_FILE, str(properties), *given]


def _options(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # Spark would print them all, and a secret may be in them
        says = f"{name}: a quotation mark has no other one, or nothing follows the last backslash; add what is missing"
        raise SessionError(says) from None


def _started(
    arguments: list[str], temporary: Path | None, answer: Path, output: words.FilteredOutput | None = None
) -> tuple[subprocess.Popen[bytes], int, str]:
    """A JVM that waits for commands: its process, its port, and what to say there.  One that is interrupted is killed.

    ``output``: where its standard error goes, if not to this process's; ``SessionError`` for packages that cannot be had.
    """
    environment = os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)}
    if temporary is not None:
        environment["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_TEMPORARY}{quoted(temporary)}".lstrip()
    lock = own_lock()
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_held_back():
            process = subprocess.Popen(
                [str(Path(_find_spark_home()) / "bin" / "spark-submit"), *arguments],
                stdin=subprocess.PIPE,  # the JVM ends when it closes
                stderr=None if output is None else output.pump.writing,
                env=environment,
                pass_fds=[] if lock is None else [lock],
                preexec_fn=_bound_to(os.getpid()),
            )
        while not answer.is_file():
            if process.poll() is not None:
                if output is not None and (says := unresolved(output.said())) is not None:
                    raise SessionError(says)
                if process.returncode == -signal.SIGKILL:
                    raise SessionError(_how_it_ended(process.returncode))
                fine, java = found_java()
                if not fine:
                    raise SessionError(f"Java: {java}, so that no session can start: {ADVICE}")
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            time.sleep(0.05)
        with answer.open("rb") as info:
            started = process, read_int(info), UTF8Deserializer().loads(info)  # type: ignore[no-untyped-call]
        if output is not None:
            output.release()
        return started
    except BaseException as error:
        if process is not None:
            process.kill()
            process.wait()
        if output is not None:
            if not isinstance(error, SessionError):  # which says all that there is to say
                output.release()
            output.pump.leave()
        raise


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM after the block.

    Python drops what a handler raises within a fork hook, such as logging's: the process would go on as if it had not been told
    to end.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread only
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not None}  # None: not Python's
    for number in before:
        signal.signal(number, lambda told, _: held.append(told))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for told in held:
            signal.raise_signal(told)


def _bound_to(parent: int) -> Callable[[], None]:
    """For the new process: it leaves Ctrl-C to its parent, and is terminated when that ends.

    The last on Linux, where it is the thread that counts: from any but the main one, the JVM ends when its input does.
    """
    prctl: Any = None
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        prctl = ctypes.CDLL(None).prctl

    def bind() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if prctl is not None:
            prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != parent:  # it has ended meanwhile
                os._exit(1)

    return bind


def _connected(process: subprocess.Popen[bytes], port: int, secret: str) -> JavaGateway:
    """PySpark's end of the connection, as it makes it to a JVM that others have started."""
    os.environ |= {_PORT: str(port), _SECRET: secret}
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        for name in (_PORT, _SECRET):
            del os.environ[name]
    gateway.proc = process
    return gateway


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")


def _quoted(option: str) -> str:
    """Quote as the JVM reads options in files."""
    for character, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        option = option.replace(character, written)
    return f'"{option}"'


def _escaped(text: str) -> str:
    """Escape as Java reads properties."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isalnum() and code < 128 else f"\\u{code:04x}" for code in codes)
