"""The files of an index: when RocksDB merges them, how they are opened, and that no other user reads, changes or makes them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from fkjoin.spark.index_home import index_home
from fkjoin.state import BucketStore, MemoryStore, StateError, database, pending, segments
from fkjoin.state.database import says
from fkjoin.state.index import RocksIndex
from fkjoin.state.private import private_folder, write_private
from fkjoin.state.protocol import SLICE_ROWS
from fkjoin.state.seal import Seal
from fkjoin.state.segments import Position
from tests.support.stores import KEY, Log, array, batch, contents, index_folder, index_of, key_of, write


def test_files_that_small_batches_leave_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing stops RocksDB's merging, for which a small batch leaves no time."""
    monkeypatch.setattr(pending, "TAIL_BATCHES", 0)
    log, model, files = Log(), MemoryStore(), list[int]()
    for number in range(24):
        entries: dict[bytes, bytes | None] = {b"k%03d" % n: b"%d" % number for n in range(number % 7, 800, 7)}
        batch(log, tmp_path, entries)
        write(model, entries)
        files.append(len(list(index_folder(tmp_path).glob("*.sst"))))
    assert max(files) <= 6, "at most three over one another, one below, and one that has just come or is no longer needed"
    with BucketStore(log, tmp_path) as store:
        assert contents(store) == dict(model.items())
        assert not store.rebuilt


def test_a_large_index_is_merged_when_twelve_files_are_piled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not begun to be before: closing would stop it, and the next batch begin it again."""
    monkeypatch.setattr(database, "_SOON_BYTES", -1)
    files = list[int]()
    for number in range(14):  # the first one's file is below
        index = index_of(tmp_path)
        keys = array([b"k%05d" % n for n in range(number % 7, 20_000, 7)])
        index.apply(keys, array([b"%d" % number] * len(keys)), Position(b"t" * 16, number))
        assert number == 12 or not says(index._db, "compaction-pending") + says(index._db, "num-running-compactions")
        index.close()
        files.append(len(list(index_folder(tmp_path).glob("*.sst"))))
    assert files[:12] == list(range(1, 13))
    assert files[-1] <= 3, "one below, one over it, and one that is no longer needed"


def test_merging_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_SOON_BYTES", -1)
    slept = Mock()
    monkeypatch.setattr(database.time, "sleep", slept)
    monkeypatch.setattr(database, "_MERGED_S", 0.05)

    for files, waits in ((11, False), (12, True)):
        index = index_of(tmp_path / str(files))
        index._db.close()
        numbers = {"rocksdb.num-files-at-level0": str(files)}
        index._db = Mock(property_value=lambda name, numbers=numbers: numbers.get(name, "1"), live_files=list)
        slept.reset_mock()
        index.close()
        assert slept.called == waits


def test_an_index_that_is_opened_again_is_read_by_its_filters(tmp_path: Path) -> None:
    """Filters that are not there cost reads of what is not there four times as much, and nothing else would show it."""
    rows = 20_000
    keys = [b"k%06d" % n for n in range(rows)]
    with contextlib.closing(index_of(tmp_path)) as index:
        index.apply(array(keys), array([b"v"] * rows), Position(b"t" * 16, 1))  # type: ignore[arg-type]
    seal = Seal.of(tmp_path, KEY)
    assert seal is not None
    for opened in (RocksIndex.standing(seal, KEY), RocksIndex.taken(tmp_path, KEY, 0.0)):
        assert opened is not None
        with contextlib.closing(opened) as index:
            index.get_many(array([b"k000000x"]))
            held = index._db.property_int_value("rocksdb.estimate-table-readers-mem")
            assert held is not None
            assert held > rows, "ten bits a key, and the index of blocks"


def test_blocks_that_many_keys_are_in_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Those that few keys are in are, also after many."""
    database._block_cache.cache_clear()
    names = [b"k%05d" % number for number in range(2 * SLICE_ROWS)]
    values = array([name * 16 for name in names])
    with contextlib.closing(index_of(tmp_path)) as index:
        index.apply(array(names), values, None)

        def kept(keys: list[bytes]) -> int:
            before = says(index._db, "block-cache-usage")
            assert index.get_many(array(keys)).to_pylist() == [name * 16 for name in keys]
            return says(index._db, "block-cache-usage") - before

        assert kept(names) < 64 << 10, "a block at each end, which is looked for"
        assert kept(names[::16]) > 512 << 10


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
