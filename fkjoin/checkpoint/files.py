"""Small files beside a checkpoint, on whatever file system it is on."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fkjoin.checkpoint.damage import RESTORE
from fkjoin.errors import FkJoinError
from fkjoin.sessions.access import access
from fkjoin.sessions.arrow_files import ArrowFiles, replace_local
from fkjoin.sessions.settings import require_running
from fkjoin.spark.cause import cause_of
from fkjoin.spark.spark_api import java_gateway, jvm


def hadoop(spark: SparkSession, where: str) -> tuple[Any, Any]:
    """A path, and the file system that it is on; ``FkJoinError`` if the session has none for it."""
    require_running(spark)
    try:
        return access(spark).file(where)
    except (Py4JJavaError, PySparkException) as error:
        raise FkJoinError(
            f"{where} cannot be opened: {cause_of(error)}; give a place that this session can "
            f"reach, or {_what_is_lacking(spark, where)}"
        ) from error


_LIBRARIES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""Hadoop's libraries for file systems that Spark comes without."""


def _what_is_lacking(spark: SparkSession, where: str) -> str:
    """Say what would let a session reach a place."""
    if (library := _LIBRARIES.get(where.partition(":")[0])) is None:
        return (
            "a session the jars and the settings of its file system "
            "(spark.jars.packages, spark.hadoop.…)"
        )
    jvm: Any = getattr(spark, "_jvm", None)  # a client of Spark Connect has none
    version = "VERSION" if jvm is None else jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    return f'a session the setting spark.jars.packages = "org.apache.hadoop:{library}:{version}"'


def read_file(path: Any, files: Any) -> bytes:
    """Read all of a file."""
    if isinstance(files, ArrowFiles):
        return files.read(path)
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def write_file(path: Any, files: Any, data: bytes) -> None:
    """Make a file, or replace it in one step.

    A process that is killed meanwhile leaves the file unchanged.
    """
    local = local_path(path, files)
    with _writing(path, local):
        if isinstance(files, ArrowFiles):
            files.write(path, data)
            return
        if local is not None:
            replace_local(local, data)
            return
        scheme = files.getUri().getScheme()
        # An object store shows a file when it is whole.
        draft = path.suffix(".draft") if scheme == "hdfs" else path
        _create(draft, files, data, True)
        if scheme == "hdfs":
            _rename(files, draft, path, "OVERWRITE")


def create_file(path: Any, files: Any, data: bytes) -> bool:
    """Make a file; False, and nothing has changed, if it is there.

    Of two processes that do it at a time one succeeds, on a machine's disk and on HDFS.  An object
    store may let both.
    """
    local = local_path(path, files)
    with _writing(path, local):
        if local is not None:
            return _create_local(local, data)
        if files.exists(path):
            return False
        if isinstance(files, ArrowFiles):
            files.write(path, data)
            return True
        try:
            _create(path, files, data, False)
        except Py4JJavaError:
            if files.exists(path):
                return False
            raise
        return True


def _create(path: Any, files: Any, data: bytes, overwrite: bool) -> None:
    out = files.create(path, overwrite)
    out.write(data)
    out.close()


