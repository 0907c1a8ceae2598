"""Bytes flipped, files cut, deleted and swapped, disks full and read-only: detected or repaired, and never read as data."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fkjoin.state import BucketStore, DamagedIndexError, MemoryStore, StateError, database, pending, prefix_range, segments
from fkjoin.state.index import RocksIndex
from fkjoin.state.seal import Seal
from tests.support.damage import Damaging, another_process, damaged_stores, small_files
from tests.support.sampling import EVERY, sampled
from tests.support.stores import Log, array, batch, contents, flat, index_folder, write

Entries = dict[bytes, bytes | None]
RANGES = [prefix_range(b"k%02d" % stem) for stem in range(20)]


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
        batch(self.log, self.folder, entries)
        self.entries.update(entries)  # type: ignore[arg-type]

    def check(self) -> bool:
        """Every way of reading gives what is in it; whether the index was rebuilt."""
        keys = sorted(self.entries)
        with BucketStore(self.log, self.folder) as store:
            assert contents(store) == self.entries
            assert store.get_many(array(list(keys))).to_pylist() == [self.entries[key] for key in keys]
            for limit, each in ((1500, None), (None, 7)):
                assert flat(store.scan(RANGES, limit, each)) == flat(self.model.scan(RANGES, limit, each))
            return store.rebuilt is not None

    @property
    def model(self) -> MemoryStore:
        """A store with what is in it."""
        model = MemoryStore()
        write(model, dict(self.entries))
        return model


def flip(path: Path, rng: random.Random, at: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data)) if at is None else at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


FILES = ("SEAL", *(f"index-*/{name}" for name in ("CURRENT", "MANIFEST-*", "*.sst", "OPTIONS-*", "IDENTITY")))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    return Bucket(tmp_path_factory.mktemp("bucket"))


@pytest.fixture
def copy(bucket: Bucket, tmp_path: Path) -> Bucket:
    """A bucket with the same log, in a folder of the test's own."""
    made = Bucket.__new__(Bucket)
    made.folder, made.log, made.entries = tmp_path / "copy", bucket.log, bucket.entries
    return made


def fresh(copy: Bucket) -> Path:
    """The folder of its index, made anew and as a new process finds it, with nothing in memory of other files."""
    another_process()
    shutil.rmtree(copy.folder, ignore_errors=True)
    with BucketStore(copy.log, copy.folder):
        pass
    return index_folder(copy.folder)


def one_of(copy: Bucket, pattern: str) -> Path:
    fresh(copy)
    (path,) = copy.folder.glob(pattern)
    return path


@pytest.mark.faults
@pytest.mark.parametrize("pattern", sampled(FILES, ["SEAL", "index-*/CURRENT", "index-*/*.sst"]))
def test_a_file_of_the_index_that_is_flipped_cut_or_deleted_is_repaired(copy: Bucket, pattern: str) -> None:
    rng = random.Random(pattern)
    size = one_of(copy, pattern).stat().st_size
    places = {0, size - 1, *(rng.randrange(size) for _ in range(12 if EVERY else 1))}
    for harm in [*(partial(flip, at=place) for place in places), cut, remove]:
        harm(one_of(copy, pattern), rng)
        assert copy.check()


