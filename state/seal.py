"""The seal of a bucket's index: its folder, its position, and that it has not changed since.

``SEAL`` lies beside the folder of the index:
``{1-byte format}{JSON}{16-byte digest of what is before}``.  The JSON names

* the folder, and the *position*: the committed batch whose data the index holds;
* the data files of the version that RocksDB had open, with their sizes, as RocksDB knew them from
  memory;
* every file in the folder, with its *stamp*: size, inode, and when the inode last changed.

*Law*: an index is read only if its seal verifies, its folder has exactly these files with these
stamps, and RocksDB opens exactly this version of it.

What happens, and how it is noticed:

* a closed file is written to, cut, removed, added or exchanged: its stamp changes, which no program
  can choose
* the file that names RocksDB's newest version is lost while the index is open: RocksDB opens other
  data files
* contents change and the stamp does not, or the index is open: by the checksums of blocks

The checksum of a block holds the file's identity and the block's place in it.
A stamp costs a system call; a digest of the contents would cost reading all of the index.

The digest has a key, a secret in the change log: only a process that can read the log can seal.

To open an index for writing is to take its seal away, by renaming it: of two processes one
succeeds.  A process that dies leaves no seal, and what it has left is not read.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from fkjoin.state.errors import DamagedIndexError
from fkjoin.state.private import close_to_others, write_private
from fkjoin.state.segments import Position

SEAL = "SEAL"
SEAL_DIGEST_BYTES = 16

_FORMAT = b"\x03"

_OF_NO_MATTER = ("LOCK", "LOG", "rocksdict-config.json")
"""Beginnings of the names of files without data: readers write to them, too, or make them again."""

Stamp = list[int]


def keyed(key: bytes, *parts: bytes) -> bytes:
    """Digest ``data`` so that only a process with the key can do so."""
    hasher = blake2b(key=key, digest_size=SEAL_DIGEST_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def stamp(file: Path) -> Stamp:
    """Size, inode and the time of its last change in nanoseconds; ``OSError`` without the file."""
    status = file.lstat()
    return [status.st_size, status.st_ino, status.st_ctime_ns]


def stamps(folder: Path) -> dict[str, Stamp]:
    """The stamp of every file in the folder that matters."""
    return {
        file.name: stamp(file)
        for file in folder.iterdir()
        if not file.name.startswith(_OF_NO_MATTER)
    }


@dataclass(frozen=True)
class Seal:
    """A seal that has verified."""

    data: bytes
    """Bytes of the seal as they lie there."""
    folder: Path
    position: Position
    live: Mapping[str, int]
    """Names of the data files, and their sizes."""
    stamps: Mapping[str, Stamp]

    @classmethod
    def of(cls, directory: Path, key: bytes, name: str = SEAL) -> Seal | None:
        """The seal in ``directory``, None if there is none.

        ``DamagedIndexError`` if it, or what it seals, has changed.
        """
        try:
            data = (directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedIndexError(
                f"the seal of index {directory} cannot be read: {error}"
            ) from error
        body, digest = data[:-SEAL_DIGEST_BYTES], data[-SEAL_DIGEST_BYTES:]
        if body[:1] != _FORMAT or not hmac.compare_digest(digest, keyed(key, body)):
            raise DamagedIndexError(
                f"the seal of index {directory} is damaged, or belongs to another log"
            )
        fields = json.loads(body[1:])
        token, next_ = fields["position"]
        folder, position = directory / fields["folder"], Position(bytes.fromhex(token), next_)
        seal = cls(data, folder, position, fields["live"], fields["stamps"])
        seal.require_as_sealed()
        return seal

    def require_as_sealed(self) -> None:
        """``DamagedIndexError`` if a file has changed since it was sealed."""
        try:
            present = stamps(self.folder)
        except OSError as error:
            raise DamagedIndexError(
                f"index {self.folder} has changed since it was closed: {error}"
            ) from error
        if present == self.stamps:
            return
        names = sorted({*present, *self.stamps})
        name = next(name for name in names if present.get(name) != self.stamps.get(name))
        if name not in self.stamps:
            change = "is new"
        elif name in present:
            change = "was changed"
        else:
            change = "is gone"
        raise DamagedIndexError(
            f"index {self.folder} has changed since it was closed: {name} {change}"
        )

    def require_version(self, live: Mapping[str, int]) -> None:
        """``DamagedIndexError`` if RocksDB has opened another version than the sealed one."""
        if self.live != live:
            raise DamagedIndexError(
                f"index {self.folder} opens with other data files than it was closed with"
            )


def taken(directory: Path, key: bytes) -> Seal | None:
    """Take the seal away, and with it the index; None if there is none.

    ``DamagedIndexError`` as ``Seal.of``.
    """
    mine = f"{SEAL}-{uuid.uuid4().hex}"
    try:
        (directory / SEAL).rename(directory / mine)
    except OSError:  # another process has it, or the folder cannot be written to
        return None
    try:
        return Seal.of(directory, key, mine)
    finally:
        with contextlib.suppress(OSError):
            (directory / mine).unlink()


def seal(folder: Path, position: Position, live: Mapping[str, int], key: bytes) -> None:
    """Seal an index that has been closed; ``live``: the data files that RocksDB had open.

    ``OSError`` if it cannot be done.
    """
    for file in folder.iterdir():
        close_to_others(file)
    fields = {
        "folder": folder.name,
        "position": [position.token.hex(), position.next],
        "live": dict(live),
        # The files' rights are set before: to change them changes the stamp.
        "stamps": stamps(folder),
    }
    body = _FORMAT + json.dumps(fields).encode()
    draft = folder.parent / f"{SEAL}-{uuid.uuid4().hex}"
    try:
        write_private(draft, body + keyed(key, body))
        draft.replace(folder.parent / SEAL)
    finally:
        draft.unlink(missing_ok=True)
