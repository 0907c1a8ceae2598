"""Stores of a checkpoint as of a batch, found and read without Spark."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fkjoin.checkpoint.entries import Entries
from fkjoin.checkpoint.plain_files import Commit, PlainFiles, at_commit, is_ours
from fkjoin.checkpoint.saved_log import SavedLog
from fkjoin.checkpoint.snapshot_log import SnapshotLog
from fkjoin.checkpoint.spark_formats import Changes, Version, changes_of
from fkjoin.checkpoint.stores import SavedRecords
from fkjoin.errors import FkJoinError
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.buckets import spark_hash
from fkjoin.spark.identity import read_identity
from fkjoin.state import BucketStore
from fkjoin.state.segments import Meta

_T = TypeVar("_T")


class OperatorLogs(NamedTuple):
    """The logs of a stateful operator, partition by partition."""

    files: PlainFiles
    operator: int
    versions: tuple[Version, ...]
    """The version of each partition."""
    scratch: Path
    """A folder for copies of snapshots, and for replayed buckets."""

    def opened(self, partition: int) -> SavedLog:
        """Open the log of a partition, which is a context manager."""
        place = self.scratch / f"snapshot-{uuid.uuid4().hex}"
        return SavedLog(self.files, f"state/{self.operator}/{partition}", self.versions[partition], place)

    def identity(self) -> bytes | None:
        """Read what the store says of itself: in the last change files, or else in a snapshot; None if it is empty."""
        for partition in range(len(self.versions)):
            for changes in self._latest_first(partition):
                for place, data in changes.written.items():
                    if place.number is None and data is not None:
                        return Meta.decode(data).identity
        for partition in range(len(self.versions)):
            with self.opened(partition) as log:
                for data in log.metas().values():
                    return Meta.decode(data).identity
        return None

    def _latest_first(self, partition: int) -> Iterator[Changes]:
        at: Version | None = self.versions[partition]
        folder = f"state/{self.operator}/{partition}"
        while at is not None:
            try:
                changes = changes_of(at.name, self.files.read(f"{folder}/{at.name}.changelog"))
            except FileNotFoundError:  # Spark removes those that a snapshot makes needless, at any moment
                return
            yield changes
            at = changes.before


@dataclass(frozen=True)
class PlainStore(SavedRecords):
    """A stage's store in a checkpoint, as its own files say."""

    checkpoint: str
    said: bytes
    """The identity, as it stands in a bucket's log."""
    logs: OperatorLogs

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.said)

    def in_bucket(self, bucket: int, names: tuple[bytes, ...]) -> list[dict[str, Any]]:
        with self.logs.opened(spark_hash(bucket) % len(self.logs.versions)) as log:
            if (meta := log.metas().get(bucket)) is None:
                return []
            saved = SnapshotLog(meta, functools.partial(log.segment, bucket))
            folder = self.logs.scratch / f"bucket-{uuid.uuid4().hex}"
            with BucketStore(saved, folder, identity=Meta.decode(meta).identity) as store:
                return [row for batch in Entries(self.described(), names)(store, bucket) for row in batch.to_pylist()]


class PlainState(NamedTuple):
    """The stores of a checkpoint after a batch."""

    checkpoint: str
    stores: list[PlainStore]


def state_of(files: PlainFiles, commit: Commit, scratch: Path) -> PlainState:
    """Find the stores that have anything in them, those next to the sources first; ``FkJoinError`` without any."""
    stores = []
    for operator, versions in sorted(commit.versions.items(), reverse=True):  # Spark counts from the sink
        logs = OperatorLogs(files, operator, versions, scratch)
        if is_ours(files, operator) and (said := logs.identity()) is not None:
            stores.append(PlainStore(files.checkpoint, said, logs))
    if not stores:
        raise FkJoinError(f"checkpoint {files.checkpoint} has no store of fkjoin with anything in it")
    return PlainState(files.checkpoint, stores)


def with_state(files: PlainFiles, batch: int | None, work: Callable[[PlainState], _T]) -> _T:
    """Return what ``work`` makes of the state after ``batch``, or after the last one; see ``at_commit``."""
    with held_folder() as folder:
        return at_commit(files, batch, lambda commit: work(state_of(files, commit, folder)))