@pytest.mark.faults
def test_a_bit_that_flips_on_the_disk_is_repaired(copy: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process has written to the file, so its stamp is the old one: RocksDB's checksums notice the bit."""
    monkeypatch.setattr(Seal, "require_as_sealed", lambda seal: None)
    rng = random.Random(7)
    rebuilt, bits = 0, 30 if EVERY else 4
    for _ in range(bits):
        flip(one_of(copy, "index-*/*.sst"), rng)
        rebuilt += copy.check()
    assert rebuilt > 2 * bits // 3, "some bits are in what is not read"


@pytest.mark.faults
def test_an_older_version_that_rocksdb_would_open_is_not_read(copy: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that is cut between two of its records is one of an older version, and none begins an empty database."""
    monkeypatch.setattr(Seal, "require_as_sealed", lambda seal: None)
    for name in ("CURRENT", "MANIFEST-*"):
        path = one_of(copy, f"index-*/{name}")
        size = path.stat().st_size
        path.unlink()
        assert copy.check(), name
    for at in range(0, size, 7 if EVERY else 97):
        path = one_of(copy, "index-*/MANIFEST-*")
        os.truncate(path, at)
        copy.check()


def test_an_index_that_was_put_in_the_place_of_one_that_is_kept_open_is_read_anew(copy: Bucket) -> None:
    fresh(copy)
    assert not copy.check()
    for path in fresh(copy).glob("*.sst"):
        path.write_bytes(bytes(path.stat().st_size))
    assert copy.check()


@pytest.mark.faults
def test_any_two_files_that_are_gone_are_noticed(copy: Bucket) -> None:
    """Such as the one that proves what the index is, and the one without which RocksDB begins an empty database."""
    files = [path for path in fresh(copy).iterdir() if not path.name.startswith(("LOCK", "LOG", "rocksdict"))]
    patterns = [f"index-*/{path.name.split('-')[0]}*" for path in files]
    pairs = list(itertools.combinations([*patterns, "SEAL"], 2))
    for pair in sampled(pairs, [pair for pair in pairs if "SEAL" in pair]):
        fresh(copy)
        for pattern in pair:
            next(copy.folder.glob(pattern)).unlink()
        assert copy.check(), pair


def test_a_file_that_is_added_is_noticed(copy: Bucket) -> None:
    """RocksDB would read a journal of writes that lies there."""
    (fresh(copy) / "000099.log").write_bytes(b"")
    assert copy.check()


def test_a_bit_flipped_in_an_open_index_is_repaired_within_a_scan(copy: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are read when they are needed: the damage shows after some pages have been handed out."""
    monkeypatch.setattr(RocksIndex, "page_entries", 100)
    largest = max(fresh(copy).glob("*.sst"), key=lambda path: path.stat().st_size)
    with BucketStore(copy.log, copy.folder) as store:
        flip(largest, random.Random(3), largest.stat().st_size // 2)
        pages = store.scan(RANGES)
        first = next(pages)
        assert not store.rebuilt
        rest = list(pages)
        assert store.rebuilt
    assert flat([first, *rest]) == flat(copy.model.scan(RANGES))


@pytest.mark.parametrize(("limit", "each"), [(None, 7), (60, 7), (None, 1), (33, None)])
def test_a_scan_that_is_repaired_gives_no_more_than_was_asked_for(
    copy: Bucket, monkeypatch: pytest.MonkeyPatch, limit: int | None, each: int | None
) -> None:
    fresh(copy)
    monkeypatch.setattr(RocksIndex, "page_entries", 10)
    with BucketStore(copy.log, copy.folder) as store:
        healthy = store._index.scan

        def damaged(*arguments: Any) -> Iterator[Any]:
            yield next(healthy(*arguments))
            raise DamagedIndexError("a block is damaged")

        monkeypatch.setattr(store._index, "scan", damaged)
        assert flat(store.scan(RANGES, limit, each)) == flat(copy.model.scan(RANGES, limit, each))
        assert store.rebuilt


def test_files_and_indexes_of_another_bucket_are_noticed(copy: Bucket, tmp_path: Path) -> None:
    other = Bucket(tmp_path / "other", salt=1)
    theirs = index_folder(other.folder)
    names = [path.name for path in fresh(copy).iterdir() if (theirs / path.name).exists()]
    assert "CURRENT" in names
    for name in names:
        shutil.copy(theirs / name, fresh(copy) / name)
        copy.check()
    fresh(copy)
    (index_folder(copy.folder)).rename(tmp_path / "gone")
    shutil.copytree(theirs, copy.folder / theirs.name)
    shutil.copy(other.folder / "SEAL", copy.folder / "SEAL")
    assert copy.check(), "it is sealed, with the key of another log"


@pytest.mark.faults
@pytest.mark.parametrize(("small", "suffixes"), [(0, {".sst", ".head"}), (1 << 20, {".tail"})])
def test_a_damaged_pending_file_is_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, suffixes: set[str]
) -> None:
    """It is on its way between two batches; the log has the same entries."""
    monkeypatch.setattr(pending, "TAIL_BYTES", small)
    bucket = Bucket(tmp_path / "bucket")
    before, entries = dict(bucket.log.committed), dict(bucket.entries)

    def files() -> list[Path]:
        """Files that lie beside an index after one more batch."""
        shutil.rmtree(bucket.folder)
        bucket.log.committed, bucket.entries = dict(before), dict(entries)
        bucket.log.roll_back()
        with BucketStore(bucket.log, bucket.folder):
            pass
        bucket.batch({b"k%04d" % n: b"new" * 3 for n in range(0, 2000, 3)})
        return sorted(bucket.folder.glob("pending-*"), key=lambda path: path.suffix)

    assert {path.suffix for path in files()} == suffixes
    rng = random.Random(5)
    for number in range(len(suffixes)):
        size = files()[number].stat().st_size
        flips = [partial(flip, at=at) for at in rng.sample(range(size), min(size, 16 if EVERY else 1))]
        for harm in [*flips, cut, remove]:
            harm(files()[number], rng)
            assert not bucket.check()


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
    with pytest.raises(StateError, match=r"index .*/bucket/index-.*; the folder must be writable and its disk must have room"):
        bucket.check()
    filler.unlink()
    bucket.check()


@pytest.mark.parametrize("left", ["by a process that was killed", pytest.param("damaged", marks=pytest.mark.nightly)])
def test_an_index_that_is_not_read_makes_room_for_another(small_disk: Path, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_MERGED_S", 0)  # there is no room to merge its files
    rng = random.Random(3)
    bucket = Bucket(small_disk / "bucket")
    for part in range(4):
        bucket.batch({b"k%04d" % n: rng.randbytes(6500) for n in range(500 * part, 500 * part + 500)})
    index = index_folder(bucket.folder)
    with BucketStore(bucket.log, bucket.folder):
        pass
    assert sum(path.stat().st_size for path in index.iterdir()) > shutil.disk_usage(small_disk).free
    (bucket.folder / "SEAL" if left == "by a process that was killed" else index / "CURRENT").unlink()
    assert bucket.check()


def test_a_read_only_folder_fails_the_batch_and_loses_nothing(small_disk: Path) -> None:
    bucket = Bucket(small_disk / "bucket")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not bucket.check(), "what the index and the tail have can be read"
    bucket.batch({b"k0000": b"in the log"})
    with pytest.raises(StateError, match="must be writable and its disk must have room"):
        bucket.check()
    with pytest.raises(StateError, match="must be writable and its disk must have room"):
        BucketStore(bucket.log, small_disk / "elsewhere")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert not bucket.check()


HISTORIES = 200 if EVERY else 3


def attempt(store: BucketStore, entries: Entries, model: MemoryStore) -> None:
    """One attempt at a batch; what it reads is compared with the model."""
    with store:
        keys = array(sorted(entries))
        assert store.get_many(keys).to_pylist() == model.get_many(keys).to_pylist()
        assert contents(store) == dict(model.items())
        write(store, entries)
        store.commit()


@pytest.mark.faults
def test_whatever_happens_to_files_the_store_reads_what_its_log_says() -> None:
    seen = Counter[str]()

    @given(seed=st.integers(0, 1 << 62))
    @settings(max_examples=HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))
    def histories(seed: int) -> None:
        history(seed, seen)

    histories()
    assert seen["damaged"] > seen["rebuilt"] > HISTORIES
    assert seen["failed"] < seen["batches"] / 10, "an attempt fails where its index is being written to"


def history(seed: int, seen: Counter[str]) -> None:
    """Batches of a store whose files are damaged; ``seen`` counts what happened."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as place:
        small_files(patched, rng)
        log, model, folder = Log(), MemoryStore(), Path(place) / "bucket"
        damaged = damaged_stores(Damaging(folder, rng, rng.choice([0.05, 0.2, 0.5]), seen))
        for _ in range(rng.randint(2, 25)):
            if rng.random() < 0.3:
                another_process()
            entries: Entries = {
                b"k%02d" % rng.randrange(30): rng.choice([None, rng.randbytes(rng.randrange(40))])
                for _ in range(rng.randint(1, 9))
            }
            for tries in range(4):  # as often as Spark tries a task
                try:
                    attempt(damaged(log, folder), entries, model)
                except StateError:
                    log.roll_back()
                    seen["failed"] += 1
                    assert tries < 3
                    continue
                if rng.random() < 0.1:
                    log.roll_back()  # it is repeated all the same
                    continue
                log.commit()
                write(model, entries)
                break
        shutil.rmtree(folder, ignore_errors=True)
        with BucketStore(log, folder) as store:
            assert contents(store) == dict(model.items()), "the log itself is right"
            assert store.disagreement() is None
