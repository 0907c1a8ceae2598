"""``Files``: each implementation does the same with the same files, and says the same of what cannot be done."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyspark.sql import SparkSession

from fkjoin.errors import FkJoinError
from fkjoin.spark.spark_api import hadoop_settings, jvm
from fkjoin.storage import hadoop_files
from fkjoin.storage.arrow_files import ArrowFiles, without_spark
from fkjoin.storage.files import Files
from fkjoin.storage.hadoop_files import HadoopFiles
from fkjoin.storage.local_files import LocalFiles
from fkjoin.storage.worker_files import WorkerFiles, of_client


class Frame:
    """A frame of one row, which a function of batches is applied to."""

    def mapInArrow(self, function: Any, schema: str) -> Frame:  # noqa: N802  as Spark has it
        (self.batch,) = function(iter([pa.record_batch({"id": [0]})]))
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.batch.to_pylist()]


class Session:
    """A session whose workers are this process."""

    session_id = "one"

    def range(self, *_: int) -> Frame:
        return Frame()


SESSION: Any = Session()


def by_arrow(folder: Path) -> Files:
    files = ArrowFiles.__new__(ArrowFiles)
    files.root, files._system, files._folder = f"file:{folder}", LocalFileSystem(), str(folder)
    return files


def by_hadoop(folder: Path) -> Files:
    path = jvm().org.apache.hadoop.fs.Path(str(folder))
    system = path.getFileSystem(hadoop_settings(SparkSession.active().sparkContext))
    return HadoopFiles(f"file:{folder}", system)


WITHOUT_A_JVM = {
    "local": LocalFiles,
    "by a worker": lambda folder: WorkerFiles(SESSION, f"file:{folder}"),
    "by Arrow": by_arrow,
}


def files_are_made_replaced_read_and_deleted(files: Files, folder: Path) -> None:
    assert files.status("a folder/ä.json") is None
    assert not files.is_file("a folder/ä.json")
    files.make_folder("a folder")
    files.make_folder("a folder")
    for data in (b"\0one", b"two"):
        files.write("a folder/ä.json", data)
        assert files.read("a folder/ä.json") == data
        assert [files.read_end("a folder/ä.json", most) for most in (2, 9)] == [data[-2:], data]
    assert [path.name for path in (folder / "a folder").iterdir() if path.suffix != ".crc"] == ["ä.json"]
    status = files.status("a folder/ä.json")
    assert status is not None
    assert (status.name, status.is_folder, status.size) == ("ä.json", False, 3)
    assert abs(status.changed_ms / 1000 - (folder / "a folder/ä.json").stat().st_mtime) <= 1
    assert files.is_file("a folder/ä.json")
    assert files.exists("a folder")
    assert not files.is_file("a folder")
    with pytest.raises(OSError, match="a folder"):
        files.read("a folder")
    files.delete("a folder")
    files.delete("a folder/ä.json")
    assert not files.exists("a folder")
    for read in (files.read, lambda path: files.read_end(path, 1)):
        with pytest.raises(FileNotFoundError, match="ä.json"):
            read("a folder/ä.json")
    files.delete()
    assert not folder.exists()
    assert not files.exists()


def a_file_that_is_there_is_not_made_again(files: Files, folder: Path) -> None:
    assert files.create("file", b"first")
    assert not files.create("file", b"second")
    assert files.read("file") == b"first"
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".crc") == ["file"]


def folders_are_listed_by_name(files: Files, folder: Path) -> None:
    for name in ("a*b/10", "a*b/9", "a*b/x", "axb/1"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert [(status.name, status.is_folder) for status in files.listed()] == [("a*b", True), ("axb", True)]
    assert files.names("a*b") == ["10", "9", "x"]
    assert files.numbers("a*b") == [9, 10]
    assert files.listed("nothing") == []


def a_file_is_dated_or_the_caller_knows(files: Files, folder: Path) -> None:
    (folder / "file").touch()
    long_ago = 1_700_000_000
    os.utime(folder / "file", (long_ago, long_ago))
    changed = files.touch("file")
    assert changed == (abs((folder / "file").stat().st_mtime - time.time()) < 60)
    assert changed != isinstance(files, ArrowFiles)


def a_path_where_a_file_is_in_the_way_is_refused(files: Files, folder: Path) -> None:
    (folder / "taken").touch()
    for change in (
        lambda: files.write("taken/below/file", b""),
        lambda: files.create("taken/below/file", b""),
        lambda: files.make_folder("taken/below"),
    ):
        with pytest.raises(FkJoinError, match=r"taken(/below)? cannot be written to: .*; make that folder, or give another"):
            change()


def folders_are_moved_to_where_nothing_is(files: Files, folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    assert not files.rename("a", "b")
    assert [(folder / name / "file").read_text() for name in "ab"] == ["a", "b"]
    assert not files.rename("a/file", "b/file")
    assert files.read("b/file") == b"b"
    assert files.rename("a", "c")
    assert files.read("c/file") == b"a"
    with pytest.raises(FkJoinError, match=r"a cannot be renamed to .*d: .*(No such|not exist).*\. Check that the folder"):
        files.rename("a", "d")


CONTRACT = [
    files_are_made_replaced_read_and_deleted,
    a_file_that_is_there_is_not_made_again,
    folders_are_listed_by_name,
    a_file_is_dated_or_the_caller_knows,
    a_path_where_a_file_is_in_the_way_is_refused,
]


@pytest.mark.parametrize("kind", WITHOUT_A_JVM)
@pytest.mark.parametrize("law", CONTRACT)
def test_files_without_a_jvm(law: Callable[[Files, Path], None], kind: str, tmp_path: Path) -> None:
    law(WITHOUT_A_JVM[kind](tmp_path), tmp_path)


@pytest.mark.parametrize("law", [*CONTRACT, folders_are_moved_to_where_nothing_is])
def test_files_of_hadoop(law: Callable[[Files, Path], None], spark: SparkSession, tmp_path: Path) -> None:
    law(by_hadoop(tmp_path), tmp_path)


@pytest.mark.parametrize("kind", ["local", "by a worker"])
def test_folders_of_a_machine_are_moved(kind: str, tmp_path: Path) -> None:
    folders_are_moved_to_where_nothing_is(WITHOUT_A_JVM[kind](tmp_path), tmp_path)


@pytest.mark.parametrize("kind", ["local", "by a worker"])
def test_of_two_that_make_a_file_at_a_time_one_succeeds(kind: str, tmp_path: Path) -> None:
    files, start = WITHOUT_A_JVM[kind](tmp_path), threading.Barrier(8)

    def contend(number: int) -> bool:
        start.wait(30)
        return files.create("file", str(number).encode())

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(contend, range(8)))
    assert won.count(True) == 1
    assert files.read("file") == str(won.index(True)).encode()


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5000])
def test_a_file_of_hadoop_is_read_if_it_is_as_it_was_written(spark: SparkSession, tmp_path: Path, size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(size))
    by_hadoop(tmp_path).write("file", data)
    assert (tmp_path / ".file.crc").exists()
    files = LocalFiles(tmp_path)
    assert files.names() == ["file"]
    assert files.read("file") == data
    with (tmp_path / "file").open("ab") as file:
        file.write(b"!")
    with pytest.raises(OSError, match="Checksum error: .*file has changed since it was written"):
        files.read("file")
    files.write("file", b"by fkjoin")
    assert by_hadoop(tmp_path).read("file") == files.read("file") == b"by fkjoin"


@pytest.mark.parametrize("checksums", [b"", b"crc\0", b"other\0\0\2\0sums"])
def test_checksums_that_are_torn_do_not_count_as_in_hadoop(spark: SparkSession, tmp_path: Path, checksums: bytes) -> None:
    (tmp_path / "file").write_bytes(b"whole")
    (tmp_path / ".file.crc").write_bytes(checksums)
    assert by_hadoop(tmp_path).read("file") == LocalFiles(tmp_path).read("file") == b"whole"


def test_checksums_go_with_what_they_are_of(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for change in (files.write, files.create):
        (tmp_path / ".file.crc").write_bytes(b"crc\0\0\0\2\0sums")
        change("file", b"new")
        assert files.read("file") == b"new"
        (tmp_path / ".file.crc").write_bytes(b"crc\0\0\0\2\0sums")
        files.delete("file")
        assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    """A glob of many alternatives is one long name."""
    files = LocalFiles(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [files.status(path) for path in ("a" * 300, "file/below", "loop")] == [None] * 3
    with pytest.raises(FileNotFoundError, match="below"):
        files.read("file/below")


def test_a_folder_is_deleted_while_another_writes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is alive after all leaves its files; the next start deletes them."""
    (tmp_path / "draft" / "below").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", MagicMock(side_effect=OSError(errno.ENOTEMPTY, "not empty")))
    LocalFiles(tmp_path).delete("draft")


