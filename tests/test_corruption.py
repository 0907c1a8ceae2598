"""Bytes flipped, files cut, deleted and swapped, disks full and read-only: detected or repaired, and never read as data."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from state import BucketStore, DamagedIndexError, StateError, database, pending, prefix_range, segments
from state.index import RocksIndex
from tests.stores import Log, array, contents, write

Entries = dict[bytes, bytes | None]


class Bucket:
    """A bucket of three batches, closed: its log, its folder and what is in it."""

    def __init__(self, folder: Path, salt: int = 0) -> None:
        rng = random.Random(salt)
        self.folder, self.log, self.entries = folder, Log(), dict[bytes, bytes]()
        for _ in range(3):
            self.batch({b"k%04d" % rng.randrange(2000): rng.randbytes(30) for _ in range(700)})
        with BucketStore(self.log, folder):
            pass

    def batch(self, entries: Entries) -> None:
        with BucketStore(self.log, self.folder) as store:
            write(store, entries)
            store.commit()
        self.log.commit()
        self.entries.update(entries)  # type: ignore[arg-type]

    def check(self) -> bool:
        """Every way of reading gives what is in it; whether the index was rebuilt."""
        keys = sorted(self.entries)
        with BucketStore(self.log, self.folder) as store:
            assert contents(store) == self.entries
            assert store.get_many(array(list(keys))).to_pylist() == [self.entries[key] for key in keys]
            pages = list(store.scan([prefix_range(b"k%02d" % stem) for stem in range(20)], 1500))
            found = [(page.ranges.tolist(), page.keys.to_pylist()) for page in pages]
            assert [key for _, part in found for key in part] == keys[:1500]
            assert [number for numbers, _ in found for number in numbers] == [int(key[1:3]) for key in keys[:1500]]
            firsts = store.scan([prefix_range(b"k%02d" % stem) for stem in range(20)], each=7)
            wanted = [key for stem in range(20) for key in [key for key in keys if key.startswith(b"k%02d" % stem)][:7]]
            assert [key for page in firsts for key in page.keys.to_pylist()] == wanted
            return store.rebuilt


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


FILES = ("CURRENT", "MANIFEST-*", "POSITION", "*.sst", "OPTIONS-*", "IDENTITY", "SEAL", "rocksdict-config.json")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    return Bucket(tmp_path_factory.mktemp("bucket"))


@pytest.fixture
def copy(bucket: Bucket, tmp_path: Path) -> Bucket:
    """The bucket, in a folder of the test's own."""
    made = Bucket.__new__(Bucket)
    made.folder, made.log, made.entries = tmp_path / "copy", bucket.log, bucket.entries
    return made


def fresh(copy: Bucket, bucket: Bucket) -> Path:
    """A copy of the bucket, as a new process finds it: what is in memory of the same files is right."""
    database._block_cache.cache_clear()
    pending._waiting.clear()
    shutil.rmtree(copy.folder, ignore_errors=True)
    shutil.copytree(bucket.folder, copy.folder)
    return copy.folder / "index"


@pytest.mark.parametrize("pattern", FILES)
def test_a_flipped_bit_in_the_index_is_repaired(bucket: Bucket, copy: Bucket, pattern: str) -> None:
    rng = random.Random(pattern)
    rebuilt = 0
    paths = sorted((bucket.folder / "index").glob(pattern))
    assert paths
    for path in paths:
        size = path.stat().st_size
        for at in {0, size - 1, *(rng.randrange(size) for _ in range(12))}:
            index = fresh(copy, bucket)
            flip(index / path.name, at, rng.randrange(8))
            rebuilt += copy.check()
    assert rebuilt > 0 or pattern in ("OPTIONS-*", "IDENTITY", "rocksdict-config.json")


def test_an_index_that_was_put_in_the_place_of_one_that_is_kept_open_is_read_anew(bucket: Bucket, copy: Bucket) -> None:
    index = fresh(copy, bucket)
    assert not copy.check()
    index = fresh(copy, bucket)
    for path in index.glob("*.sst"):
        path.write_bytes(bytes(path.stat().st_size))
    assert copy.check()


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("harm", [cut, remove])
def test_a_cut_or_deleted_file_of_the_index_is_repaired(
    bucket: Bucket, copy: Bucket, pattern: str, harm: Callable[[Path, random.Random], None]
) -> None:
    rng = random.Random(pattern)
    for path in sorted((bucket.folder / "index").glob(pattern)):
        index = fresh(copy, bucket)
        harm(index / path.name, rng)
        copy.check()


