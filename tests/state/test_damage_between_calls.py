"""A store whose files are damaged between any two of its calls: what it reads, and what it leaves in the log, is right."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fkjoin.state import BucketStore, MemoryStore, StateError, database, pending
from fkjoin.state import index as index_module
from fkjoin.state.index import RocksIndex
from tests.support.stores import Log, array, contents, write

Files = list[Path]


def all_gone(files: Files, rng: random.Random, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def a_folder_gone(files: Files, rng: random.Random, folder: Path) -> None:
    shutil.rmtree(rng.choice(files).parent, ignore_errors=True)


def one_gone(files: Files, rng: random.Random, folder: Path) -> None:
    rng.choice(files).unlink()


def some_gone(files: Files, rng: random.Random, folder: Path) -> None:
    for file in rng.sample(files, rng.randint(1, len(files))):
        file.unlink()


def all_but_some_gone(files: Files, rng: random.Random, folder: Path) -> None:
    """What a cleaner of temporary folders leaves of a job that runs for weeks."""
    old = rng.choice(["*.sst", "CURRENT", "SEAL", "pending-*", "MANIFEST-*", "IDENTITY"])
    for file in files:
        if file.match(old):
            file.unlink()


def a_bit_flipped(files: Files, rng: random.Random, folder: Path) -> None:
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def one_cut(files: Files, rng: random.Random, folder: Path) -> None:
    file = rng.choice(files)
    file.write_bytes(file.read_bytes()[: rng.randint(0, file.stat().st_size)])


def one_over_another(files: Files, rng: random.Random, folder: Path) -> None:
    shutil.copy(rng.choice(files), rng.choice(files))


def one_in_the_place_of_another(files: Files, rng: random.Random, folder: Path) -> None:
    rng.choice(files).replace(rng.choice(files))


def one_twice(files: Files, rng: random.Random, folder: Path) -> None:
    file = rng.choice(files)
    shutil.copy(file, file.with_name(rng.choice(["000099.sst", "000099.log", "MANIFEST-000099", "pending-00.tail"])))


HARMS: list[Callable[[Files, random.Random, Path], None]] = [
    all_gone,
    a_folder_gone,
    one_gone,
    some_gone,
    all_but_some_gone,
    a_bit_flipped,
    one_cut,
    one_over_another,
    one_in_the_place_of_another,
    one_twice,
]


class Damaging:
    """A folder that is damaged now and then, and copies of which come back."""

    def __init__(self, folder: Path, rng: random.Random, often: float, seen: Counter[str]) -> None:
        self.folder, self.rng, self.often, self.saved = folder, rng, often, folder.with_name("saved")
        self.seen = seen

    def __call__(self) -> None:
        if self.rng.random() >= self.often:
            return
        self.seen["damaged"] += 1
        with contextlib.suppress(OSError):  # RocksDB removes and makes files meanwhile
            if self.rng.random() < 0.1:
                self._restore_or_save()
            elif files := [path for path in self.folder.rglob("*") if path.is_file()]:
                self.rng.choice(HARMS)(files, self.rng, self.folder)

    def _restore_or_save(self) -> None:
        if self.saved.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.saved.rename(self.folder)
        elif self.folder.exists():
            shutil.copytree(self.folder, self.saved)

    def pages(self, pages: Iterator[Any]) -> Iterator[Any]:
        for page in pages:
            self()
            yield page


def attempt(log: Log, folder: Path, entries: dict[bytes, bytes | None], model: MemoryStore, damage: Damaging) -> None:
    """One attempt at a batch; what it reads is compared with the model."""
    damage()
    with BucketStore(log, folder) as store:
        damage()
        keys = array(sorted(entries))
        assert store.get_many(keys).to_pylist() == model.get_many(keys).to_pylist()
        damage()
        found = {}
        for page in damage.pages(store.scan([(b"\0", b"\xff")])):
            found.update(zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True))
        assert found == dict(model.items())
        write(store, entries)
        damage()
        store.commit()
        damage()
        damage.seen["batches"] += 1
        damage.seen["rebuilt"] += store.rebuilt is not None
    damage()


def test_whatever_happens_to_files_the_store_reads_what_its_log_says() -> None:
    seen = Counter[str]()

    @given(seed=st.integers(0, 1 << 62))
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def histories(seed: int) -> None:
        history(seed, seen)

    histories()
    assert seen["damaged"] > seen["rebuilt"] > 25
    assert seen["failed"] < seen["batches"] / 10, "an attempt fails where its index is being written to"


def history(seed: int, seen: Counter[str]) -> None:
    """Batches of a store whose files are damaged; ``seen`` counts what happened."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as place:
        patched.setattr("fkjoin.state.bucket.SEGMENT_BYTES", 500)  # so that the log is cleaned again and again
        patched.setattr("fkjoin.state.segments.SEGMENT_BYTES", 500)
        patched.setattr(pending, "TAIL_BATCHES", rng.choice([0, 1, 4]))
        patched.setattr(pending, "TAIL_BYTES", rng.choice([0, 300, 1 << 20]))
        patched.setattr(RocksIndex, "page_entries", rng.choice([1, 5, 1 << 16]))
        log, model, folder = Log(), MemoryStore(), Path(place) / "bucket"
        damage = Damaging(folder, rng, rng.choice([0.05, 0.2, 0.5]), seen)
        for _ in range(rng.randint(2, 25)):
            if rng.random() < 0.3:  # another process
                database._block_cache.cache_clear()
                pending._waiting.clear()
                index_module._readers.clear()
            entries: dict[bytes, bytes | None] = {
                b"k%02d" % rng.randrange(30): rng.choice([None, rng.randbytes(rng.randrange(40))])
                for _ in range(rng.randint(1, 9))
            }
            for tries in range(4):  # as often as Spark tries a task
                try:
                    attempt(log, folder, entries, model, damage)
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
