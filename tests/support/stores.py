"""A log for bucket stores, and stores filled and read with plain bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import masked
from fkjoin.state import BYTES, BucketStore, Page
from fkjoin.state.index import RocksIndex
from fkjoin.state.segments import Meta, Position


class Log:
    """A segment log in memory, whose owner commits it or rolls it back."""

    def __init__(self) -> None:
        self.committed: dict[Any, bytes] = {}
        self.working: dict[Any, bytes] = {}

    def meta(self) -> bytes | None:
        return self.working.get("meta")

    def set_meta(self, meta: bytes) -> None:
        self.working["meta"] = meta

    def segment(self, number: int) -> bytes | None:
        return self.working.get(number)

    def put_segment(self, number: int, data: bytes) -> None:
        assert number not in self.working
        self.working[number] = data

    def remove_segment(self, number: int) -> None:
        del self.working[number]

    def commit(self) -> None:
        self.committed = dict(self.working)

    def roll_back(self) -> None:
        self.working = dict(self.committed)


def array(items: list[bytes | None]) -> pa.LargeBinaryArray:
    return pa.array(items, BYTES)


def write(store: Any, entries: dict[bytes, bytes | None]) -> None:
    """Deletes are nulls with bytes under them, as the stages make them."""
    values = array([b"dead" if value is None else value for value in entries.values()])
    store.write(array(list(entries)), masked(values, np.array([value is not None for value in entries.values()])))


def flat(pages: Iterable[Page]) -> list[tuple[int, bytes, bytes]]:
    """The entries of pages, with the numbers of their ranges; fails on a page without any."""
    entries = []
    for page in pages:
        assert len(page.keys)
        entries += zip(page.ranges.tolist(), page.keys.to_pylist(), page.values.to_pylist(), strict=True)
    return entries


def contents(store: Any) -> dict[bytes, bytes]:
    return {key: value for _, key, value in flat(store.scan([(b"\0", b"\xff" * 9)]))}


KEY = bytes(range(16))
"""The key of logs whose indexes a test opens itself."""


def index_folder(bucket: Path) -> Path:
    """The folder of the index of a bucket."""
    (folder,) = bucket.glob("index-*")
    return folder


def index_of(bucket: Path, key: bytes = KEY) -> RocksIndex:
    """The index of a bucket, opened for writing; a new one where there is none."""
    bucket.mkdir(parents=True, exist_ok=True)
    return RocksIndex.taken(bucket, key, 0.0) or RocksIndex.new(bucket, Position(bytes(16), 0), key)


def key_of(log: Log) -> bytes:
    """The key that seals the local files of a log."""
    return Meta.decode(log.committed["meta"]).key


def batch(log: Log, folder: Path, entries: dict[bytes, bytes | None]) -> None:
    with BucketStore(log, folder) as store:
        write(store, entries)
        store.commit()
    log.commit()
