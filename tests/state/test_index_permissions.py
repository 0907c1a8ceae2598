"""The folders of indexes: no other user reads them, changes them, or makes them beforehand."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from fkjoin.spark.index_home import index_home
from fkjoin.state import BucketStore, StateError, pending, segments
from fkjoin.state.private import private_folder, write_private
from fkjoin.state.segments import Position
from tests.support.stores import Log, array, batch, contents, index_of, key_of

ELSEWHERE = "remove it, or choose another folder for the index \\(spark.fkjoin.index.dir\\)"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_below_the_temporary_one_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    place = index_home("", "query", "joined", "rekey")
    assert place == tmp_path / f"fkjoin-{os.getuid()}" / "query" / "joined-rekey"
    while place != tmp_path:
        assert mode(place) == 0o700
        place = place.parent


def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    private_folder(folder)
    assert mode(folder) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "query").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(StateError, match=f"belongs to user {os.getuid()}, this process runs as 12345: {ELSEWHERE}"):
        index_home(str(tmp_path), "query", "joined", "rekey")
    monkeypatch.undo()
    assert index_home(str(tmp_path / "elsewhere"), "query", "joined", "rekey").is_dir()


@pytest.mark.parametrize("there", ["a folder", "nothing", "a file"])
def test_links_are_not_followed(tmp_path: Path, there: str) -> None:
    target = tmp_path / "target"
    if there == "a folder":
        target.mkdir()
    elif there == "a file":
        target.touch()
    (tmp_path / "query").symlink_to(target)
    with pytest.raises(StateError, match=f"query is not a folder .*: {ELSEWHERE}"):
        index_home(str(tmp_path), "query", "joined", "rekey")
    (tmp_path / "query").unlink()
    assert index_home(str(tmp_path), "query", "joined", "rekey").is_dir()


def test_files_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, folder = Log(), tmp_path / "bucket"
    for size in (1 << 20, 0, 0):
        monkeypatch.setattr(pending, "TAIL_BYTES", size)
        batch(log, folder, {b"%d" % n: bytes(99) for n in range(100)})
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".sst", ".head"}
    assert {mode(path) for path in files} == {0o600}


@pytest.mark.parametrize("key", [b"k" * 16, b"\0" * 16])
def test_an_index_that_somebody_has_sealed_without_the_logs_key_is_not_read(tmp_path: Path, key: bytes) -> None:
    """The seal is right in all but the key, so the content does not matter."""
    log = Log()
    batch(log, tmp_path, {b"k": b"ours"})
    index = index_of(tmp_path, key_of(log))
    index.apply(array([b"k"]), array([b"theirs"]), Position(segments.Meta.decode(log.committed["meta"]).token, 1))
    index._key = key
    index.close()
    with BucketStore(log, tmp_path) as store:
        assert "is damaged, or belongs to another log" in (store.rebuilt or "")
        assert contents(store) == {b"k": b"ours"}


@pytest.mark.parametrize("size", [0, 1 << 20])
@pytest.mark.parametrize("with_the_key", [False, True])
def test_a_pending_file_that_somebody_has_made_without_the_logs_key_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, with_the_key: bool
) -> None:
    monkeypatch.setattr(pending, "TAIL_BYTES", size)
    log = Log()
    batch(log, tmp_path, {b"k": b"ours"})
    meta = segments.Meta.decode(log.committed["meta"])
    for path in tmp_path.glob("pending-*"):
        path.unlink()
    entries, key = (array([b"k"]), array([b"theirs"])), meta.key if with_the_key else b"k" * 16
    pending.keep(tmp_path, entries, Position(bytes(16), 0), Position(meta.token, 1), key)
    with BucketStore(log, tmp_path) as store:
        assert contents(store) == {b"k": b"theirs" if with_the_key else b"ours"}


def test_a_full_disk_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'$"):
        write_private(Path("/dev/full"), b"entries")