def _create_local(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(data)
    try:
        os.link(draft, path)  # whole at once
    except FileExistsError:
        return False
    except OSError:  # such a file system has no links
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def _writing(path: Any, local: Path | None) -> Iterator[None]:
    """Raise ``FkJoinError`` for what a file system says while a file is written."""
    try:
        yield
    except OSError as error:
        why = None if local is None else _obstacle(local.parent)
        folder = str(path).rpartition("/")[0].removeprefix("file:")
        raise _unwritable(folder, why or str(error.strerror or error)) from error
    except Py4JJavaError as error:
        raise _unwritable(path.getParent(), str(error.java_exception.getMessage())) from error


def require_writable(folder: Path) -> None:
    """Raise ``FkJoinError`` if a folder on this machine cannot be, or cannot be written to."""
    require_folder(folder)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _unwritable(folder, f"{existing} is not this user's to write to")
    # Root may write anywhere, but not to a file system that has no files, such as /proc.
    if os.geteuid() == 0:
        try:
            Path(tempfile.mkdtemp(prefix=".fkjoin-", dir=existing)).rmdir()
        except OSError as error:
            raise _unwritable(folder, f"{existing}: {error.strerror}") from error


def require_folder(folder: Path) -> None:
    """Raise ``FkJoinError`` if a folder on this machine is not there and cannot be made."""
    if (why := _obstacle(folder.absolute())) is not None:
        raise _unwritable(folder, why)


def _unwritable(folder: Any, why: str) -> FkJoinError:
    return FkJoinError(
        f"{folder} cannot be written to: {why}; make that folder, or give another place"
    )


def _obstacle(folder: Path) -> str | None:
    """Find what on the way to a folder is none, and say why it cannot be made; None if it can."""
    for path in reversed([folder, *folder.parents]):
        if path.is_symlink() and not path.exists():
            return f"{path} is a link to {path.readlink()}, which does not exist"
        if path.exists() and not path.is_dir():
            return f"{path} is a file"
    return None


def local_path(path: Any, files: Any) -> Path | None:
    """Return the path on this machine, if it is there."""
    if isinstance(files, ArrowFiles):
        return Path(path.partition(":")[2]) if files.here else None
    if files.getUri().getScheme() != "file":
        return None
    return Path(files.makeQualified(path).toUri().getPath())


def moved(path: Any, target: Any, files: Any) -> bool:
    """Give a file or a folder another name, in one step.

    False, with both unchanged, if something is there already.  Hadoop's own ``rename`` puts what it
    moves into a folder of that name, or copies it there.  Raises ``FkJoinError``.
    """
    source, local = local_path(path, files), local_path(target, files)
    try:
        if source is not None and local is not None:
            source.rename(local)
        else:
            _rename(files, path, target)
    except (OSError, Py4JJavaError) as error:
        if files.exists(path) and files.exists(target):
            return False
        why = (
            error.java_exception.getMessage()
            if isinstance(error, Py4JJavaError)
            else error.strerror or error
        )
        raise FkJoinError(
            f"{path} cannot be renamed to {target}: {why}. Is the folder writable, and does no "
            "other run of the query write there? Start the query again"
        ) from error
    return True


def numbered(spark: SparkSession, folder: str) -> list[tuple[int, str]]:
    """The files of a log of Spark's, by their numbers, the oldest first."""
    path, files = hadoop(spark, folder)
    paths = [status.getPath() for status in files.listStatus(path)] if files.exists(path) else []
    return sorted((int(path.getName()), str(path)) for path in paths if path.getName().isdigit())


def _rename(files: Any, path: Any, target: Any, *options: str) -> None:
    if isinstance(files, ArrowFiles):
        files.rename(path, target)
        return
    hadoop_fs = jvm().org.apache.hadoop.fs
    kinds = hadoop_fs.Options.Rename
    chosen = java_gateway().new_array(kinds, len(options))
    for index, option in enumerate(options):
        chosen[index] = getattr(kinds, option)
    of_scheme = hadoop_fs.FileContext.getFileContext(files.getUri(), files.getConf())
    of_scheme.rename(files.makeQualified(path), files.makeQualified(target), chosen)


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Tell whether a query was started with the checkpoint.

    ``FkJoinError`` if the query has batches, and the file with its id is lost.
    """
    if _has_id(spark, checkpoint):
        return True
    if any(numbered(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits")):
        raise FkJoinError(
            f"checkpoint {checkpoint} is damaged: its file metadata is lost; {RESTORE}"
        )
    return False


def begun_below(spark: SparkSession, folder: str, names: tuple[str, ...]) -> bool:
    """Tell whether a query was started with a folder in this one.

    ``names``: beginnings of its name.
    """
    path, files = hadoop(spark, folder)
    below = [status.getPath() for status in files.listStatus(path)] if files.exists(path) else []
    checkpoints = [path for path in below if path.getName().startswith(names)]
    return any(_has_id(spark, str(checkpoint)) for checkpoint in checkpoints)


def _has_id(spark: SparkSession, checkpoint: str) -> bool:
    path, files = hadoop(spark, f"{checkpoint}/metadata")
    return bool(files.exists(path) and files.isFile(path))


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of a checkpoint's query."""
    return str(json.loads(read_file(*hadoop(spark, f"{checkpoint.rstrip('/')}/metadata")))["id"])
