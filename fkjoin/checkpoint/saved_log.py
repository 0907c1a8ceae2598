"""A partition's change logs as Spark has saved them: a snapshot, and the change files after it.

A snapshot ``{version}_{id}.zip`` is a RocksDB but for its data files.  These are in the folder
``SSTs``, under names that the snapshot's ``metadata`` has.  Spark removes what no batch that it
keeps needs: a file that is gone is ``FileNotFoundError``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rocksdict import AccessType, Options, Rdict

from fkjoin.checkpoint.saved_files import SavedFiles
from fkjoin.checkpoint.spark_formats import (
    Changes,
    LogPlace,
    Version,
    changes_of,
    data_of,
    key_of,
    place_of,
)
from fkjoin.errors import FormatError
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.change_log import meta_of, saved_number, stage_number
from fkjoin.state import BucketStore
from fkjoin.state.segments import Meta

_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError),
    *(ValueError, KeyError, TypeError, OverflowError, FormatError),
)
"""Errors that Python raises of an archive with a changed byte, or of the JSON in it.  RuntimeError:
another compression, or a password."""


class SavedPartition(NamedTuple):
    """The files of a partition's store, as of a version."""

    files: SavedFiles
    folder: str
    version: Version
    stage: int = 0
    """The number of the stage in its operator."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[SavedLog]:
        """Read the files; a copy of the snapshot is there as long as the log is open."""
        snapshot, later = self._parts()
        written: dict[LogPlace, bytes | None] = {}
        for version in later:
            written |= self._changes(version).written
        if snapshot is None:
            yield SavedLog(self.folder, written, stage=self.stage)
            return
        saved = self._snapshot(snapshot)
        with held_folder() as copy:
            for member, content in saved.members.items():
                (copy / member).write_bytes(content)
            for local, data in saved.data.items():
                (copy / local).write_bytes(self.files.read(f"{self.folder}/SSTs/{data}"))
            # Spark's files have Spark's options; what must be known to read them stands in each.
            options, mode = Options(raw_mode=True), AccessType.read_only(False)
            with _reading(self.folder):
                base = Rdict(str(copy), options, access_type=mode)
            try:
                yield SavedLog(self.folder, written, base, saved.numbers, self.stage)
            finally:
                base.close()

    def file_names(self) -> list[str]:
        """List the files that the version is read from."""
        snapshot, later = self._parts()
        names = [f"{self.folder}/{version.name}.changelog" for version in later]
        if snapshot is not None:
            names.append(f"{self.folder}/{snapshot.name}.zip")
            inside = set(self.files.folder.names(f"{self.folder}/SSTs"))
            for data in self._snapshot(snapshot).data.values():
                if data not in inside:
                    raise FileNotFoundError(f"{self.folder}/SSTs/{data}")
                names.append(f"{self.folder}/SSTs/{data}")
        return names

    def after_snapshot(self) -> Iterator[Changes]:
        """Read the change files after the newest snapshot, the latest first."""
        _, later = self._parts()
        for version in reversed(later):
            yield self._changes(version)

    def since(self, known: Version) -> list[Changes] | None:
        """Read what versions after ``known`` changed of the stage, the oldest first.

        None if files are gone.
        """
        read, version = list[Changes](), self.version
        while version != known:
            try:
                changes = self._changes(version)
            except FileNotFoundError:
                return None
            read.append(_of_stage(changes, self.stage))
            before = changes.lineage[-1] if changes.lineage else None
            if before is None or (before != known and before.number <= known.number):
                return None
            version = before
        return read[::-1]

    def _parts(self) -> tuple[Version | None, list[Version]]:
        """Find the newest snapshot on the way to the version, and the versions after it."""
        names = set(self.files.folder.names(self.folder))
        versions = [self.version]
        while f"{versions[0].name}.zip" not in names:
            lineage = self._changes(versions[0]).lineage
            if not lineage:
                return None, versions
            snapshots = [n for n, earlier in enumerate(lineage) if f"{earlier.name}.zip" in names]
            # A lineage begins with the snapshot of its time, which Spark may have removed since.
            newest = snapshots[-1] if snapshots else 0
            versions = [*lineage[newest:], *versions]
        return versions[0], versions[1:]

    def _changes(self, version: Version) -> Changes:
        name = version.name
        return changes_of(name, self.files.read(f"{self.folder}/{name}.changelog"))

    def _snapshot(self, version: Version) -> _Snapshot:
        name = f"{self.folder}/{version.name}.zip"
        packed = io.BytesIO(self.files.read(name))
        try:
            with zipfile.ZipFile(packed) as archive:
                # Below are logs that RocksDB has no more need of.  Reading compares checksums.
                names = [member for member in archive.namelist() if "/" not in member]
                members = {_plain(member): archive.read(member) for member in names}
            about = json.loads(members.pop("metadata").decode().partition("\n")[2])
            pairs = [(file["localFileName"], file["dfsSstFileName"]) for file in about["sstFiles"]]
            data = {_plain(local): _plain(saved) for local, saved in pairs}
            families = about["columnFamilyMapping"]
            numbers = {state: int(families[state]) for state in ("log", "meta")}
        except _DAMAGED as error:
            raise FormatError(
                f"snapshot {name} is damaged, or has a format that this release does not read: "
                f"{error!r}"
            ) from error
        return _Snapshot(members, data, numbers)


def _of_stage(changes: Changes, stage: int) -> Changes:
    """The changes of one stage's log, with its own numbers of segments."""
    written: dict[LogPlace, bytes | None] = {}
    for record, data in changes.written.items():
        if record.number is None:
            meta = None if data is None else meta_of(data, stage)
            if data is None or meta is not None:
                written[record] = meta
        else:
            owner, number = stage_number(record.number)
            if owner == stage:
                written[record._replace(number=number)] = data
    return Changes(changes.lineage, written)


