"""A checkpoint with one store, whose files are as Spark writes them: change files, snapshots, commits; its clean-up, too."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import uuid
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql.types import DoubleType, IntegerType, MapType, StringType, StructType
from rocksdict import Options, Rdict

from fkjoin.checkpoint.spark_formats import LogPlace, Version, key_of
from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import masked, prefixed
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.spark.buckets import bucket_ids, buckets_of
from fkjoin.spark.identity import identity_text, with_home
from fkjoin.spark.schemas import arrow_schema
from fkjoin.stages.emit_on_change import DIGEST_BYTES, HAS_RESULT
from fkjoin.state import BYTES, BucketStore
from fkjoin.state.segments import SEGMENT_BYTES
from tests.support.stores import Log

KEY = StructType().add("region", StringType()).add("n", IntegerType())
ROW = StructType().add("name", StringType()).add("amount", DoubleType()).add("tags", MapType(StringType(), IntegerType()))
NAME = "kept"
_NUMBERS = {"meta": 2, "log": 3}
_BLOCK = 1 << 15

Table = dict[tuple[str, int], dict[str, Any]]


class SavedQuery:
    """The query, batch by batch; ``rows`` is the table after its last one."""

    def __init__(self, folder: Path, *, partitions: int = 2, buckets: int = 4, codec: str = "lz4") -> None:
        self.checkpoint, self.partitions, self.buckets, self.codec = folder / "checkpoint", partitions, buckets, codec
        self._stores = folder / "stores"
        self.key, self.row = arrow_schema("key", KEY), arrow_schema("row", ROW)
        facts = {"join": "orders", "stage": "resolve", "buckets": buckets, "joiner": "columns", "materialized": NAME}
        about = {"key": KEY.jsonValue(), "result": ROW.jsonValue(), "parts": [1, 1]}
        self._identity = identity_text(facts, about)
        self._logs = {bucket: Log() for bucket in bucket_ids(buckets)}
        self._lineage: list[list[Version]] = [[] for _ in range(partitions)]
        self._snapshots: list[list[Version]] = [[] for _ in range(partitions)]
        self._all: list[dict[int, Version]] = [{} for _ in range(partitions)]
        self.rows: Table = {}
        self.last = -1
        folders = [self._of(partition) / "SSTs" for partition in range(partitions)]
        for place in [*folders, *(self.checkpoint / name for name in ("commits", "offsets", "state/0/_metadata/v2"))]:
            place.mkdir(parents=True, exist_ok=True)
        kinds = {"log": "MapState", "meta": "ValueState"}.items()
        states = [{"stateName": name, "stateVariableType": kind} for name, kind in kinds]
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"},
            "operatorPropertiesJson": json.dumps({"stateVariables": states}),
        }
        (self.checkpoint / "state/0/_metadata/v2/0").write_text(f"v2\n{json.dumps(operator)}")

    def batch(
        self, changes: dict[tuple[str, int], dict[str, Any] | None], *, snapshot: bool = False, tidy: bool = False
    ) -> None:
        """Write a batch: rows, or None for deletes; ``snapshot``: and snapshots of what it leaves; ``tidy``: cleans logs."""
        self.last += 1
        before = {bucket: log.committed for bucket, log in self._logs.items()}
        self._write(changes, tidy)
        ids = []
        for partition in range(self.partitions):
            version = Version(self.last + 1, str(uuid.uuid4()))
            ids.append([version.id])
            self._all[partition][version.number] = version
            buckets = list(self._logs)[partition :: self.partitions]
            self._put(partition, version, {bucket: (before[bucket], self._logs[bucket].committed) for bucket in buckets})
            self._lineage[partition].append(version)
            if snapshot:
                self._snapshot(partition, version, buckets)
        (self.checkpoint / f"offsets/{self.last}").write_text('v1\n{"conf": {}}\n0')
        self.commit(ids)

    def commit(self, ids: list[list[str]]) -> None:
        draft = self.checkpoint / f"commits/.{self.last}.tmp"
        draft.write_text(f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, 'stateUniqueIds': {'0': ids}})}")
        draft.rename(self.checkpoint / f"commits/{self.last}")

    def clean(self, keep: int) -> None:
        """Remove what no state after one of the last ``keep`` batches needs."""
        oldest = max(1, self.last + 2 - keep)
        for partition in range(self.partitions):
            below = [version for version in self._snapshots[partition] if version.number <= oldest]
            first = below[-1].number if below else 1
            for number in [number for number in self._all[partition] if number < first]:
                version = self._all[partition].pop(number)
                for ending in ("zip", "changelog"):
                    (self._of(partition) / f"{version.name}.{ending}").unlink(missing_ok=True)
        for log in ("commits", "offsets"):
            for batch in range(oldest - 1):
                (self.checkpoint / log / str(batch)).unlink(missing_ok=True)

    def values(self, key: tuple[str, int]) -> dict[str, Any] | None:
        """The row of a key as a reader gives it."""
        row = self.rows.get(key)
        if row is None:
            return None
        said = {"_left_version": [row["seq"]], "_right_version": None, "_timestamp": row["seq"]}
        return dict(zip(("region", "n"), key, strict=True)) | {name: row[name] for name in self.row.names} | said

    def store(self, bucket: int, folder: Path) -> BucketStore:
        """A bucket's store, replayed from its log: what ``read_state`` reads."""
        identity = with_home(self._identity, str(bucket)).encode()
        return BucketStore(self._logs[bucket], folder / str(bucket), identity=identity)

    def _of(self, partition: int) -> Path:
        return self.checkpoint / f"state/0/{partition}"

    def _write(self, changes: dict[tuple[str, int], dict[str, Any] | None], tidy: bool) -> None:
        keys = KeyCodec(self.key).encode(
            [pa.array([key[at] for key in changes], field.type) for at, field in enumerate(self.key)], len(changes)
        )
        rows = [row or dict.fromkeys((*self.row.names, "seq")) for row in changes.values()]
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in self.row]
        seq = np.array([row["seq"] or 0 for row in rows], np.int64)
        left = versions.encode(versions.identity("left"), [seq])
        version = pa.array([one + versions.absent(1) for one in left.to_pylist()], BYTES)
        there = np.array([row is not None for row in changes.values()])
        body = [bytes(DIGEST_BYTES) + row for row in RowCodec(self.row).encode(columns, len(rows)).to_pylist()]
        values = records.encode((there * HAS_RESULT).astype(np.uint8), seq, version, pa.array(body, BYTES))
        values = masked(values, there | np.array([n < 0 for _, n in changes]))  # some deleted rows leave a record
        names, numbers = prefixed(tags.ROW, keys), buckets_of(keys, self.buckets)
        for number, bucket in enumerate(bucket_ids(self.buckets)):
            mine = pa.array(np.flatnonzero(numbers == number))
            if not len(mine):
                continue
            # With a small limit a log that is mostly dead is cleaned, however small it is.
            limit = patch("fkjoin.state.bucket.SEGMENT_BYTES", 1 if tidy else SEGMENT_BYTES)
            with limit, self.store(bucket, self._stores) as store:
                store.write(names.take(mine), values.take(mine))
                store.commit()
            self._logs[bucket].commit()
        for key, row in changes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def _put(self, partition: int, version: Version, of: dict[int, tuple[dict[Any, bytes], dict[Any, bytes]]]) -> None:
        lineage = [{"version": one.number, "checkpointUniqueId": one.id} for one in self._lineage[partition]]
        data = b"".join(len(text).to_bytes(2, "big") + text for text in (b"v4", json.dumps(lineage).encode()))
        for bucket, (before, after) in of.items():
            for name in sorted({*before, *after}, key=str):
                key = _key(bucket, name)
                if name not in after:
                    data += b"\x10" + len(key).to_bytes(4, "big") + key + b"\xff" * 4
                elif before.get(name) != after[name]:
                    value = _value(after[name])
                    data += b"\x01" + len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value
        (self._of(partition) / f"{version.name}.changelog").write_bytes(compressed(data + b"\0", self.codec))

    def _snapshot(self, partition: int, version: Version, buckets: list[int]) -> None:
        place = self._of(partition)
        scratch = place / "scratch"
        base = Rdict(str(scratch), Options(raw_mode=True))
        for bucket in buckets:
            for name, data in self._logs[bucket].committed.items():
                base[_key(bucket, name)] = _value(data)
        base.flush()
        base.close()
        files = []
        with zipfile.ZipFile(archive := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(scratch.iterdir()):
                if path.suffix == ".sst":
                    saved = f"{path.stem}-{uuid.uuid4()}.sst"
                    shutil.move(path, place / "SSTs" / saved)
                    files.append({"localFileName": path.name, "dfsSstFileName": saved, "sizeBytes": 1})
                elif path.is_file() and not path.name.startswith(("LOCK", "LOG", "rocksdict")):
                    packed.write(path, path.name)
            about = {"sstFiles": files, "numKeys": 1, "columnFamilyMapping": {"default": 1, **_NUMBERS}}
            packed.writestr("metadata", f"v1\n{json.dumps(about)}")
        draft = place / f".{version.name}.zip"
        draft.write_bytes(archive.getvalue())
        draft.rename(place / f"{version.name}.zip")
        shutil.rmtree(scratch)
        self._lineage[partition] = [version]
        self._snapshots[partition].append(version)


def _key(bucket: int, name: Any) -> bytes:
    """Make the key of a record of a log: of its meta record, or of a segment by its number."""
    if name == "meta":
        return key_of(_NUMBERS["meta"], LogPlace(bucket, None))
    return key_of(_NUMBERS["log"], LogPlace(bucket, name))


def _value(data: bytes) -> bytes:
    """Make a record's value, as Spark does."""
    return struct.pack("<BQii", 0, 0, len(data), 16) + data + bytes(-len(data) % 8)


def compressed(data: bytes, codec: str) -> bytes:
    """Compress bytes as Spark's streams do."""
    if codec == "zstd":
        with pa.CompressedOutputStream(made := pa.BufferOutputStream(), "zstd") as stream:
            stream.write(data)
        return bytes(made.getvalue())
    if codec != "lz4":
        return os.urandom(8) + data
    found = b""
    for at in range(0, len(data), _BLOCK):
        part = data[at : at + _BLOCK]
        packed = pa.Codec("lz4_raw").compress(part, asbytes=True)
        method, body = (0x20, packed) if len(packed) < len(part) else (0x10, part)
        check = xxhash.xxh32_intdigest(part, 0x9747B28C) & 0x0FFFFFFF
        found += (
            b"LZ4Block" + bytes((method | 5,)) + b"".join(n.to_bytes(4, "little") for n in (len(body), len(part), check)) + body
        )
    return found + b"LZ4Block" + bytes((0x15,)) + bytes(12)