def test_a_bit_flipped_while_the_index_is_open_is_repaired_in_the_midst_of_a_scan(
    bucket: Bucket, copy: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are read when they are needed: the damage shows after some pages have been handed out."""
    monkeypatch.setattr(RocksIndex.__init__, "__kwdefaults__", {"wait_s": 0.0, "page_entries": 100, "standing": False})
    index = fresh(copy, bucket)
    largest = max(index.glob("*.sst"), key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2, 3)
    with BucketStore(copy.log, copy.folder) as store:
        pages = store.scan([prefix_range(b"k%02d" % stem) for stem in range(20)])
        first = next(pages)
        assert not store.rebuilt
        rest = list(pages)
        assert store.rebuilt
    keys = [key for page in (first, *rest) for key in page.keys.to_pylist()]
    assert keys == sorted(copy.entries)
    assert [number for page in (first, *rest) for number in page.ranges.tolist()] == [int(key[1:3]) for key in keys]


@pytest.mark.parametrize(("limit", "each"), [(None, 7), (60, 7), (None, 1), (33, None)])
def test_a_scan_that_is_repaired_gives_no_more_than_was_asked_for(
    bucket: Bucket, copy: Bucket, monkeypatch: pytest.MonkeyPatch, limit: int | None, each: int | None
) -> None:
    fresh(copy, bucket)
    monkeypatch.setattr(RocksIndex.__init__, "__kwdefaults__", {"wait_s": 0.0, "page_entries": 10, "standing": False})
    ranges = [prefix_range(b"k%02d" % stem) for stem in range(20)]
    with BucketStore(copy.log, copy.folder) as store:
        wanted = [key for page in store.scan(ranges, limit, each) for key in page.keys.to_pylist()]
        healthy = store._index.scan

        def damaged(*arguments: Any) -> Iterator[Any]:
            yield next(healthy(*arguments))
            raise DamagedIndexError("a block is damaged")

        monkeypatch.setattr(store._index, "scan", damaged)
        found = [key for page in store.scan(ranges, limit, each) for key in page.keys.to_pylist()]
        assert store.rebuilt
    assert found == wanted


def test_files_and_indexes_of_another_bucket_are_noticed(bucket: Bucket, copy: Bucket, tmp_path: Path) -> None:
    other = Bucket(tmp_path / "other", salt=1)
    names = [path.name for path in (bucket.folder / "index").iterdir() if (other.folder / "index" / path.name).exists()]
    assert any(name.endswith(".sst") for name in names)
    for name in names:
        index = fresh(copy, bucket)
        shutil.copy(other.folder / "index" / name, index / name)
        copy.check()
    index = fresh(copy, bucket)
    shutil.rmtree(index)
    shutil.copytree(other.folder / "index", index)
    assert copy.check()


@pytest.mark.parametrize(("small", "suffixes"), [(0, {".sst", ".head"}), (1 << 20, {".tail"})])
def test_a_damaged_pending_file_is_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, suffixes: set[str]
) -> None:
    """It is on its way between two batches; the log has the same entries."""
    monkeypatch.setattr(pending, "TAIL_BYTES", small)
    bucket = Bucket(tmp_path / "bucket")
    bucket.batch({b"k%04d" % n: b"new" * 3 for n in range(0, 2000, 3)})
    kept = list(bucket.folder.glob("pending-*"))
    assert {path.suffix for path in kept} == suffixes
    saved = tmp_path / "saved"
    shutil.copytree(bucket.folder, saved)
    rng = random.Random(5)
    for path in kept:
        size = path.stat().st_size
        harms = [partial(flip, path, at, rng.randrange(8)) for at in rng.sample(range(size), min(size, 60))]
        for harm in [*harms, partial(cut, path, rng), path.unlink]:
            harm()
            assert not bucket.check()
            shutil.rmtree(bucket.folder)
            shutil.copytree(saved, bucket.folder)


def test_any_flipped_bit_of_a_segment_is_an_error_that_says_what_to_do() -> None:
    (segment,) = segments.encode_segments(bytes(16), array([b"key%d" % n for n in range(40)]), array([b"value"] * 40))
    for at in range(len(segment)):
        damaged = bytearray(segment)
        damaged[at] ^= 4
        if 1 <= at <= 16:  # the token is compared, and needs no checksum
            assert segments.decode_segment(7, bytes(damaged))[0] != bytes(16)
            continue
        with pytest.raises(StateError, match="segment 7.*(restore the checkpoint|open the checkpoint with)"):
            segments.decode_segment(7, bytes(damaged))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        reason = f"no file system of its own can be mounted: {mounted.stderr.decode().strip()}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_fails_the_batch_and_loses_nothing(small_disk: Path) -> None:
    bucket = Bucket(small_disk / "bucket")
    filler = small_disk / "filler"
    room = shutil.disk_usage(small_disk).free
    filler.write_bytes(bytes(room - (64 << 10)))
    rng = random.Random(2)
    large: Entries = {b"k%04d" % n: rng.randbytes(800) for n in range(2000)}
    bucket.batch(large)  # what the batch wrote is in the log; there was no room for a pending file
    assert not list(bucket.folder.glob("pending-*.sst"))
    with pytest.raises(StateError, match=r"index .*/bucket/index .*; the folder must be writable and its disk must have room"):
        bucket.check()
    filler.unlink()
    bucket.check()


def test_a_read_only_folder_fails_the_batch_and_loses_nothing(small_disk: Path) -> None:
    bucket = Bucket(small_disk / "bucket")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not bucket.check(), "what the index and the tail have can be read"
    bucket.batch({b"k0000": b"in the log"})
    with pytest.raises(StateError, match="the folder must be writable and its disk must have room"):
        bucket.check()
    with pytest.raises(StateError, match="the folder must be writable and its disk must have room"):
        BucketStore(bucket.log, small_disk / "elsewhere")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert not bucket.check()


def test_damage_under_a_lock_is_not_taken_for_it(bucket: Bucket, copy: Bucket) -> None:
    """RocksDB says "block checksum mismatch": not a lock that one waits for."""
    index = fresh(copy, bucket)
    for path in index.glob("*.sst"):
        flip(path, path.stat().st_size // 3, 1)
    reader = RocksIndex(index)
    with pytest.raises(DamagedIndexError, match="cannot be read.*checksum"):
        list(reader.scan([prefix_range(b"k")]))
    reader.close()
