"""A partition's change logs as Spark has saved them: a snapshot, and the change files after it, read without Spark.

A snapshot ``{version}_{id}.zip`` is a RocksDB but for its data files.  These are in the folder ``SSTs``, under names that the
snapshot's ``metadata`` has.  Spark removes what no batch that it keeps needs: a file that is gone is ``FileNotFoundError``.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from rocksdict import AccessType, Options, Rdict

from fkjoin.checkpoint.plain_files import PlainFiles
from fkjoin.checkpoint.spark_formats import Changes, LogPlace, Version, changes_of, data_of, key_of, place_of
from fkjoin.errors import FormatError

_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError),
    *(ValueError, KeyError, TypeError, OverflowError, FormatError),
)
"""Errors that Python raises of an archive with a changed byte, or of the JSON in it.  RuntimeError: another compression, or a
password."""


def since(files: PlainFiles, folder: str, version: Version, known: Version) -> list[Changes] | None:
    """Read what versions after ``known`` have changed, the oldest first; None if change files do not lead there."""
    found: list[Changes] = []
    at: Version | None = version
    while at != known:
        if at is None or at.number <= known.number:
            return None
        try:
            found.append(changes_of(at.name, files.read(f"{folder}/{at.name}.changelog")))
        except FileNotFoundError:
            return None
        at = found[-1].before
    return found[::-1]


class SavedLog:
    """The logs of all buckets of a partition, as of a version; a context manager that lets go of the snapshot."""

    def __init__(self, files: PlainFiles, folder: str, version: Version, scratch: Path) -> None:
        """Read a version's files; ``scratch``: a folder for a copy of the snapshot, removed when this is closed."""
        self._scratch = scratch
        self._base: Rdict | None = None
        self._name = ""
        self._numbers: Mapping[str, int] = {}
        self._written: dict[LogPlace, bytes | None] = {}
        at: Version | None = version
        chain: list[Changes] = []
        while at is not None and not files.there(f"{folder}/{at.name}.zip"):
            chain.append(changes_of(at.name, files.read(f"{folder}/{at.name}.changelog")))
            at = chain[-1].before
        for changes in reversed(chain):
            self._written |= changes.written
        if at is not None:
            try:
                self._numbers = _unpacked(files, folder, at, scratch)
                # Spark's files have Spark's options; what must be known to read them stands in each of them.
                self._name = f"snapshot {folder}/{at.name}"
                with self._reading():
                    self._base = Rdict(str(scratch), Options(raw_mode=True), access_type=AccessType.read_only(False))
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise

    def __enter__(self) -> SavedLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def metas(self) -> dict[int, bytes]:
        """Read the meta record of each bucket."""
        with self._reading():
            found = dict(self._saved_metas())
        for place, data in self._written.items():
            if place.number is None:
                found.pop(place.bucket, None)
                if data is not None:
                    found[place.bucket] = data
        return found

    def segment(self, bucket: int, number: int) -> bytes | None:
        """Read a segment of a bucket's log; None if it is not there."""
        place = LogPlace(bucket, number)
        if place in self._written or self._base is None:
            return self._written.get(place)
        with self._reading():
            value = self._base.get(key_of(self._numbers["log"], place))
            return None if value is None else data_of(value)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Say of damage in which snapshot it is; RocksDB compares the checksums of what it reads."""
        try:
            yield
        except Exception as error:  # rocksdict has one kind of error
            raise FormatError(f"{self._name} is damaged: {error}") from error

    def _saved_metas(self) -> Iterator[tuple[int, bytes]]:
        if self._base is None:
            return
        prefix = self._numbers["meta"].to_bytes(2, "little")
        entries = self._base.iter()
        entries.seek(prefix)
        while (key := entries.key()) is not None and key.startswith(prefix):
            yield place_of(key).bucket, data_of(entries.value())
            entries.next()
        entries.status()


def _unpacked(files: PlainFiles, folder: str, version: Version, target: Path) -> Mapping[str, int]:
    """Put a snapshot into a folder that is made for it; the numbers of its state variables."""
    target.mkdir(mode=0o700, parents=True)
    name = f"{folder}/{version.name}.zip"
    try:
        with zipfile.ZipFile(io.BytesIO(files.read(name))) as archive:
            for member in archive.namelist():
                if "/" not in member:  # below are logs that RocksDB has no more need of
                    _plain(member)
                    (target / member).write_bytes(archive.read(member))  # compares its checksum
        about = json.loads((target / "metadata").read_text(encoding="utf-8").partition("\n")[2])
        data = {_plain(one["localFileName"]): _plain(one["dfsSstFileName"]) for one in about["sstFiles"]}
        numbers = {state: int(about["columnFamilyMapping"][state]) for state in ("log", "meta")}
    except _DAMAGED as error:
        raise FormatError(f"snapshot {name} is damaged, or of a form that this release does not read: {error!r}") from error
    for local, saved in data.items():
        files.copy(f"{folder}/SSTs/{saved}", target / local)
    with contextlib.suppress(OSError):
        (target / "metadata").unlink()
    return numbers


def _plain(name: str) -> str:
    if PurePosixPath(name).name != name or name in (".", ".."):
        raise FormatError(f"it names the file {name!r}")
    return name