class _Snapshot(NamedTuple):
    """The content of a snapshot's archive."""

    members: dict[str, bytes]
    data: dict[str, str]
    """Names of data files in the RocksDB, and in the folder of such files."""
    numbers: dict[str, int]
    """Numbers of state variables."""


def _plain(name: str) -> str:
    if PurePosixPath(name).name != name or name in (".", ".."):
        raise FormatError(f"it names the file {name!r}")
    return name


@contextlib.contextmanager
def _reading(folder: str) -> Iterator[None]:
    """Say of damage where it is; RocksDB compares the checksums of what it reads."""
    try:
        yield
    except Exception as error:  # rocksdict has one kind of error
        raise FormatError(f"a snapshot in {folder} is damaged: {error}") from error


@dataclass(frozen=True)
class SavedLog:
    """The logs of a stage's buckets in a partition, as of a version."""

    folder: str
    written: Mapping[LogPlace, bytes | None]
    """Records that were put after the snapshot, of all stages; None for those that were deleted."""
    base: Rdict | None = None
    """The snapshot."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The numbers of its state variables."""
    stage: int = 0

    def metas(self) -> dict[int, bytes]:
        """Read the meta record of each bucket."""
        metas = {bucket: meta_of(data, self.stage) for bucket, data in self.all_metas().items()}
        return {bucket: meta for bucket, meta in metas.items() if meta is not None}

    def all_metas(self) -> dict[int, bytes]:
        """Read the meta records of all stages, packed, of each bucket."""
        with _reading(self.folder):
            metas = dict(self._saved_metas())
        for record, data in self.written.items():
            if record.number is None:
                metas.pop(record.bucket, None)
                if data is not None:
                    metas[record.bucket] = data
        return metas

    def segment(self, bucket: int, number: int) -> bytes | None:
        """Read a segment of a bucket's log; None if it is not there."""
        record = LogPlace(bucket, saved_number(self.stage, number))
        if record in self.written or self.base is None:
            return self.written.get(record)
        with _reading(self.folder):
            value = self.base.get(key_of(self.numbers["log"], record))
            return None if value is None else data_of(value)

    def store(self, bucket: int, meta: bytes, folder: Path) -> BucketStore:
        """Replay a bucket's log into a store, which has its index under ``folder``."""
        log = _BucketLog(meta, functools.partial(self.segment, bucket))
        return BucketStore(log, folder, identity=Meta.decode(meta).identity)

    def _saved_metas(self) -> Iterator[tuple[int, bytes]]:
        if self.base is None:
            return
        prefix = self.numbers["meta"].to_bytes(2, "little")
        entries = self.base.iter()
        entries.seek(prefix)
        while (key := entries.key()) is not None and key.startswith(prefix):
            yield place_of(key).bucket, data_of(entries.value())
            entries.next()
        entries.status()


@dataclass(frozen=True)
class _BucketLog:
    """The log of one bucket, which cannot be written to."""

    saved: bytes
    """The meta record."""
    segment: Callable[[int], bytes | None]

    def meta(self) -> bytes:
        return self.saved

    def _refuse(self, *_: Any) -> None:
        raise io.UnsupportedOperation("a log that was read from a checkpoint cannot be written to")

    set_meta = put_segment = remove_segment = _refuse
