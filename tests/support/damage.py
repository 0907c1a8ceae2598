"""Local files of stores that are damaged in any way, at any moment."""

from __future__ import annotations

import contextlib
import inspect
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fkjoin.state import BucketStore, Page, database, pending
from fkjoin.state import index as index_module
from fkjoin.state.index import RocksIndex

Files = list[Path]


def all_gone(files: Files, rng: random.Random, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def a_folder_gone(files: Files, rng: random.Random, folder: Path) -> None:
    shutil.rmtree(rng.choice(files).parent, ignore_errors=True)


def some_gone(files: Files, rng: random.Random, folder: Path) -> None:
    for file in rng.sample(files, rng.randint(1, len(files))):
        file.unlink()


def all_but_some_gone(files: Files, rng: random.Random, folder: Path) -> None:
    """Leave what a cleaner of temporary folders leaves of a job that runs for weeks."""
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


HARMS = [harm for harm in vars().values() if inspect.isfunction(harm)]
"""Kinds of harm to files: all functions above."""


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
                harm = self.rng.choice(HARMS)
                self.seen[harm.__name__] += 1
                harm(files, self.rng, self.folder)

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


def damaged_stores(damage: Damaging) -> type[BucketStore]:
    """A bucket store whose files are damaged between any two of its calls."""

    class Damaged(BucketStore):
        def __enter__(self) -> Any:
            damage()
            return super().__enter__()

        def get_many(self, keys: Any) -> Any:
            damage()
            return super().get_many(keys)

        def scan(self, *ranges: Any, **limits: Any) -> Iterator[Page]:
            damage()
            return damage.pages(super().scan(*ranges, **limits))

        def write(self, keys: Any, values: Any) -> None:
            damage()
            super().write(keys, values)

        def commit(self) -> None:
            damage()
            super().commit()
            damage.seen["batches"] += 1
            damage.seen["rebuilt"] += self.rebuilt is not None
            damage()

    return Damaged


def small_files(patched: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Have a few entries reach all that stores do: logs are cleaned, tails flushed, pages turned."""
    patched.setattr("fkjoin.state.bucket.SEGMENT_BYTES", 500)
    patched.setattr("fkjoin.state.segments.SEGMENT_BYTES", 500)
    patched.setattr(pending, "TAIL_BATCHES", rng.choice([0, 1, 4]))
    patched.setattr(pending, "TAIL_BYTES", rng.choice([0, 300, 1 << 20]))
    patched.setattr(RocksIndex, "page_entries", rng.choice([1, 5, 1 << 16]))


def another_process() -> None:
    """Forget what a process remembers of stores."""
    database._block_cache.cache_clear()
    pending._waiting.clear()
    index_module._readers.clear()
