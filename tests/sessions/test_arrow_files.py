"""The part of Hadoop's file system that sessions of Spark Connect have, done by this process and as a worker does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fkjoin.checkpoint.files import moved, read_file, write_file
from fkjoin.errors import FkJoinError
from fkjoin.sessions.arrow_files import ArrowFiles, ArrowPath, WorkerFiles


class Frame:
    """A frame of one row, which a function of batches is applied to."""

    def mapInArrow(self, function: Any, schema: str) -> Frame:  # noqa: N802  as Spark has it
        (self.batch,) = function(iter([pa.record_batch({"id": [0]})]))
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.batch.to_pylist()]


class Session:
    """A session whose workers are this process."""

    def range(self, *_: int) -> Frame:
        return Frame()


def test_a_folder_is_listed_by_its_name_though_that_has_a_star(files: ArrowFiles, tmp_path: Path) -> None:
    for folder in ("a*b", "axb"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / folder).touch()
    listed = files.listStatus(ArrowPath.of(f"{tmp_path}/a*b"))
    assert [status.getPath().getName() for status in listed] == ["a*b"]


@pytest.fixture(params=["here", "by a worker"])
def files(request: pytest.FixtureRequest) -> ArrowFiles:
    doing = WorkerFiles(Session())  # type: ignore[arg-type]
    if request.param == "by a worker":
        doing._same_machine = False
    return ArrowFiles(doing, "file")


def test_a_file_is_made_replaced_read_dated_and_deleted(files: ArrowFiles, tmp_path: Path) -> None:
    path = ArrowPath.of(f"{tmp_path}/a folder/ä.json")
    assert not files.exists(path)
    assert not files.isFile(path)
    for data in (b"\0one", b"two"):
        write_file(path, files, data)
        assert read_file(path, files) == data
        assert [files.read_end(path, most) for most in (2, 9)] == [data[-2:], data]
    assert [one.name for one in (tmp_path / "a folder").iterdir()] == ["ä.json"]
    files.setTimes(path, 1_700_000_000_000, -1)
    status = files.getFileStatus(path)
    assert (status.getLen(), status.getModificationTime(), status.isDirectory()) == (3, 1_700_000_000_000, False)
    assert files.isFile(path)
    files.delete(path.getParent(), True)
    files.delete(path, False)
    assert not files.exists(path.getParent())
    with pytest.raises(OSError, match="ä.json"):
        read_file(path, files)


def test_folders_are_listed_by_patterns(files: ArrowFiles, tmp_path: Path) -> None:
    for name in ("batch=1-[a]/part-1", "batch=2-b/part-2", "other/part-3"):
        write_file(ArrowPath.of(f"{tmp_path}/{name}"), files, b"")

    def names(pattern: str) -> list[str]:
        return [status.getPath().getName() for status in files.globStatus(ArrowPath.of(f"{tmp_path}/{pattern}"))]

    assert names("batch=*") == ["batch=1-[a]", "batch=2-b"]
    assert names("batch=*/part-*") == ["part-1", "part-2"]
    assert names("nothing/*/part-*") == []
    assert [one.getPath().getName() for one in files.listStatus(ArrowPath.of(str(tmp_path)))] == [
        "batch=1-[a]",
        "batch=2-b",
        "other",
    ]


def test_a_folder_is_moved_to_where_nothing_is(files: ArrowFiles, tmp_path: Path) -> None:
    first, second, target = (ArrowPath.of(f"{tmp_path}/{name}") for name in ("first", "second", "target"))
    for folder in (first, second):
        write_file(ArrowPath(f"{folder}/file"), files, folder.encode())
    assert moved(first, target, files)
    assert not moved(second, target, files)
    assert read_file(ArrowPath(f"{target}/file"), files) == first.encode()
    with pytest.raises(FkJoinError, match="first cannot be renamed to"):
        moved(first, ArrowPath.of(f"{tmp_path}/another"), files)


def test_paths_are_in_full() -> None:
    assert ArrowPath.of("/a//b/") == ArrowPath.of("file:/a/b") == ArrowPath.of("file:///a/b") == "file:/a/b"
    assert ArrowPath.of("s3://bucket/a/") == "s3://bucket/a"
    with pytest.raises(FkJoinError, match="path: a/b is relative, .* write the path in full"):
        ArrowPath.of("a/b")


def test_a_storage_that_pyarrow_does_not_know_is_said() -> None:
    doing = WorkerFiles(Session())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="odd://place/a: pyarrow cannot reach it"):
        ArrowFiles(doing, "odd").exists(ArrowPath.of("odd://place/a"))