def test_hdfs_shows_a_file_when_it_is_whole(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written under another name, and renamed over the one before."""
    monkeypatch.setattr(hadoop_files, "_RENAMING", "file")
    files = by_hadoop(tmp_path)
    for data in (b"one", b"two"):
        files.write("file", data)
        assert files.names() == ["file"]
        assert files.read("file") == data


def test_paths_of_a_client_are_in_full(tmp_path: Path) -> None:
    roots = [of_client(SESSION, where).root for where in ("/a//b/", "file:/a/b", "file:///a/b")]
    assert set(roots) == {"file:/a/b"}
    assert isinstance(of_client(SESSION, "s3://bucket/a/"), WorkerFiles)
    assert of_client(SESSION, "s3://bucket/a/").root == "s3://bucket/a"
    for relative in ("a/b", "run:1/ck"):
        with pytest.raises(FkJoinError, match=f"path: {relative} is relative, .* write the path in full"):
            of_client(SESSION, relative)


def test_a_client_on_the_machine_of_its_workers_asks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_client(SESSION, str(tmp_path)).local == tmp_path
    monkeypatch.setattr(Session, "session_id", "of another machine")
    monkeypatch.setattr(WorkerFiles, "exists", lambda *_: False)
    assert of_client(SESSION, str(tmp_path)).local is None


def test_a_path_is_taken_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    assert without_spark(f"{tmp_path}/link/../ck").local == tmp_path / "ck"
    assert without_spark(f"file://{tmp_path}/ck/").local == tmp_path / "ck"
    assert without_spark("run:1/ck").local == Path("run:1/ck").absolute()


def test_a_storage_that_pyarrow_does_not_know_is_said() -> None:
    address = "odd://place/a"
    for exists in (lambda: without_spark(address), of_client(SESSION, address).exists):
        with pytest.raises(OSError, match="odd://place/a: pyarrow cannot reach it"):
            exists()
