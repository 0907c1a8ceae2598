"""Checkpoints that are damaged, in use, or another job's: what is said, and what is noticed before anything runs."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError
from fkjoin.checkpoint import claim
from fkjoin.checkpoint.claim import claimed
from fkjoin.checkpoint.claim_files import CLAIM_FILE
from fkjoin.checkpoint.damage import explain
from fkjoin.checkpoint.saved import check_logs
from fkjoin.checkpoint.upkeep import verify
from tests.support.golden import CHECKPOINTS, unpack

DAMAGED = "is damaged.*restore it from"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("terminated with exception: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error", DAMAGED),
        ("terminated with exception: [STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed", DAMAGED),
        ("File file:/ck/state/1/_stateSchema/default/0_e does not exist", DAMAGED),
        ("Checksum error: file:/ck/offsets/2 at 0", DAMAGED),
        ("Multiple streaming queries are concurrently using file:/ck", "another query is writing"),
        ("PythonException: json.decoder: Unexpected character", None),
        ("PythonException: fkjoin.state.errors.StoreError: CANNOT_LOAD_STATE_STORE", None),
        ("Checksum error: file:/in/orders/2.json at 0", None),
        ("[MALFORMED_RECORD] Unexpected character", None),
        ("[CANNOT_LOAD_STATE_STORE] caused by: No space left on device", None),
        ("[CANNOT_LOAD_STATE_STORE] caused by: Connection refused", None),
        ("ArithmeticException: / by zero\n=== Streaming Query ===\nCANNOT_LOAD_STATE_STORE", None),
    ],
)
def test_errors_that_come_from_a_checkpoint_say_what_to_do(error: str, says: str | None) -> None:
    words = explain(f"{error}\n=== Streaming Query ===\nplan", "/ck")
    if says is None:
        assert words is None
    else:
        assert re.search(says, ": ".join(words or ()))


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """Some letters are patterns to Spark, which reads the files."""
    folder = tmp_path / "my [a] {b}*?" / "100%" / "state" / "0" / "7"
    folder.mkdir(parents=True)
    checkpoint = unpack(CHECKPOINTS / "join-1.tar.gz", folder)
    assert verify(spark, checkpoint) == []


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole checkpoint of a join."""
    return unpack(CHECKPOINTS / "join-1.tar.gz", tmp_path)


def flip(file: Path, number: int) -> None:
    """Change a bit of a byte."""
    data = bytearray(file.read_bytes())
    data[number] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["offsets/0", "commits/0"])
def test_a_damaged_log_is_named(spark: SparkSession, checkpoint: Path, name: str) -> None:
    """Before anything runs: Spark would not notice it."""
    check_logs(spark, str(checkpoint))
    flip(checkpoint / name, (checkpoint / name).stat().st_size // 2)
    with pytest.raises(FkJoinError, match=f"damaged: {name} is not as it was written; restore it"):
        check_logs(spark, str(checkpoint))


def test_a_snapshot_that_is_cut_is_named(spark: SparkSession, checkpoint: Path) -> None:
    (state,) = checkpoint.glob("state/1/0/1_*.zip")
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(FkJoinError, match="checkpoint .* is damaged.* restore it from a backup"):
        verify(spark, checkpoint)


def test_a_data_file_is_vouched_for_by_checksums(spark: SparkSession, checkpoint: Path) -> None:
    """Hadoop's, and RocksDB's."""
    file = next(checkpoint.glob("state/1/0/SSTs/*.sst"))
    flip(file, 20)
    with pytest.raises(FkJoinError, match=f"SSTs/{file.name} is not as it was written; restore it"):
        verify(spark, checkpoint)
    (file.parent / f".{file.name}.crc").unlink()
    with pytest.raises(FkJoinError, match="a snapshot in state/1/0 is damaged: .*; restore it from a backup"):
        verify(spark, checkpoint)


VOUCHED = ["1_*.zip*", ".1_*.zip*", "1_*.changelog*", ".1_*.changelog*"]


@pytest.mark.parametrize("patterns", [["1_*.zip"], VOUCHED])
def test_swapped_files_are_seen(spark: SparkSession, checkpoint: Path, patterns: Any) -> None:
    """Alone, and with all that vouches for them."""
    for pattern in patterns:
        ones, others = (sorted(checkpoint.glob(f"state/1/{number}/{pattern}")) for number in (0, 1))
        for one, other in zip(ones, others, strict=True):
            content = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(content)
    with pytest.raises(FkJoinError, match="checkpoint .* is damaged.* restore it from a backup"):
        verify(spark, checkpoint)


def test_a_claim_is_renewed_and_whole_whenever_its_owner_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEWED_EVERY_S", 0.02)
    (tmp_path / "metadata").touch()
    file = tmp_path / f"{CLAIM_FILE}.1"
    deadline = time.monotonic() + 20

    def waiting() -> bool:
        assert time.monotonic() < deadline, "the claim is not renewed"
        return True

    with claimed(spark, str(tmp_path)):
        for _ in range(20):
            before = file.stat().st_mtime_ns
            while waiting() and file.stat().st_mtime_ns == before:
                assert json.loads(file.read_text())["process"] == os.getpid()
    assert file.read_text() == ""
